"""Approvals: a tool call that only a person may let go on waits here for their yes or no.

``BrokerApprover`` asks by way of the broker, which lists what waits for ``relay items``.
A file of its own because the gate knows of no broker.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from relay.core.errors import RelayError

#: Seconds that the broker may take beyond the deadline, which it keeps itself.
LATER = 5.0


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What a person is asked. They are shown ``what`` as it is: whole, and with its secrets."""

    id: str  # a ULID; the same where the same is asked again
    tool: str
    what: str  # the command, or what else the call does
    why: str  # the reason why a person has to say yes, a sentence without its full stop
    intent: str
    root: str
    cwd: str
    asked_ms: int
    seconds: float  # that the person has


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """What became of it."""

    granted: bool
    by: str = ""  # who said so; "": nobody did
    note: str = ""  # the person's words, or why there is no yes


class Approver(Protocol):
    """Asks a person. Raises nothing but CancelledError: where nobody can be asked, that is no."""

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer: ...


class BrokerRequests(Protocol):
    """The part of the broker's client that asking needs."""

    async def request(self, op: str, **fields: Any) -> dict[str, Any]: ...


class BrokerApprover:
    """Asks the person by way of the broker, for one agent's session.

    After a kill of the broker the client asks the next one the same: the person has to decide
    again where their word was lost.
    """

    def __init__(self, broker: BrokerRequests) -> None:
        self._broker = broker
        self._withdrawals: set[asyncio.Task[None]] = set()

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Wait for the person, at most ``request.seconds``. Cancelled, it takes the question back:
        nobody waits for it any more."""
        deadline = request.seconds + LATER
        try:
            answer = await self._broker.request(
                "approval_ask", deadline=deadline, **asdict(request)
            )
        except asyncio.CancelledError:
            task = asyncio.get_running_loop().create_task(self._withdraw(request.id))
            self._withdrawals.add(task)
            task.add_done_callback(self._withdrawals.discard)
            raise
        except RelayError as error:
            return ApprovalAnswer(False, note=f"no person could be asked: {error.line}")
        return ApprovalAnswer(
            answer.get("granted") is True,
            str(answer.get("by") or ""),
            str(answer.get("note") or ""),
        )

    async def _withdraw(self, id_: str) -> None:
        with contextlib.suppress(RelayError):
            await self._broker.request("approval_withdraw", deadline=LATER, id=id_)
