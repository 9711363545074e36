"""What a scripted model can be told to do, and the beats in which an answer is given.

``Shell``, ``Write`` and ``Read`` are tool calls without a tool's name: each agent has tools of its
own, and the request says which (tools.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Say:
    """One text block, streamed in pieces of ``chunk`` characters, ``delay`` seconds apart.

    With a ``gate`` the stream is held there after ``at`` characters, in the middle of the block, or
    for ``pause`` seconds.
    """

    text: str
    chunk: int = 16
    delay: float = 0.0
    gate: str = ""
    at: int = 0
    pause: float = 0.0

    def pieces(self) -> Iterator[str]:
        """What is sent at a time; "" stands where the gate or the pause is."""
        halves = (self.text[: self.at], self.text[self.at :])
        parts = halves if self.gate or self.pause else (self.text,)
        for number, part in enumerate(parts):
            if number:
                yield ""
            for start in range(0, len(part), self.chunk):
                yield part[start : start + self.chunk]


@dataclass(frozen=True)
class Think:
    """One thinking block."""

    text: str


@dataclass(frozen=True)
class Tool:
    """One tool call by the tool's exact name."""

    name: str
    input: dict[str, Any]


@dataclass(frozen=True)
class Shell:
    """Run a command with the agent's own shell tool."""

    command: str


@dataclass(frozen=True)
class Write:
    """Make a file with the agent's own way for it; ``path`` is absolute."""

    path: str
    text: str


@dataclass(frozen=True)
class Read:
    """Read a file with the agent's own tool for it; ``path`` is absolute."""

    path: str


@dataclass(frozen=True)
class Gate:
    """Hold the stream here until the test calls ``model.open(name)``."""

    name: str


@dataclass(frozen=True)
class Fail:
    """Answer with an HTTP error in place of a message."""

    status: int
    message: str = "scripted failure"


@dataclass(frozen=True)
class Repeat:
    """Say, or run, what the message of ``relay agent check`` asks for (programs/parrot.py)."""


Step = Say | Think | Tool | Shell | Write | Read | Gate | Fail | Repeat
#: A step that makes a block of the answer, tools by their names.
Block = Say | Think | Tool


@dataclass(frozen=True)
class Open:
    """A block begins."""

    block: Block


@dataclass(frozen=True)
class Piece:
    """A piece of the block's text."""

    block: Say | Think
    text: str


@dataclass(frozen=True)
class Close:
    """A block ends."""

    block: Block


Beat = Open | Piece | Close


@dataclass(frozen=True)
class Answer:
    """What is to be said to one request: the model's name, and the blocks with gates between."""

    model: str
    steps: tuple[Block | Gate, ...]

    @property
    def blocks(self) -> list[Block]:
        """The answer as it is when it is not streamed."""
        return [step for step in self.steps if not isinstance(step, Gate)]

    @property
    def text(self) -> str:
        return "".join(step.text for step in self.steps if isinstance(step, Say))

    @property
    def calls(self) -> list[Tool]:
        return [step for step in self.steps if isinstance(step, Tool)]

    def beats(
        self, hold: Callable[[str], object], pause: Callable[[float], object]
    ) -> Iterator[Beat]:
        """The answer as it is streamed; ``hold`` waits at a gate, ``pause`` so many seconds."""
        for step in self.steps:
            if isinstance(step, Gate):
                hold(step.name)
                continue
            yield Open(step)
            if isinstance(step, Think):
                yield Piece(step, step.text)
            elif isinstance(step, Say):
                for piece in step.pieces():
                    if not piece:
                        if step.gate:
                            hold(step.gate)
                        pause(step.pause)
                        continue
                    yield Piece(step, piece)
                    if step.delay:
                        pause(step.delay)
            yield Close(step)
