"""Steer mode: messages that reach a busy agent inside its running turn, without stopping it.

There are two ways. An agent whose message interface works inside a running turn gets them there
(``waits`` in typing_policy keeps all other messages out until the turn is over). Any other agent
whose hooks ask after a tool call gets them with the answer, as additional context for its model
(``Steering``). If there is neither, or no tool is called before the turn ends, they wait like the
others. Nothing is ever interrupted.

A message that goes with an answer is ``submitted`` once the answer has gone out, and ``seen`` when
the agent's own records show it or its model has been asked again. If the turn ends without such a
proof, the message did not arrive, and waits again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from relay.agents.context_door import InjectionProof
from relay.agents.hook_codec import AgentHookCall
from relay.core.message import AgentState, Message, QueueMode, State
from relay.directive.envelope import Envelope, envelope, marker_of
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated
from relay.session.background import Tasks
from relay.session.broker_reports import BrokerReports
from relay.session.delivery import DeliveryQueue

#: Messages that go with one answer, and their bytes.
MESSAGES_MAX = 8
BYTES_MAX = 64 * 1024
#: Seconds that the agent waits until the broker has stored ``delivering``.
WRITTEN_DOWN = 1.0
#: Seconds after the end of a turn in which the agent's records show a given message, or never will.
PROOF_PATIENCE = 3.0


def chosen(
    waiting: list[Message], size: Callable[[Message], int], room: int = BYTES_MAX
) -> list[Message]:
    """The ``waiting`` messages (oldest first) that go with one answer. One that never fits is
    passed over, and goes after the turn. ``size`` and ``room`` (of an answer) are in bytes."""
    found: list[Message] = []
    left = room
    for message in waiting:
        needed = size(message)
        if needed > room:
            continue
        if needed > left or len(found) == MESSAGES_MAX:
            break
        found.append(message)
        left -= needed
    return found


@dataclass(slots=True)
class _Given:
    """A message on its way with an answer; ``out``: the answer has gone out."""

    message: Message
    out: bool = False


class HookAttachment:
    """Messages that go with one answer. Call ``sent`` once, whatever becomes of the answer."""

    def __init__(self, text: str, sent: Callable[[bool], None]) -> None:
        self.text = text
        self.sent = sent


class Steering:
    """Gives waiting messages to an agent with the answers to its hooks."""

    def __init__(
        self,
        queue: DeliveryQueue,
        records: InjectionProof,
        reports: BrokerReports,
        tasks: Tasks,
        clock: Callable[[], float],
        *,
        landing_takes: float = PROOF_PATIENCE,
    ) -> None:
        """``landing_takes``: so many seconds after the start the agent's records show what an
        earlier session has given."""
        self._queue = queue
        self._records = records
        self._reports = reports
        self._tasks = tasks
        self._clock = clock
        self._settled = clock() + landing_takes
        self._given: dict[str, _Given] = {}  # by their markers

    async def attach(self, call: AgentHookCall, result: Aggregated) -> HookAttachment | None:
        """The messages that go with the answer to ``call``; usually None."""
        if call.event is not HookEventName.AFTER_TOOL or result.stop:
            return None
        if not self._queue.waiting(self._wanted) or not self._records.room:
            return None
        if not await self._records.own(call):
            return None
        room = self._records.room - len(result.context.encode())
        messages = chosen(self._queue.waiting(self._wanted), self._size, min(room, BYTES_MAX))
        if not messages:
            return None
        self._queue.claim(messages)
        for message in messages:
            self._given[marker_of(message)] = _Given(message)
        try:
            async with asyncio.timeout(WRITTEN_DOWN):
                # As always, the broker knows it before the first byte goes.
                there = await asyncio.gather(
                    *(self._reports.delivery(m, State.DELIVERING) for m in messages)
                )
            for message, kept in zip(messages, there, strict=True):
                if not kept:  # withdrawn meanwhile
                    del self._given[marker_of(message)]
            messages = [m for m in messages if marker_of(m) in self._given]
            if not messages:
                return None
            self._records.giving([marker_of(m) for m in messages])
        except BaseException as error:
            self._sent(messages, False)
            if isinstance(error, (TimeoutError, OSError)):
                return None
            raise
        text = "\n\n".join(self._wrap(message).text for message in messages)
        return HookAttachment(text, lambda out: self._sent(messages, out))

    def proven(self, text: str, by: str) -> list[tuple[Message, str]]:
        """The messages whose markers are in ``text``, which reached the agent: they are seen."""
        markers = [marker for marker in self._given if marker in text]
        return [(self._given.pop(marker).message, by) for marker in markers]

    def landed(self) -> list[tuple[Message, str]]:
        """The messages that have arrived by records that do not show their words."""
        out = [] if self._records.shows else [m for m, given in self._given.items() if given.out]
        markers = [marker for marker in out if self._records.landed(marker)]
        return [(self._given.pop(marker).message, "hook") for marker in markers]

    def state_changed(self, state: AgentState) -> None:
        """The agent's state has changed: after a turn, messages that did not arrive wait again."""
        if state in (AgentState.IDLE, AgentState.LIMITED) and self._given:
            out = {marker: given for marker, given in self._given.items() if given.out}
            if out:
                self._tasks.spawn(self._look_back(out))

    async def _look_back(self, given: dict[str, _Given]) -> None:
        await asyncio.sleep(PROOF_PATIENCE)
        lost = []
        for marker, one in given.items():
            if self._given.get(marker) is one and not self._records.landed(marker):
                del self._given[marker]
                lost.append(replace(one.message, attempt=one.message.attempt + 1))
        self._take_back(lost)

    def _sent(self, messages: list[Message], out: bool) -> None:
        """The answer has gone out, or never will."""
        unseen = [m for m in messages if marker_of(m) in self._given]
        for message in unseen if out else []:
            self._given[marker_of(message)].out = True
            self._tasks.spawn(self._reports.delivery(message, State.SUBMITTED))
        if not out:
            for message in unseen:
                del self._given[marker_of(message)]
            self._take_back(unseen)

    def _take_back(self, messages: list[Message]) -> None:
        if messages:
            self._queue.give_back(messages)
            self._records.kept([marker_of(m) for m in messages])

    def _wanted(self, message: Message) -> bool:
        if message.mode is not QueueMode.STEER:
            return False
        # After an earlier attempt the records have to be read first.
        return not message.attempt or (
            self._clock() >= self._settled and not self._records.landed(marker_of(message))
        )

    def _wrap(self, message: Message) -> Envelope:
        return envelope(message, style="paste")

    def _size(self, message: Message) -> int:
        return len(self._wrap(message).text.encode()) + 2
