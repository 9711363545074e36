"""What travels between the broker and the runner of a headless turn: JSON lines over its pipes.

The broker writes one ``TurnRequest``, later perhaps ``{"do": "stop"}``; the end of the pipe means
the same. The runner writes lines with ``tell``:

``started``   external_id?
``alive``     at least every ``ALIVE_EVERY`` seconds: the lease is renewed
``ended``     the fields of ``TurnResult``; the last line

A wrapped agent's session tells the end of a turn by the op ``turn``, with the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, NamedTuple

from relay.core.dispatch import PermissionSet
from relay.core.errors import UsageError

#: Between two signs of life of a runner; a lease lasts several of them. Seconds.
ALIVE_EVERY = 5.0
#: What one turn may leave behind: characters of its text, tool calls, characters of each.
TEXT_MAX, CALLS_MAX, CALL_MAX = 512 * 1024, 1000, 16 * 1024

Json = dict[str, Any]


class TurnState(StrEnum):
    """How a turn stands, or ended."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn for a headless persona. ``persona`` is its section of the configuration.

    ``prompt`` is all that the agent is told, with the history; ``resumed_prompt`` the same without
    it, for an agent that goes on with its own session ``external_id``. ``attempt``: earlier tries
    that may have begun; the prompts say so already. ``deadline``: seconds.
    """

    turn: str
    name: str
    session: str
    prompt: str
    permissions: PermissionSet
    deadline: float
    persona: Mapping[str, Any] = field(default_factory=dict)
    home: str = ""
    resumed_prompt: str = ""
    system_prompt: str | None = None
    external_id: str | None = None
    attempt: int = 0

    def to_json(self) -> Json:
        made = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**made, "permissions": self.permissions.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TurnRequest:
        permissions = PermissionSet.from_json(value["permissions"])
        return cls(**{**value, "permissions": permissions})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool that was used in a turn. ``params`` and ``result`` are JSON or text, shortened."""

    name: str
    params: str | None = None
    result: str | None = None
    state: str = "completed"
    started_ms: int | None = None
    completed_ms: int | None = None


class TurnCause(StrEnum):
    """Why a turn did not complete."""

    # It did not begin:
    LOGIN = "login"
    TRUST = "trust"
    NOT_INSTALLED = "not_installed"
    NOT_STARTED = "not_started"
    CREDENTIAL = "credential"
    UNGATED = "ungated"
    TOO_LONG = "too_long"
    HELD = "held"
    IMPOSSIBLE = "impossible"
    UNDELIVERED = "undelivered"
    GIVEN_UP = "given_up"
    # It failed:
    AGENT = "agent"
    STATUS = "status"
    OUTPUT = "output"
    ESCAPED = "escaped"
    DIED = "died"
    GONE = "gone"
    SILENT = "silent"
    DEADLINE = "deadline"
    OTHER = "other"
    # It was stopped:
    STOPPED = "stopped"
    OVERTAKEN = "overtaken"
    WITHDRAWN = "withdrawn"
    BROKEN_OFF = "broken_off"
    BROKER = "broker"


class CauseRow(NamedTuple):
    """What a cause means. ``again``: another try may help; ``person``: once the person has done
    something about it."""

    words: str  # {detail}: what is known of this turn
    state: TurnState = TurnState.FAILED
    again: bool = False
    person: bool = False
    way_out: str = ""


CAUSES: dict[TurnCause, CauseRow] = {
    TurnCause.LOGIN: CauseRow(
        "its program is not logged in: {detail}",
        person=True,
        way_out="log in with it, then answer yes (relay items)",
    ),
    TurnCause.TRUST: CauseRow(
        "its program does not trust its folder: {detail}",
        person=True,
        way_out="start it there once and trust the folder, then answer yes (relay items)",
    ),
    TurnCause.NOT_INSTALLED: CauseRow(
        "{detail}",
        way_out="look at command in the persona's configuration",
    ),
    TurnCause.NOT_STARTED: CauseRow("{detail}", again=True),
    TurnCause.CREDENTIAL: CauseRow(
        "the credential {detail}",
        way_out="look at credentials in the persona's configuration",
    ),
    TurnCause.UNGATED: CauseRow("{detail}"),
    TurnCause.TOO_LONG: CauseRow(
        "{detail}",
        way_out="shorten it, or take a program that reads its standard input",
    ),
    TurnCause.HELD: CauseRow("{detail}"),
    TurnCause.IMPOSSIBLE: CauseRow("{detail}"),
    TurnCause.UNDELIVERED: CauseRow("{detail}"),
    TurnCause.GIVEN_UP: CauseRow("the person gave it up: {detail}"),
    TurnCause.AGENT: CauseRow("{detail}", again=True),
    TurnCause.STATUS: CauseRow("{detail}", again=True),
    TurnCause.OUTPUT: CauseRow("{detail}"),
    TurnCause.ESCAPED: CauseRow("{detail} has run though this turn may not use it"),
    TurnCause.DIED: CauseRow("its process {detail}", again=True),
    TurnCause.GONE: CauseRow("{detail} ended before it had answered", again=True),
    TurnCause.SILENT: CauseRow("it was silent for {detail} s", again=True),
    TurnCause.DEADLINE: CauseRow(
        "no end of the turn within {detail} s",
        TurnState.TIMED_OUT,
        way_out="deadline in the persona's configuration gives it longer",
    ),
    TurnCause.OTHER: CauseRow("{detail}"),
    TurnCause.STOPPED: CauseRow("it was stopped for {detail}", TurnState.INTERRUPTED),
    TurnCause.OVERTAKEN: CauseRow("something else goes first", TurnState.INTERRUPTED),
    TurnCause.WITHDRAWN: CauseRow("the person withdrew it", TurnState.INTERRUPTED),
    TurnCause.BROKEN_OFF: CauseRow("it was broken off at the agent", TurnState.INTERRUPTED),
    TurnCause.BROKER: CauseRow("the broker ended in the middle of it", TurnState.INTERRUPTED),
}


