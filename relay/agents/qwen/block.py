"""One block of the assistant's text while it is written. Pure.

Qwen Code asks the model again when an answer breaks off in the middle. What comes then is added to
the same block without a sign, from its beginning; only the record of the chat tells what each
answer held. The lines that come a second time were heard already.
"""

from __future__ import annotations

from typing import Any

from relay.core.source_events import End, Line, SourceEvent

#: Characters of a block that are remembered; of a longer one a second answer is not recognised.
TEXT_MAX = 256 * 1024

#: How Qwen Code ends an answer of which it records the beginning only.
_CUT = "...[truncated]"


class Block:
    """The block that is open, or none. Its ``stream`` is named after the first of its events."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self.stream: str | None = None
        self.closed = False  # nothing more comes, but whether it is whole is not known yet
        self.text = ""  # of the present answer
        self._partial = ""  # its last line, as far as it goes
        self._again: list[str] = []  # lines of the answer before it that may come again

    @property
    def open(self) -> bool:
        """Whether a block has begun of which it is not known that it is whole."""
        return self.stream is not None

    @property
    def writing(self) -> bool:
        """Whether the block is neither complete nor broken off."""
        return self.stream is not None and not self.closed

    def begin(self, stream: str) -> None:
        """A block begins; the one before it must have ended."""
        self.stream = stream

    def close(self) -> None:
        """The block is complete, or was broken off."""
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
        """What follows is another answer in the place of the one that is there."""
        self._again = self.text.split("\n")[:-1] + self._again
        self.text = self._partial = ""

    def add(self, text: str, stream: str) -> list[SourceEvent]:
        """The block goes on, or begins as ``stream``."""
        if self.stream is None:
            self.begin(stream)
        if len(self.text) < TEXT_MAX:
            self.text += text
        *whole, self._partial = (self._partial + text).split("\n")
        events: list[SourceEvent] = []
        for line in whole:
            events += self._line(line, stream)
        return events

    def complete(self) -> list[SourceEvent]:
        """The block, if there is one, is whole."""
        events = self._line(self._partial, f"{self.stream}.end") if self._partial else []
        if self.stream is not None:
            # The rest of an answer that is not to be is missing in the one that is.
            events.append(End(self.stream, aborted=bool(self._again)))
        self._clear()
        return events

    def break_off(self) -> list[SourceEvent]:
        """The block, if there is one, was not written to its end."""
        events: list[SourceEvent] = []
        if self.stream is not None:
            events.append(End(self.stream, aborted=True))
        self._clear()
        return events

    def state(self) -> dict[str, Any]:
        """A JSON-able snapshot for :meth:`restore`."""
        return {
            "stream": self.stream,
            "closed": self.closed,
            "text": self.text,
            "partial": self._partial,
            "again": self._again,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self.stream, self.closed = state["stream"], state["closed"]
        self.text, self._partial = state["text"], state["partial"]
        self._again = list(state["again"])

    def _line(self, line: str, stream: str) -> list[SourceEvent]:
        line = line.removesuffix("\r")
        events: list[SourceEvent] = []
        if self._again:
            if self._again.pop(0).removesuffix("\r") == line:
                return []
            # The new answer goes another way.
            self._again = []
            if self.stream is not None:
                events.append(End(self.stream, aborted=True))
            self.stream = stream
        assert self.stream is not None
        return [*events, Line(self.stream, line)]
