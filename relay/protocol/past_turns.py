"""What is read of a transcript that another program has written, as it goes to the broker.

One ``PastTurns`` is what some bytes of one file hold. Its rows are named tuples, in JSON lists;
their ids are derived from what the program itself calls them, so that what is read twice, or was
copied into a second file, is one row. A *conversation* is what the program calls so, by its own id;
that of a sub-agent is ``PARENT/ITS_ID``. Times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_args, get_type_hints

from relay.core.errors import UsageError
from relay.core.ids import derived_ulid
from relay.protocol.turns import CALL_MAX, TEXT_MAX, TurnState

#: The programs whose transcripts are known: the ``source`` of their sessions.
CLAUDE, CODEX = "claude", "codex"
SOURCES = (CLAUDE, CODEX)
#: Characters of an id of the program's, of a path, of a reason.
WORD_MAX = 4096
#: Rows of one kind in one request, and levels of sub-agents.
ROWS_MAX = 10_000
_CUT = " [cut]"


class PastSession(NamedTuple):
    """A conversation; what is not known of it is None."""

    conversation: str
    parent: str | None
    project: str | None
    created_ms: int


class PastTurn(NamedTuple):
    """A turn of a conversation, which hangs from ``parent``: None begins the conversation, or
    goes on with that of the conversation's parent at that time."""

    id: str
    conversation: str
    parent: str | None
    source_id: str
    started_ms: int


class PastMessage(NamedTuple):
    """What was said in a turn. ``marks`` are those of relay's messages that it holds."""

    id: str
    turn: str
    role: str
    content: str
    created_ms: int
    marks: str = ""


class PastCall(NamedTuple):
    """A tool that was called; what is known of it later comes as a ``PastResult``."""

    id: str
    turn: str
    message: str | None
    name: str
    number: int
    params: str
    started_ms: int


class PastResult(NamedTuple):
    """What became of a tool call; ``child`` is the conversation that it has begun."""

    call: str
    result: str
    state: str
    completed_ms: int
    child: str | None


class PastEnd(NamedTuple):
    """How a turn stands by now. The numbers are of the whole turn."""

    turn: str
    state: str
    reason: str | None
    inferred: bool
    ended_ms: int
    model: str | None
    tokens_in: int | None
    tokens_out: int | None
    calls: int


@dataclass(slots=True)
class PastTurns:
    """The rows of some bytes of one file, in the order of their kinds."""

    sessions: list[PastSession] = field(default_factory=list)
    turns: list[PastTurn] = field(default_factory=list)
    messages: list[PastMessage] = field(default_factory=list)
    calls: list[PastCall] = field(default_factory=list)
    results: list[PastResult] = field(default_factory=list)
    ends: list[PastEnd] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _KINDS}

    @classmethod
    def from_json(cls, value: object) -> PastTurns:
        """Read what ``to_json`` made. Raises UsageError for anything else."""
        if not isinstance(value, Mapping):
            raise UsageError("what was read of a transcript is an object")
        return cls(**{name: _rows(kind, value.get(name) or []) for name, kind in _KINDS.items()})


_KINDS: dict[str, type[Any]] = {
    "sessions": PastSession,
    "turns": PastTurn,
    "messages": PastMessage,
    "calls": PastCall,
    "results": PastResult,
    "ends": PastEnd,
}
_TYPES = {
    kind: tuple(frozenset(get_args(hint) or (hint,)) for hint in get_type_hints(kind).values())
    for kind in _KINDS.values()
}
_STATES = frozenset(one.value for one in TurnState)
_LONG = {"content": TEXT_MAX, "params": CALL_MAX, "result": CALL_MAX}
_LENGTHS = {
    kind: tuple(_LONG.get(name, WORD_MAX) for name in kind._fields) for kind in _KINDS.values()
}


def _rows(kind: type[Any], value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > ROWS_MAX:
        raise UsageError(f"a list of at most {ROWS_MAX} rows is needed")
    types, lengths = _TYPES[kind], _LENGTHS[kind]
    made = []
    for row in value:
        if not isinstance(row, list) or len(row) != len(types):
            raise UsageError(f"a row of {kind.__name__} has {len(types)} columns")
        for one, possible, most in zip(row, types, lengths, strict=True):
            if type(one) not in possible:
                raise UsageError(f"{kind.__name__} cannot hold {str(one)[:100]!r}")
            if type(one) is str and len(one) > most:
                raise UsageError(f"a text of {kind.__name__} of more than {most} characters")
            if type(one) is int and not 0 <= one < 1 << 53:
                raise UsageError(f"a number of {kind.__name__} that cannot be: {one}")
        made.append(kind(*row))
    if kind is PastEnd and any(one.state not in _STATES for one in made):
        raise UsageError("a turn cannot stand so")
    return made


def past_id(source: str, at_ms: int, *key: str) -> str:
    """The id of a row that was read at this time: the same each time."""
    return derived_ulid(at_ms, "past", source, *key)


def shortened(text: str, most: int) -> str:
    """A text that can be stored: at most so long, without NUL and halves of surrogate pairs."""
    if len(text) > most:
        text = text[: most - len(_CUT)] + _CUT
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text.replace("\0", "\ufffd")
