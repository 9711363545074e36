"""The assistant's text as it grows: deltas and whole parts in, lines out. Pure.

Each text part of a message is a stream of its own, named by opencode's own ids, so that it has the
same name when it is read again after a restart. A part's last state carries its whole text; what
was missed of the deltas in between is taken from there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from relay.core.bounded import BoundedDict
from relay.core.source_events import Degraded, End, Line, SourceEvent

#: Parts that are remembered; the oldest are forgotten first.
PARTS_MAX = 256
#: Characters of one part; a longer one is cut off from there, visibly.
TEXT_MAX = 4 * 1024 * 1024
#: Seconds that a part which has its end waits for the news that it was broken off. The end of a
#: part that the person stops looks like any other; why it ended is told beside it.
SETTLE = 0.3


@dataclass(slots=True)
class Part:
    """One text part. ``heard`` counts the characters that went out; ``gap``: deltas were missed;
    ``due`` is when an ended part is believed to be complete."""

    message: str
    text: str = ""
    heard: int = 0
    gap: bool = False
    due: float | None = None
    closed: bool = False


class Parts:
    """The text parts of all messages that are heard."""

    def __init__(self) -> None:
        self._parts: BoundedDict[str, Part] = BoundedDict(PARTS_MAX)
        self._forgotten = ""  # the newest part that was forgotten: none before it is new

    def knows(self, part_id: str) -> bool:
        return part_id in self._parts

    def delta(self, part_id: str, delta: str) -> list[SourceEvent]:
        """More text at the end of a part."""
        part = self._parts.get(part_id)
        if part is None or part.closed or part.gap or part.due is not None:
            return []
        part.text += delta
        if len(part.text) > TEXT_MAX:
            lost: SourceEvent = Degraded("a message of more than 4 MiB was not heard to its end")
            return [lost, *self._close(part_id, part, aborted=True)]
        return self._lines(part_id, part)

    def begin(self, part_id: str, message: str, text: str, *, gap: bool) -> list[SourceEvent]:
        """A part is there, or there is more of it. ``gap``: its deltas may have been missed."""
        part = self._parts.get(part_id)
        if part is None:
            if part_id <= self._forgotten:
                return []
            part = Part(message)
            if (oldest := self._parts.put(part_id, part)) is not None:
                self._forgotten = max(self._forgotten, oldest[0])
        if part.closed or part.due is not None:
            return []
        part.gap = part.gap or gap
        if len(text) > len(part.text) and text.startswith(part.text):
            part.text = text[:TEXT_MAX]
        return self._lines(part_id, part)

    def finish(self, part_id: str, message: str, text: str, now: float) -> list[SourceEvent]:
        """A part is complete, with this text."""
        events = self.begin(part_id, message, "", gap=False)
        part = self._parts.get(part_id)
        if part is None or part.closed or part.due is not None:
            return events
        part.due = now + SETTLE
        before = part.text[: part.heard]
        if text.startswith(before):
            part.text = text[:TEXT_MAX]
        elif before.startswith(text):  # blanks at its end were taken off
            part.text = before
        else:
            events.append(Degraded("opencode changed what a message says after it had shown it"))
            part.text = before
        return events + self._lines(part_id, part)

    def settle(self, now: float) -> list[SourceEvent]:
        """What is complete by ``now``."""
        events: list[SourceEvent] = []
        for part_id, part in self._parts.items():
            if not part.closed and part.due is not None and now >= part.due:
                events += self._close(part_id, part)
        return events

    def next_deadline(self) -> float | None:
        """When ``settle`` has something to do."""
        due = [p.due for p in self._parts.values() if not p.closed and p.due is not None]
        return min(due, default=None)

    def confirm(self, message: str, besides: str = "") -> list[SourceEvent]:
        """The message goes on or is complete: its parts that have their end were not broken off."""
        events: list[SourceEvent] = []
        for part_id, part in self._of(message):
            if part.due is not None and part_id != besides:
                events += self._close(part_id, part)
        return events

    def abort(self, message: str) -> list[SourceEvent]:
        """The message was broken off."""
        events: list[SourceEvent] = []
        for part_id, part in self._of(message):
            events += self._close(part_id, part, aborted=True)
        return events

    def missed(self) -> None:
        """The stream was interrupted: only its last state tells what an open part says."""
        for part in self._parts.values():
            part.gap = part.gap or not part.closed

    def drop(self) -> None:
        """Others hear the rest of what is open."""
        for part in self._parts.values():
            part.closed, part.text = True, ""

    def all_over(self) -> list[SourceEvent]:
        """The agent has ended."""
        events: list[SourceEvent] = []
        for part_id, part in self._parts.items():
            if not part.closed:
                events += self._close(part_id, part, aborted=part.due is None)
        return events

    def open_messages(self) -> set[str]:
        """The messages with a part that is not closed."""
        return {part.message for part in self._parts.values() if not part.closed}

    def state(self) -> dict[str, Any]:
        """A JSON-able snapshot for :meth:`restore`."""
        parts = {part_id: asdict(part) for part_id, part in self._parts.items()}
        return {"parts": parts, "forgotten": self._forgotten}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        for part_id, part in state["parts"].items():
            self._parts[part_id] = Part(**part)
        self._forgotten = state["forgotten"]

    def _of(self, message: str) -> list[tuple[str, Part]]:
        return [
            (part_id, part)
            for part_id, part in self._parts.items()
            if part.message == message and not part.closed
        ]

    @staticmethod
    def _lines(part_id: str, part: Part) -> list[SourceEvent]:
        """The lines that are complete and were not heard yet."""
        end = part.text.rfind("\n") + 1
        if end <= part.heard:
            return []
        lines = part.text[part.heard : end - 1].split("\n")
        part.heard = end
        return [Line(part_id, line.rstrip("\r")) for line in lines]

    @staticmethod
    def _close(part_id: str, part: Part, *, aborted: bool = False) -> list[SourceEvent]:
        rest = part.text[part.heard :]
        part.closed, part.text = True, ""
        lines: list[SourceEvent] = [Line(part_id, rest)] if rest and not aborted else []
        return [*lines, End(part_id, aborted)]
