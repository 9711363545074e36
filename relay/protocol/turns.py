"""What travels between the broker and the runner of a headless turn: JSON lines over its pipes.

The broker writes one ``TurnRequest``, later perhaps ``{"do": "stop"}``; the end of the pipe means
the same. The runner writes lines with ``tell``:

``started``   external_id?
``alive``     at least every ``ALIVE_EVERY`` seconds: the lease is renewed
``ended``     the fields of ``TurnEnded``; the last line

A wrapped agent's session tells the end of a turn by the op ``turn``, with the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

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
        """Read what ``to_json`` made."""
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


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """How a turn ended, and what the agent said in it.

    ``inferred``: not told by the agent, but by its silence at the prompt. ``again``: it failed in a
    way in which another try may help. ``reason``: why it did not complete.
    """

    state: TurnState = TurnState.COMPLETED
    text: str = ""
    reason: str | None = None
    again: bool = False
    inferred: bool = False
    model: str | None = None
    external_id: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    ended_ms: int | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def goes_on(self) -> bool:
        """Whether the conversation goes on from here: what failed was not said, as it were."""
        return self.state in (TurnState.COMPLETED, TurnState.INTERRUPTED)

    def to_json(self) -> Json:
        return {name: one for name, one in asdict(self).items() if one is not None}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TurnEnded:
        """Read one that another process wrote; it is cut where it is too long, and fields that
        this version does not know are ignored. Raises UsageError."""
        given = {name: value.get(name) for name in _ENDED if value.get(name) is not None}
        for name, one in given.items():
            if name not in ("tool_calls", "state") and type(one) is not _ENDED[name]:
                raise UsageError(f"{name} of a turn's end cannot be {type(one).__name__}")
        try:
            state = TurnState(str(given.get("state", TurnState.COMPLETED)))
        except ValueError as error:
            raise UsageError(f"a turn cannot end as {given['state']!r}") from error
        if state is TurnState.RUNNING:
            raise UsageError("a turn that runs has not ended")
        calls = given.get("tool_calls") or ()
        if not isinstance(calls, list | tuple):
            raise UsageError("tool_calls of a turn's end is a list")
        tool_calls = tuple(_tool_call(one) for one in calls[:CALLS_MAX])
        return cls(**{**_cut(given, TEXT_MAX), "state": state, "tool_calls": tool_calls})


_ENDED: dict[str, type] = {
    "state": str,
    "text": str,
    "reason": str,
    "again": bool,
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
