"""What a session needs from the packages above it: sources that hear, events that they yield.

A source is sans-io: bytes or hook events and the time go in, events come out. ``now`` is in
seconds of a monotonic clock everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from relay.core.message import AgentState


@dataclass(frozen=True, slots=True)
class Line:
    """One logical line that the agent said, complete, without its newline.

    ``stream`` names what it belongs to (the screen, or one message of a structured source);
    lines of one stream arrive in order.
    """

    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Pause:
    """The stream rests: a message that needs no closing mark is complete here."""

    stream: str


@dataclass(frozen=True, slots=True)
class End:
    """The stream is over: nothing more will come, an open block is a mistake.

    ``aborted``: it was broken off (the person stopped the agent), so that a message which is not
    complete is not sent.
    """

    stream: str
    aborted: bool = False


@dataclass(frozen=True, slots=True)
class GoesOn:
    """What was complete at the last pause was not: ``text``, the next line, goes on with it."""

    stream: str
    text: str


class LimitCause(StrEnum):
    """Why the model of a limited agent does not answer."""

    #: The usage limit of its account is reached, which others may share.
    USAGE = "usage"
    #: The API refuses it, and will refuse the next try: no right, no credit, no such model.
    REFUSED = "refused"
    #: An error; the next try may work.
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class StateChange:
    """The agent is now idle, busy, blocked (a dialog waits for the person) …

    ``retry``: seconds after which a limited agent is worth another try. ``cause``: why it is
    limited; ``reason`` is only shown. ``broken``: its turn was
    broken off, mostly by the person.
    """

    state: AgentState
    reason: str = ""
    retry: float | None = None
    broken: bool = False
    cause: LimitCause | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """Text that demonstrably reached the agent's model or screen; ids are looked for in it.

    ``by`` is how it is known: ``hook``, ``transcript`` or ``screen``.
    """

    text: str
    by: str


@dataclass(frozen=True, slots=True)
class Degraded:
    """The source failed or cannot do something; shown by ``relay status`` and ``relay doctor``.

    ``told`` is what the agent is told of it; nothing where it cannot do anything about it.
    """

    reason: str
    told: str = ""


@dataclass(frozen=True, slots=True)
class Entered:
    """A line that the person has entered, as far as the screen shows it: not the agent's words."""

    text: str


SourceEvent = Entered | Line | Pause | GoesOn | End | StateChange | Proof | Degraded


class Screen(Protocol):
    """What others must know of the agent's screen (offered by the screen source)."""

    @property
    def title(self) -> str:
        """The terminal's title."""
        ...

    @property
    def columns(self) -> int:
        """How wide it is."""
        ...

    @property
    def bracketed_paste(self) -> bool:
        """Whether the program has turned bracketed paste on."""
        ...

    @property
    def cursor(self) -> tuple[int, int]:
        """Column and row, from 0."""
        ...

    @property
    def cursor_shown(self) -> bool:
        """Whether the cursor can be seen, and so marks where the program writes next."""
        ...

    @property
    def changed_at(self) -> float:
        """When a row last changed, as far as is known yet; a cursor that blinks changes none."""
        ...

    def visible(self, *, styled: bool = False) -> list[str]:
        """The rows as displayed; ``styled``: with the sequences for their colours."""
        ...

    def expect_echo(self, text: str, now: float) -> None:
        """This is about to be typed by relay: not the agent's words when it shows."""
        ...


class Terminal(Protocol):
    """The agent's own side of its terminal: the line discipline and the unread input."""

    def cooked(self) -> bool:
        """Whether the kernel edits lines (canonical mode): the program reads whole lines."""
        ...

    def secret(self) -> bool:
        """Whether lines are read without echo: a password prompt."""
        ...

    def unread(self) -> int | None:
        """Bytes of input that the program has not read yet; None when the terminal is gone."""
        ...

    def reads(self) -> int | None:
        """How often the program has read something, or more seldom; None where nobody tells."""
        ...

    def waits(self) -> bool | None:
        """Whether what has the terminal waits for its input; None where nobody can tell."""
        ...
