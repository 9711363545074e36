"""The ops by which a session asks the person for their yes to a call. See relay.protocol.op."""

from __future__ import annotations

from relay.protocol.op import NotRequired, Op, Record, Request


class ApprovalAskQuery(Request):
    """A session asks whether its agent's call may go on. It is answered once the person has
    decided, or ``seconds`` after ``asked_ms``. The same id again is the same."""

    id: str  # a ULID that the session gives it
    tool: NotRequired[str]
    what: NotRequired[str]  # the command, or what else the call does
    why: NotRequired[str]  # the reason why a person has to say yes
    intent: NotRequired[str]
    root: NotRequired[str]
    cwd: NotRequired[str]
    always: NotRequired[str]  # what the person may allow the intent always; "": only this once
    asked_ms: int
    seconds: float  # that the person has


class ApprovalDecision(Record):
    """What became of it."""

    granted: bool
    by: str  # who said so; "": nobody did
    note: str  # the person's words, or why there is no yes
    always: bool  # the yes is for all such calls of the intent


class ApprovalWithdrawQuery(Request):
    """The agent has given the call up. Only of the session's own."""

    id: str


class ApprovalWithdrawn(Record):
    """Whether it still waited."""

    withdrawn: bool


APPROVAL_ASK = Op("approval_ask", ApprovalAskQuery, ApprovalDecision)
APPROVAL_WITHDRAW = Op("approval_withdraw", ApprovalWithdrawQuery, ApprovalWithdrawn)
