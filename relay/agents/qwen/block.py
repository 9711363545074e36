"""Blocks of the assistant's text: the one that is written, and those still in doubt. Pure.

A file of its own beside the template: how an answer that is cut, stopped or given again becomes
lines is tested by itself.

Qwen Code asks the model again when an answer breaks off in the middle. What comes then is added to
the same block without a sign, from its beginning; only the record of the chat tells what each
answer held. The lines that come a second time were heard already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from relay.core.source_events import End, Line, SourceEvent

#: Characters of a block that are remembered; of a longer one a second answer is not recognised.
TEXT_MAX = 256 * 1024
#: Blocks that are in doubt at a time; the oldest is then taken as broken off.
DOUBTED_MAX = 8
#: How Qwen Code ends an answer of which it records the beginning only.
_CUT = "...[truncated]"


@dataclass(slots=True)
class Block:
    """The block that is open, or none. Its fields are its checkpoint."""

    stream: str | None = None  # named after the first of its events
    closed: bool = False  # nothing more comes, but whether it is whole is not known yet
    text: str = ""  # of the present answer
    partial: str = ""  # its last line, as far as it goes
    again: list[str] = field(default_factory=list)  # lines of the answer before that may come again

    def _clear(self) -> None:
        self.stream, self.closed, self.text, self.partial, self.again = None, False, "", "", []

    @property
    def open(self) -> bool:
        """Whether a block has begun of which it is not known that it is whole."""
        return self.stream is not None

    @property
    def writing(self) -> bool:
        """Whether the block is neither complete nor broken off."""
        return self.stream is not None and not self.closed

    def begin(self, stream: str) -> None:
        """Begin a block; the one before it must have ended."""
        self.stream = stream

    def close(self) -> None:
        """Note that nothing more comes: the block is complete, or was broken off."""
        self.closed = self.stream is not None

    def is_said_again(self, response: str, text: str) -> bool:
        """Whether an answer that held just this block has ended, and ``text`` begins another."""
        if not self.text:
            return False
        if response.endswith(_CUT):
            start = response.removesuffix(_CUT)
            return self.text.startswith(start) and start.startswith(text)
        return self.text == response

    def is_whole(self, response: str) -> bool:
        """Whether an answer with the text ``response`` ends with this block."""
        if not self.text:
            return False
        if response.endswith(_CUT):
            return self.text.startswith(response.removesuffix(_CUT))
        return response.endswith(self.text)

    def start_again(self) -> None:
        """Expect another answer in the place of the one that is there."""
        self.again = self.text.split("\n")[:-1] + self.again
        self.text = self.partial = ""

    def add(self, text: str, stream: str) -> list[SourceEvent]:
        """Add text to the block, or begin it as ``stream``."""
        if self.stream is None:
            self.begin(stream)
        if len(self.text) < TEXT_MAX:
            self.text += text
        *whole, self.partial = (self.partial + text).split("\n")
        events: list[SourceEvent] = []
        for line in whole:
            events += self._line(line, stream)
        return events

    def complete(self) -> list[SourceEvent]:
        """End the block, if there is one, as whole."""
        events = self._line(self.partial, f"{self.stream}.end") if self.partial else []
        if self.stream is not None:
            # The rest of an answer that is not to be is missing in the one that is.
            events.append(End(self.stream, aborted=bool(self.again)))
        self._clear()
        return events

    def break_off(self) -> list[SourceEvent]:
        """End the block, if there is one, as not written to its end."""
        events: list[SourceEvent] = []
        if self.stream is not None:
            events.append(End(self.stream, aborted=True))
        self._clear()
        return events

    def _line(self, line: str, stream: str) -> list[SourceEvent]:
        line = line.removesuffix("\r")
        events: list[SourceEvent] = []
        if self.again:
            if self.again.pop(0).removesuffix("\r") == line:
                return []
            # The new answer goes another way.
            self.again = []
            if self.stream is not None:
                events.append(End(self.stream, aborted=True))
            self.stream = stream
        assert self.stream is not None
        return [*events, Line(self.stream, line)]


class DoubtedBlocks:
    """Blocks of which it is not known yet whether they are whole, while the next ones begin.

    A turn that the person stops ends like one whose API counts no tokens. The record of the chat
    holds whole answers only, but it is written a moment later than the events: by then the person
    may have asked something else.
    """

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        #: The oldest first, each with the time since when (None: not known).
        self._blocks: deque[tuple[float | None, Block]] = deque((None, one) for one in blocks)

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def put(self, block: Block, since: float | None) -> list[SourceEvent]:
        """Keep ``block``, to which nothing is added any more, and when its doubt began."""
        self._blocks.append((since, block))
        return self._first().break_off() if len(self._blocks) > DOUBTED_MAX else []

    def recorded(self, answer: str) -> list[SourceEvent] | None:
        """End the block that the record of the chat holds as ``answer``; None when none is meant.

        Answers are recorded in order: what came before this one was stopped.
        """
        if not any(block.is_whole(answer) for _, block in self._blocks):
            return None
        events: list[SourceEvent] = []
        while not (block := self._first()).is_whole(answer):
            events += block.break_off()
        return events + block.complete()

    def late(self, now: float, patience: float) -> list[SourceEvent]:
        """End those that are not recorded after ``patience`` seconds: they were stopped."""
        known = ((now if since is None else since, block) for since, block in self._blocks)
        self._blocks = deque(known)
        events: list[SourceEvent] = []
        while self._blocks and now - (self._blocks[0][0] or 0.0) >= patience:
            events += self._first().break_off()
        return events

    def break_off(self) -> list[SourceEvent]:
        """End all: no answer is recorded any more."""
        events: list[SourceEvent] = []
        while self._blocks:
            events += self._first().break_off()
        return events

    def blocks(self) -> list[Block]:
        """Return the blocks for a checkpoint, in order; the next session has another clock."""
        return [block for _, block in self._blocks]

    def _first(self) -> Block:
        return self._blocks.popleft()[1]
