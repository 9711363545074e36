"""A delivery channel: one way into an agent, by its terminal or by an interface of its own.

A channel hands over whole messages and reports how far each got. It never retries by itself:
:mod:`relay.session.delivery` does, once it has checked whether the last attempt arrived.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from relay.agents.base import Blocked
from relay.core.message import Message
from relay.core.source_events import Screen, Terminal
from relay.session.agent_questions import OpenQuestions
from relay.session.typing_policy import Guards


@dataclass(frozen=True, slots=True)
class Submitted:
    """How many messages of a batch were handed over whole; of the others not a byte went."""

    count: int
    hold: Blocked | None = None


class WriteLink(Protocol):
    """The part of the pump link that typing needs."""

    async def write(
        self, data: bytes, *, write_id: int, sequence: int, offset: int | None = None
    ) -> bool | None: ...


@dataclass(frozen=True, slots=True)
class AgentTerminal:
    """The terminal of one agent, for whatever presses keys there."""

    link: WriteLink
    terminal: Terminal
    screen: Screen
    guards: Guards
    questions: OpenQuestions
    clock: Callable[[], float]


def write_id(message: Message, step: str) -> int:
    """The same number for the same bytes of the same message, also after a restart."""
    digest = hashlib.sha256(f"{message.id}/{message.to}/{step}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF


def in_pieces(typed: bytes, most: int) -> list[bytes]:
    """Whole lines in pieces of at most ``most`` bytes (a longer line stands alone)."""
    chunks: list[bytes] = []
    current = b""
    for line in typed.splitlines(keepends=True):
        if current and len(current) + len(line) > most:
            chunks.append(current)
            current = b""
        current += line
    return [*chunks, current] if current else chunks


class DeliveryChannel(Protocol):
    """One way into an agent."""

    def hold(self, now: float) -> Blocked | None:
        """Why nothing may be handed over now."""
        ...

    def batch(self, waiting: Sequence[Message]) -> list[Message]:
        """Which of the waiting messages, oldest first, go over in one piece."""
        ...

    @property
    def combines(self) -> bool:
        """Whether several messages can be handed over as one text, with a proof for each."""
        ...

    async def submit(self, batch: list[Message]) -> Submitted:
        """Hand the batch over, in order; says how many went and why no more."""
        ...

    async def finish(self) -> bool:
        """Press Enter for a text that was left in the input line; whether there is one."""
        ...

    async def read(self, batch: list[Message]) -> str | None:
        """Wait until the program has taken the batch. Returns the proof, if there is one."""
        ...

    def shown(self, message: Message) -> bool:
        """Whether there is a proof by now that a submitted message was taken."""
        ...

    @property
    def unproven(self) -> str:
        """Why there is no proof that the last batch was taken, or why it is still being handed
        over; empty where the proof is still expected."""
        ...

    def landed(self, message: Message) -> bool:
        """Whether an earlier attempt, perhaps of a killed session, has arrived."""
        ...

    @property
    def landing_takes(self) -> float:
        """After so many seconds ``landed`` knows of all attempts of earlier sessions."""
        ...

    @property
    def proves_reading(self) -> bool:
        """Whether bytes that are no longer unread prove that a message was seen."""
        ...

    def left_unread(self, unread: int) -> list[Message]:
        """Which messages were not read, when the last ``unread`` bytes of the input were not."""
        ...

    def throw_away(self, unread: int) -> list[tuple[Message, bool]]:
        """Forget the last ``unread`` bytes; the messages among them, newest first, and whether
        all of each was."""
        ...
