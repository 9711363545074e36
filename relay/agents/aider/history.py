"""aider's LLM history: what went to the model and what came back, line by line. Pure.

    TO LLM 2026-01-31T12:00:00
    -------
    SYSTEM Act as an expert …
    -------
    USER the message
    LLM RESPONSE 2026-01-31T12:00:03
    ASSISTANT the answer

Each record is written in one go: the request before it is sent, the answer when it is over (also
when it was broken off). Every line of a message begins with its role, so that no word of it can be
taken for the head of a record. Only messages in parts (images, prompt caching) stand there as they
are: in such a request only a head that begins a new piece of the file is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_HEAD = re.compile(r"(TO LLM|LLM RESPONSE) \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_PREFIXED = re.compile(r"(?:SYSTEM|USER|ASSISTANT|TOOL|FUNCTION|DEVELOPER)(?: |$)|-------$")
_PARTS = re.compile(r"(?:SYSTEM|USER|ASSISTANT) (?:type: |text: |Image_url URL: )")
_MESSAGE = re.compile(r"Relay (?:message|notice) \[")
_STOPPED = "^C KeyboardInterrupt"
#: Characters of one line of a request that are kept.
LINE_HEAD = 400
#: Lines by which a message is recognised when it comes back.
KNOWN_BY = 8
#: Lines of one answer; what is longer is cut off there.
ANSWER_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Asked:
    """A request begins: whatever was answered before it is over."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """The request before was another aider's, which writes into the same file."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A line of a request, by its beginning, that carries a message of relay's."""

    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer begins. ``continues``: it goes on where the answer before was cut off, because the
    model was asked to; ``for_editor``: another model turns the answer before into edits;
    ``whole``: the request shows that the answer before had come to its end."""

    continues: bool
    for_editor: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class Said:
    """A line of the answer, as the model wrote it."""

    text: str


Record = Asked | Foreign | Carried | Answered | Said


class History:
    """Takes the file's lines in the pieces in which they were read.

    ``last`` is for whoever reads: the first lines of what the model answered last. ``mark`` stands
    in each request of our own aider's; empty where nobody else writes into its file.
    """

    def __init__(self, mark: str = "") -> None:
        self.last: list[str] = []
        self._mark = mark
        self._marked = False  # it stands in this request
        self._inside = ""  # "request", "answer" or nothing
        self._parts = False  # this request holds lines that may look like anything
        self._role = ""  # of the last line of the request
        self._message: list[str] = []  # the first lines of its last message
        self._remembers = False  # the request holds the last answer as the model's own
        self._stopped = False  # … and that the person broke it off
        self._lines = 0

    def feed(self, lines: list[str]) -> Iterator[Record]:
        """What these lines tell, in their order; look at ``last`` again after each."""
        for at, line in enumerate(lines):
            head = _HEAD.fullmatch(line)
            if head and not (self._parts and at):
                if self._mark and self._inside == "request" and not self._marked:
                    yield Foreign()
                yield self._begin(head[1])
            elif self._inside == "request":
                yield from self._asked(line)
            elif self._inside == "answer" and line.startswith("ASSISTANT"):
                self._lines += 1
                if self._lines <= ANSWER_MAX:
                    yield Said(line.removeprefix("ASSISTANT").removeprefix(" "))

    def state(self) -> dict[str, Any]:
        """A JSON-able snapshot for :meth:`restore`."""
        return {
            "inside": self._inside,
            "parts": self._parts,
            "role": self._role,
            "message": self._message,
            "remembers": self._remembers,
            "stopped": self._stopped,
            "last": self.last,
            "lines": self._lines,
            "marked": self._marked,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self._inside, self._parts, self._role = state["inside"], state["parts"], state["role"]
        self._message, self.last = list(state["message"]), list(state["last"])
        self._remembers, self._stopped = state["remembers"], state["stopped"]
        self._lines, self._marked = state["lines"], state["marked"]

    def _begin(self, head: str) -> Record:
        if head == "TO LLM":
            self._inside, self._parts, self._role, self._message = "request", False, "", []
            self._remembers = self._stopped = self._marked = False
            return Asked()
        editor = self._repeats_last() and not self._remembers
        # In parts nothing can be recognised; the screen has been looked at long before.
        whole = editor or self._parts or (self._remembers and not self._stopped)
        self._inside, self._parts, self._lines = "answer", False, 0
        return Answered(self._role == "ASSISTANT", editor, whole)

    def _asked(self, line: str) -> Iterator[Record]:
        if line == "-------":
            self._remembers |= self._role == "ASSISTANT" and self._repeats_last()
            self._message = []
            return
        self._marked |= self._mark in line
        prefixed = _PREFIXED.match(line)
        if not prefixed or _PARTS.match(line):
            self._parts = True
        role, _, text = line.partition(" ")
        if prefixed:
            self._role = role
        if not self._message and self._remembers and text.startswith(_STOPPED):
            self._stopped = True
        if len(self._message) < KNOWN_BY:
            self._message.append(text.rstrip()[:LINE_HEAD])
        found = _MESSAGE.search(line) if self._role != "ASSISTANT" else None
        if found:
            yield Carried(line[found.start() :][:LINE_HEAD])

    def _repeats_last(self) -> bool:
        return bool(self.last) and self._message[: len(self.last)] == self.last
