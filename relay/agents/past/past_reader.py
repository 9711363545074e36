"""Reads what a program has written of its past conversations: lines in, rows of turns out. Pure.

A file may be anybody's: a line is a record of the expected form, or it is passed over. Nothing of
it is trusted, and whatever is kept from line to line is bounded. What a reader knows between two
lines is its ``state``, from which another one goes on.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from relay.core.bounded import BoundedDict
from relay.protocol.past_turns import (
    WORD_MAX,
    PastCall,
    PastEnd,
    PastMessage,
    PastResult,
    PastSession,
    PastTurn,
    PastTurns,
    past_id,
    shortened,
)
from relay.protocol.turns import CALL_MAX, TEXT_MAX, TurnState

#: Turns that run beside each other (those of sub-agents) and are known.
RUNNING_MAX = 32
#: Tool calls that are remembered until their results come.
CALLS_MAX = 128
#: Messages of relay's in one prompt.
MARKS_MAX = 64
#: The header that relay types before a message (relay.directive.envelope).
_MARK = re.compile(r"^Relay (?:message|notice) \[([0-9A-Z]{8}_[0-9A-Z]{6})\]", re.MULTILINE)


class OpenTurn:
    """What is known of a turn that may go on."""

    __slots__ = (
        *("id", "state", "reason", "inferred", "ended_ms", "model", "calls", "tokens", "said"),
        "works",
    )

    def __init__(self, id_: str, started_ms: int) -> None:
        self.id = id_
        self.state = TurnState.RUNNING.value
        self.reason: str | None = None
        self.inferred = False
        self.ended_ms = started_ms
        self.model: str | None = None
        self.calls = 0
        #: Into and out of the model; None where nothing is told.
        self.tokens: list[int] | None = None
        #: The last message of the assistant's.
        self.said: str | None = None
        #: Something is to follow what came last: it is no word of the assistant's.
        self.works = True

    def end(self) -> PastEnd:
        into, out = self.tokens or (None, None)
        return PastEnd(
            *(self.id, self.state, self.reason, self.inferred, self.ended_ms, self.model),
            *(into, out, self.calls),
        )

    def to_json(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def from_json(cls, value: list[Any]) -> OpenTurn:
        made = cls(value[0], value[4])
        for name, one in zip(cls.__slots__, value, strict=True):
            setattr(made, name, one)
        return made


class PastReader(ABC):
    """One file of one program, from the line on to which ``state`` belongs."""

    source: str
    #: How lines begin that are large and of no concern.
    passes: tuple[bytes, ...] = ()

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.rows = PastTurns()
        #: Characters in ``rows``, about.
        self.size = 0
        self.running: BoundedDict[str, OpenTurn] = BoundedDict(
            RUNNING_MAX,
            ((key, OpenTurn.from_json(one)) for key, one in state.get("running", [])),
        )
        self.called: BoundedDict[str, tuple[str, str]] = BoundedDict(
            CALLS_MAX, ((key, (one[0], one[1])) for key, one in state.get("called", []))
        )
        self._told: dict[str, PastSession] = {}
        self._touched: set[str] = set()

    @abstractmethod
    def read(self, record: dict[str, Any]) -> None:
        """Take one record."""

    @property
    def settled(self) -> bool:
        """Whether no turn goes on."""
        return all(one.state != TurnState.RUNNING for one in self.running.values())

    def release(self) -> None:
        """Nobody goes on with it for now: turns are over as they stand."""
        for turn in self.running.values():
            if turn.state == TurnState.RUNNING:
                self._infer(turn)

    def state(self) -> dict[str, Any]:
        """What ``__init__`` takes."""
        return {
            "running": [[key, one.to_json()] for key, one in self.running.items()],
            "called": [[key, list(one)] for key, one in self.called.items()],
        }

    def take(self) -> PastTurns:
        """The rows since the last call."""
        rows, self.rows, self.size = self.rows, PastTurns(), 0
        rows.ends += [one.end() for one in self.running.values() if one.id in self._touched]
        rows.sessions = list(self._told.values())
        self._touched, self._told = set(), {}
        return rows

    # -- what the records mean

    def session(self, conversation: str, parent: str | None, project: object, at_ms: int) -> None:
        """A record belongs to this conversation."""
        if conversation not in self._told:
            place = shortened(project, WORD_MAX) if isinstance(project, str) else None
            self._told[conversation] = PastSession(conversation, parent, place, at_ms)

    def begin(
        self, conversation: str, key: str, parent: str | None, source_id: str, at_ms: int
    ) -> OpenTurn:
        """A turn begins. ``key`` is what of its conversation runs one turn at a time."""
        before = self.running.get(key)
        if before is not None and before.state == TurnState.RUNNING:
            self._infer(before)
        if before is not None and before.id in self._touched:
            self.rows.ends.append(before.end())
        turn = OpenTurn(past_id(self.source, at_ms, source_id), at_ms)
        gone = self.running.put(key, turn)
        if gone is not None and gone[1].id in self._touched:
            self.rows.ends.append(gone[1].end())
        self._touched.add(turn.id)
        self.rows.turns.append(PastTurn(turn.id, conversation, parent, source_id, at_ms))
        self.size += 200
        return turn

    def say(self, turn: OpenTurn, role: str, text: str, at_ms: int, *key: str) -> None:
        """Something was said in the turn."""
        if not text:
            return
        id_ = past_id(self.source, at_ms, *key)
        text = shortened(text, TEXT_MAX)
        marks = "" if role == "assistant" else " ".join(_MARK.findall(text)[:MARKS_MAX])
        self.rows.messages.append(PastMessage(id_, turn.id, role, text, at_ms, marks))
        self.size += len(text) + 150
        turn.works = role != "assistant"
        if not turn.works:
            turn.said = id_
        self.touch(turn, at_ms)

    def call(
        self, turn: OpenTurn, name: object, params: object, at_ms: int, call: object, *key: str
    ) -> None:
        """A tool was called; ``call`` is what the program calls the call."""
        turn.calls += 1
        turn.works = True
        id_ = past_id(self.source, at_ms, "call", *key)
        given = json_of(params)
        named = shortened(str(name or "?"), 256)
        self.rows.calls.append(PastCall(id_, turn.id, turn.said, named, turn.calls, given, at_ms))
        self.size += len(given) + 200
        if isinstance(call, str) and len(call) <= 256:
            self.called[call] = (id_, turn.id)
        self.touch(turn, at_ms)

    def result(
        self, call: object, result: object, state: str, at_ms: int, child: str | None = None
    ) -> None:
        """A tool has run, or was refused."""
        known = self.called.pop(call, None) if isinstance(call, str) else None
        if known is not None:
            said = json_of(result)
            self.rows.results.append(PastResult(known[0], said, state, at_ms, child))
            self.size += len(said) + 100

    def touch(self, turn: OpenTurn, at_ms: int) -> None:
        """Something of the turn was read."""
        turn.ended_ms = max(turn.ended_ms, at_ms)
        self._touched.add(turn.id)

    def over(
        self,
        turn: OpenTurn,
        state: TurnState,
        at_ms: int,
        reason: str | None = None,
        *,
        inferred: bool = False,
    ) -> None:
        """The turn has ended."""
        turn.state, turn.inferred = state.value, inferred
        turn.reason = None if reason is None else shortened(reason, 1024)
        self.touch(turn, at_ms)

    def _infer(self, turn: OpenTurn) -> None:
        state = TurnState.INTERRUPTED if turn.works else TurnState.COMPLETED
        self.over(turn, state, turn.ended_ms, inferred=True)


#: Makes the reader of a file whose state (of an earlier one) is given.
MakeReader = Callable[[Mapping[str, Any]], PastReader]


def json_of(value: object) -> str:
    """What a tool was given or gave back: its text, or JSON; shortened."""
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except RecursionError:
            value = "[nested too deep]"
    return shortened(value, CALL_MAX)


def milliseconds_of(value: object) -> int:
    """Read an ISO 8601 time; 0 for anything else."""
    if isinstance(value, str):
        try:
            return max(0, round(datetime.fromisoformat(value).timestamp() * 1000))
        except (ValueError, OverflowError):
            return 0
    return 0


def whole(value: object) -> int:
    """A number of tokens; 0 for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 40 else 0