@dataclass(frozen=True, slots=True)
class TurnResult:
    """How a turn ended, and what the agent said in it.

    ``inferred``: not told by the agent, but by its silence at the prompt. ``cause``: why it did not
    complete, ``detail``: what is known beyond that.
    """

    state: TurnState = TurnState.COMPLETED
    text: str = ""
    cause: TurnCause | None = None
    detail: str = ""
    inferred: bool = False
    model: str | None = None
    external_id: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    ended_ms: int | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    @classmethod
    def of(cls, cause: TurnCause, detail: object = "", text: str = "") -> TurnResult:
        """One that did not complete."""
        return cls(CAUSES[cause].state, text, cause, str(detail))

    @property
    def reason(self) -> str | None:
        """Why it did not complete, with the way out, as it is shown."""
        if self.cause is None:
            return None
        row = CAUSES[self.cause]
        words = row.words.replace("{detail}", self.detail or "no more is known")
        return f"{words.rstrip('.')}; {row.way_out}" if row.way_out else words

    @property
    def again(self) -> bool:
        """Whether it failed in a way in which another try may help."""
        return self.cause is not None and CAUSES[self.cause].again

    @property
    def needs_person(self) -> bool:
        """Whether another try helps once the person has done something about it."""
        return self.cause is not None and CAUSES[self.cause].person

    @property
    def goes_on(self) -> bool:
        """Whether the conversation goes on from here: what failed was not said, as it were."""
        return self.state in (TurnState.COMPLETED, TurnState.INTERRUPTED)

    def to_json(self) -> Json:
        return {name: one for name, one in asdict(self).items() if one is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TurnResult:
        """Read one that another process wrote; it is cut where it is too long, and fields that
        this version does not know are ignored. Raises UsageError."""
        given = {name: value.get(name) for name in _ENDED if value.get(name) is not None}
        for name, one in given.items():
            if name not in ("tool_calls", "state") and type(one) is not _ENDED[name]:
                raise UsageError(f"{name} of a turn's end cannot be {type(one).__name__}")
        try:
            state = TurnState(str(given.get("state", TurnState.COMPLETED)))
            cause = TurnCause(str(given["cause"])) if "cause" in given else None
        except ValueError as error:
            raise UsageError(f"a turn cannot end so: {error}") from error
        if state is TurnState.RUNNING:
            raise UsageError("a turn that runs has not ended")
        if cause is None and state is not TurnState.COMPLETED:
            # As a session of an earlier version has kept it.
            cause = TurnCause.AGENT if value.get("again") is True else TurnCause.OTHER
            given["detail"] = str(value.get("reason") or "")
        calls = given.get("tool_calls") or ()
        if not isinstance(calls, list | tuple):
            raise UsageError("tool_calls of a turn's end is a list")
        made: Json = {"state": state, "cause": cause}
        made["tool_calls"] = tuple(_tool_call(one) for one in calls[:CALLS_MAX])
        return cls(**{**_cut(given, TEXT_MAX), **made})


_ENDED: dict[str, type] = {
    "state": str,
    "text": str,
    "cause": str,
    "detail": str,
    "inferred": bool,
    "model": str,
    "external_id": str,
    "tokens_in": int,
    "tokens_out": int,
    "ended_ms": int,
    "tool_calls": list,
}


def _tool_call(value: object) -> ToolCall:
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise UsageError("a tool call needs a name")
    known = {one.name: value.get(one.name) for one in fields(ToolCall)}
    kinds = {name: int if name.endswith("_ms") else str for name in known}
    return ToolCall(**_cut({k: one for k, one in known.items() if type(one) is kinds[k]}, CALL_MAX))


def _cut(values: Mapping[str, Any], most: int) -> Json:
    """``values`` with every text at most ``most`` characters long, which says that it was cut."""
    mark = " [cut]"
    return {
        name: one[: most - len(mark)] + mark if isinstance(one, str) and len(one) > most else one
        for name, one in values.items()
    }
