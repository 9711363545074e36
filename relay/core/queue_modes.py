"""The queue modes: what a lane does next with what waits for it. Pure.

A lane takes one turn at a time: that of a persona's session, or of a wrapped agent. What waits is
handed in from the oldest; of that the highest priority goes first. A mode means:

* followup: first in, first out, a turn of its own each.
* steer: into the running turn, where the agent has a door for that; else a followup.
* collect: once it has been quiet for QUIET_MS, but COLLECT_MS after the first of them at the
  latest, one turn for all that may share one. Of more than COLLECTED_MAX the oldest are summarised.
* interrupt: the running turn is stopped, and this goes first. What was queued stays queued. Where
  the agent cannot be stopped it is a steer.

Nothing overtakes what is being collected but steers and interrupts; that delays it 5 s at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relay.core.message import QueueMode

#: How long nothing may have come before what was collected goes. Milliseconds.
QUIET_MS = 500
#: How long the first one waits at most. Milliseconds.
COLLECT_MS = 5000
#: Messages that a collected turn has in full, and at all; the others have the next one.
COLLECTED_MAX, TURN_MAX = 20, 100
#: Lines of a summary, and characters of each.
SUMMARY_LINES, SUMMARY_CHARS = 20, 160


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One message in the queue of a lane. Only those of the same ``share`` are collected together:
    whoever hands them in says there who is asking, what is permitted, and where the answer goes."""

    id: str
    mode: QueueMode
    arrived_ms: int
    priority: int = 0
    share: str = ""


@dataclass(frozen=True, slots=True)
class StartTurn:
    """Begin a turn with these messages, from the oldest; the first ``summarised`` of them are not
    given in full."""

    ids: tuple[str, ...]
    summarised: int = 0


@dataclass(frozen=True, slots=True)
class SteerTurn:
    """Give these messages to the running turn, one after the other."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopTurn:
    """Stop the running turn, for this message: once it has ended, ask again what is next."""

    id: str


@dataclass(frozen=True, slots=True)
class WaitQueue:
    """Look again at ``until_ms`` (None: not before something comes, or the turn ends)."""

    until_ms: int | None = None


QueueStep = StartTurn | SteerTurn | StopTurn | WaitQueue


def next_step(
    entries: Sequence[QueueEntry],
    now_ms: int,
    *,
    running_since_ms: int | None = None,
    steers: bool = False,
    interrupts: bool = False,
) -> QueueStep:
    """What the lane does now. ``running_since_ms``: when its turn began, None where it is idle;
    ``steers`` and ``interrupts``: what can be done to that turn.

    An interrupt stops only a turn that was there before it: of several, each has its turn.
    """
    waiting = sorted(entries, key=lambda one: -one.priority)  # stable: the oldest first
    interrupting = [one for one in waiting if one.mode is QueueMode.INTERRUPT]
    if running_since_ms is not None:
        stops = [one for one in interrupting if one.arrived_ms >= running_since_ms]
        if stops and interrupts:
            return StopTurn(stops[0].id)
        into = (QueueMode.STEER, QueueMode.INTERRUPT) if not interrupts else (QueueMode.STEER,)
        steering = tuple(one.id for one in waiting if one.mode in into)
        return SteerTurn(steering) if steering and steers else WaitQueue()
    if not waiting:
        return WaitQueue()
    first = (interrupting or waiting)[0]
    if first.mode is not QueueMode.COLLECT:
        return StartTurn((first.id,))
    return _collect([one for one in waiting if _together(one, first)], now_ms)


def _together(one: QueueEntry, other: QueueEntry) -> bool:
    return one.mode is other.mode and one.share == other.share


def _collect(group: Sequence[QueueEntry], now_ms: int) -> QueueStep:
    arrived = [one.arrived_ms for one in group]
    due = min(max(arrived) + QUIET_MS, min(arrived) + COLLECT_MS)
    if now_ms < due:
        return WaitQueue(due)
    ids = [one.id for one in sorted(group, key=lambda one: one.arrived_ms)][:TURN_MAX]
    return StartTurn(tuple(ids), max(0, len(ids) - COLLECTED_MAX))


def collected_text(messages: Sequence[tuple[str, str, str]], summarised: int) -> str:
    """One text for several messages (id, sender, text): the first ``summarised`` in one line each.

    Each line of a text is marked, so that none can look like the next message.
    """
    if len(messages) == 1 and not summarised:
        return messages[0][2]
    parts = [f"{len(messages)} messages came together."]
    if summarised:
        short = messages[:summarised]
        shown = [f"- {sender}: {_shortened(text)}" for _, sender, text in short[-SUMMARY_LINES:]]
        rest = len(short) - len(shown)
        more = [f"- and {rest} before these, from {short[0][0]} on (relay show ID)"] if rest else []
        head = f"The oldest {summarised}, shortened (relay show ID prints one; the first is"
        parts.append("\n".join([f"{head} {short[0][0]}):", *more, *shown]))
    for _, sender, text in messages[summarised:]:
        parts.append(f"From {sender}:\n{marked(text)}")
    return "\n\n".join(parts)


def marked(text: str) -> str:
    """``text`` with a bar before each of its lines: none of them can look like another's words."""
    return "\n".join(f"| {line}" for line in text.splitlines())


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SUMMARY_CHARS else line[: SUMMARY_CHARS - 1] + "…"
