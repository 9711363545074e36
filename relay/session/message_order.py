"""The order in which waiting messages go to the agent, by their modes. Pure; times in seconds.

Followups and steers go as they come. The table of relay.core.queue_modes decides only while a
message collects or interrupts; the agent is its lane then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from relay.agents.base import Blocked
from relay.core.bounded import BoundedDict
from relay.core.message import Message, QueueMode
from relay.core.queue_modes import QueueEntry, QueueStep, StartTurn, SteerTurn, WaitQueue, next_step

#: Messages whose arrival is remembered: more than a session ever holds.
ARRIVED_MAX = 4096
#: Characters of one turn of collected messages, at most; others go in the next turn.
TOGETHER_MAX = 256 * 1024
#: The most waiting messages that a channel is shown.
AT_ONCE = 64
#: Why a collected message waits though the agent is idle.
COLLECTING = "it waits for what may follow it, and goes with that"
BUSY = Blocked("the agent is busy", 1.0)
_IN_TURN = (QueueMode.COLLECT, QueueMode.INTERRUPT)


class MessageOrder:
    """Knows when each message came, and decides which is next."""

    def __init__(self) -> None:
        self._arrived: BoundedDict[str, int] = BoundedDict(ARRIVED_MAX)

    def arrived(self, message: Message, now: float) -> None:
        """Note when a message came."""
        if message.mode in _IN_TURN:
            self._arrived[message.id] = _ms(now)

    def next(
        self, waiting: Collection[Message], now: float, running_since: float | None, *, steers: bool
    ) -> QueueStep | None:
        """The next step; None if no waiting message needs the table."""
        if not any(message.mode in _IN_TURN for message in waiting):
            return None
        entries = [
            QueueEntry(one.id, one.mode, self._arrived.get(one.id, 0), 0, _share(one))
            for one in waiting
            if one.sender_kind != "relay"
        ]
        since = None if running_since is None else _ms(running_since)
        return next_step(entries, _ms(now), running_since_ms=since, steers=steers, interrupts=True)


def ready_now(
    step: QueueStep | None,
    waiting: Collection[Message],
    held: Callable[[Message], Blocked | None],
    now: float,
) -> tuple[list[Message], Blocked | None]:
    """The ``waiting`` messages that may go now, oldest first, by the ``step`` of ``next``; if there
    are none, why the oldest waits. ``held`` says why a message's channel is not free.
    """
    if isinstance(step, StartTurn):
        by_id = {message.id: message for message in waiting}
        chosen = [by_id[id_] for id_ in step.ids]
        why = held(chosen[0])
        return ([], why) if why else (fitting(chosen), None)
    reason = None
    if step is not None:
        # relay's own messages and those for the running turn go, whatever else waits.
        into = step.ids if isinstance(step, SteerTurn) else ()
        waiting = [m for m in waiting if m.sender_kind == "relay" or m.id in into]
        due = step.until_ms if isinstance(step, WaitQueue) else None
        reason = BUSY if due is None else Blocked(COLLECTING, max(0.02, due / 1000 - now))
    ready: list[Message] = []
    for message in waiting:
        why = held(message)
        reason = reason or why
        if why is None:
            ready.append(message)
            if len(ready) == AT_ONCE:
                break
    return ready, reason


def fitting(group: Sequence[Message]) -> list[Message]:
    """The oldest messages of ``group`` that fit into one turn; at least one."""
    size = 0
    for number, message in enumerate(group):
        size += len(message.body)
        if number and size > TOGETHER_MAX:
            return list(group[:number])
    return list(group)


def _share(message: Message) -> str:
    """The key of messages that may share a turn: their words have the same authority."""
    return f"{message.sender_kind}/{message.proven}/{message.permissions}"


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
