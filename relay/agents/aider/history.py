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

A file of its own beside the template: the format of aider's log, of which the source knows nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

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
class Requested:
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
    """An answer begins."""

    continues: bool  # it goes on where the answer before was cut off: the model was asked to
    for_editor: bool  # another model turns the answer before into edits
    whole: bool  # the request shows that the answer before had come to its end


@dataclass(frozen=True, slots=True)
class Said:
    """A line of the answer, as the model wrote it."""

    text: str


Record = Requested | Foreign | Carried | Answered | Said


@dataclass(slots=True)
class History:
    """Takes the file's lines in the pieces in which they were read. Its fields are its checkpoint.

    ``last`` is the reader's to set: the first lines of what the model answered last.
    """

    mark: str = ""  # stands in each request of our own aider's; empty where no other writes
    marked: bool = False  # it stands in this request
    inside: str = ""  # "request", "answer" or nothing
    parts: bool = False  # this request holds lines that may look like anything
    role: str = ""  # of the last line of the request
    message: list[str] = field(default_factory=list)  # the first lines of its last message
    remembers: bool = False  # the request holds the last answer as the model's own
    stopped: bool = False  # … and that the person broke it off
    last: list[str] = field(default_factory=list)
    lines: int = 0  # of the answer

    def feed(self, lines: list[str]) -> Iterator[Record]:
        """Tell what these lines say, in their order; ``last`` is looked at again after each."""
        for at, line in enumerate(lines):
            head = _HEAD.fullmatch(line)
            if head and not (self.parts and at):
                if self.mark and self.inside == "request" and not self.marked:
                    yield Foreign()
                yield self._begin(head[1])
            elif self.inside == "request":
                yield from self._asked(line)
            elif self.inside == "answer" and line.startswith("ASSISTANT"):
                self.lines += 1
                if self.lines <= ANSWER_MAX:
                    yield Said(line.removeprefix("ASSISTANT").removeprefix(" "))

    def _begin(self, head: str) -> Record:
        if head == "TO LLM":
            self.inside, self.parts, self.role, self.message = "request", False, "", []
            self.remembers = self.stopped = self.marked = False
            return Requested()
        editor = self._repeats_last() and not self.remembers
        # In parts nothing can be recognised; the screen has been looked at long before.
        whole = editor or self.parts or (self.remembers and not self.stopped)
        self.inside, self.parts, self.lines = "answer", False, 0
        return Answered(self.role == "ASSISTANT", editor, whole)

    def _asked(self, line: str) -> Iterator[Record]:
        if line == "-------":
            self.remembers |= self.role == "ASSISTANT" and self._repeats_last()
            self.message = []
            return
        self.marked |= self.mark in line
        prefixed = _PREFIXED.match(line)
        if not prefixed or _PARTS.match(line):
            self.parts = True
        role, _, text = line.partition(" ")
        if prefixed:
            self.role = role
        if not self.message and self.remembers and text.startswith(_STOPPED):
            self.stopped = True
        if len(self.message) < KNOWN_BY:
            self.message.append(text.rstrip()[:LINE_HEAD])
        found = _MESSAGE.search(line) if self.role != "ASSISTANT" else None
        if found:
            yield Carried(line[found.start() :][:LINE_HEAD])

    def _repeats_last(self) -> bool:
        return bool(self.last) and self.message[: len(self.last)] == self.last
