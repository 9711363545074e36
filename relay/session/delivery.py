"""One agent's incoming messages, in order: each goes over once, and is accounted for.

The states that the sender sees are reported from here: ``delivering`` before the first byte goes
over, ``submitted`` after the last, ``seen`` when it is proven, and ``queued`` with the reason while
something stands in the way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from relay.agents.base import Blocked
from relay.core.errors import RelayError
from relay.core.message import Message, QueueMode, State
from relay.core.queue_modes import StopTurn
from relay.directive.envelope import marker_of
from relay.session.broker_reports import BrokerReports
from relay.session.delivery_channel import DeliveryChannel, Submitted
from relay.session.message_order import MessageOrder, ready_now
from relay.session.native_channel import ChannelSelector
from relay.session.turn_stopper import CANNOT, STOPPING, UNSTOPPED, TurnStopper
from relay.session.typing_policy import ON_ITS_WAY, Guards

#: A wait shorter than this is not worth telling the sender about.
HELD_AFTER = 1.0
#: Why nothing goes over for a moment: its words would be taken for those of the turn before.
SETTLING = "the turn before it is being written down"
#: Look again at least this often while something stands in the way.
LOOK_AGAIN = 1.0
#: What went over is looked for on the agent's screen for so many seconds, of so many messages.
PROOF_PATIENCE = 600.0
PROOFS_AT_ONCE = 16
#: At the agent's end: how long what is being handed over may take to be accounted for.
CLOSING = 1.0


class DeliveryQueue:
    """Takes messages from the broker and brings them to the agent, first in, first out."""

    def __init__(
        self,
        channels: ChannelSelector,
        reports: BrokerReports,
        guards: Guards,
        clock: Callable[[], float],
        stopper: TurnStopper,
        *,
        steers: bool,
        settling: Callable[[float], bool] = lambda now: False,
    ) -> None:
        """``steers``: messages can go into the running turn. ``settling``: the last words of a turn
        that somebody waits for may still come."""
        self._channels = channels
        self._reports = reports
        self._guards = guards
        self._clock = clock
        self._stopper = stopper
        self._steers = steers
        self._settling = settling
        self._order = MessageOrder()
        self._waiting: deque[Message] = deque()
        self._in_hand: set[str] = set()  # ids of those that a channel is about to take
        self._unproven: OrderedDict[str, Message] = OrderedDict()  # marker -> submitted message
        self._over_at = 0.0  # when a message last went over
        self._wake = asyncio.Event()
        self._holding = ""  # why nothing goes through at present
        self._since = 0.0  # … and since when
        self._told: set[str] = set()  # ids whose senders know it
        self._started = clock()
        self._accounted: asyncio.Future[Any] | None = None  # the reports of the last batch
        self._handed_over = asyncio.Event()  # cleared while a channel is at work
        self._handed_over.set()

    def offer(self, message: Message) -> None:
        """Take a message that has not come before."""
        self._channels.offered(message)
        self._order.arrived(message, self._clock())
        if message.mode is QueueMode.INTERRUPT and not self._stopper.can:
            message = self._as_steer(message, CANNOT)
        self._waiting.append(message)
        self._wake.set()

    def _as_steer(self, message: Message, why: str) -> Message:
        """What interrupts nobody goes into the running turn, or waits for its end."""
        self._reports.remark(message, why)
        return replace(message, mode=QueueMode.STEER)

    def waiting(self, wanted: Callable[[Message], bool]) -> list[Message]:
        """Which of those that wait are ``wanted``, oldest first; none that a channel takes now."""
        return [m for m in self._waiting if m.id not in self._in_hand and wanted(m)]

    def claim(self, chosen: list[Message]) -> None:
        """These go with the answers to hooks: no channel gets them from now on."""
        for message in chosen:
            self._waiting.remove(message)

    def give_back(self, messages: list[Message]) -> None:
        """What was claimed did not get in: it waits again, before what was sent later."""
        for message in messages:
            at = next((n for n, one in enumerate(self._waiting) if one.id > message.id), None)
            self._waiting.insert(len(self._waiting) if at is None else at, message)
        self._wake.set()

    def underway(self, now: float) -> float | None:
        """Seconds for which something has been on its way that is not seen; None: nothing is."""
        return now - self._over_at if self._unproven else None

    def look_again(self) -> None:
        """Something changed that may let a message through."""
        self._wake.set()

    async def thrown_away(self, unread: int) -> None:
        """The person pressed Ctrl-C: the last ``unread`` bytes of the input will never be read.

        A message that is among them whole is typed again; of one that was read in part nobody can
        tell what it did, so it has failed.
        """
        lost = [
            (m, whole)
            for channel in (self._read_by() if unread else ())
            for m, whole in channel.throw_away(unread)
            if marker_of(m) in self._unproven
        ]
        for message, whole in lost:
            del self._unproven[marker_of(message)]
            if whole:
                self._waiting.appendleft(message)
            else:
                reason = "Ctrl-C threw a part of it away before it was read"
                await self._reports.delivery(message, State.FAILED, reason)
        self._wake.set()

    def tell_again(self) -> None:
        """The broker has come back: it may have forgotten why messages are held."""
        self._told.clear()

    def proven(self, text: str, by: str) -> list[tuple[Message, str]]:
        """The submitted messages whose markers stand in ``text``; they are proven seen."""
        found = []
        if self._unproven:
            for marker in [marker for marker in self._unproven if marker in text]:
                found.append((self._unproven.pop(marker), by))
        return found

    async def close(self, unread: int | None) -> None:
        """The agent is gone, with ``unread`` bytes of its input left (None: nobody knows).

        What it had read by then is seen; the rest stays submitted, and the broker offers it to
        the agent that has the name next.
        """
        with contextlib.suppress(TimeoutError):
            # What went over a moment ago is accounted for first.
            async with asyncio.timeout(CLOSING):
                await self._handed_over.wait()
        await self._settled()
        ways = self._read_by()
        if unread is None or not ways:
            return
        left = {message.id for channel in ways for message in channel.left_unread(unread)}
        gone = self._unproven.values()
        read = [m for m in gone if m.id not in left and self._channels.way(m) in ways]
        self._unproven.clear()
        await asyncio.gather(*(self._reports.delivery(m, State.SEEN, proof="read") for m in read))

    def _read_by(self) -> set[DeliveryChannel]:
        """The ways in which bytes that were read are a proof."""
        return {channel for channel in self._channels.ways() if channel.proves_reading}

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            try:
                await self._step()
            except RelayError as error:
                # Such as the agent's end. What follows must not depend on this one message.
                await self._wait_out(Blocked(error.message, LOOK_AGAIN))

    async def _step(self) -> None:
        watched = await self._find_proofs()
        left = False
        for channel in self._channels.ways():
            left |= await channel.finish()
        if not self._waiting:
            await self._rest(LOOK_AGAIN if watched or left else None)
            return
        now = self._clock()
        if self._settling(now):
            await self._wait_out(Blocked(SETTLING, 0.1))
            return
        since = self._turn_since(now)
        step = self._order.next(self._waiting, now, since, steers=self._steers)
        if isinstance(step, StopTurn):
            await self._stop(next(m for m in self._waiting if m.id == step.id))
            return
        held = self._guards.limited(now)
        if held is not None:
            await self._wait_out(held)
            return
        ready, held = ready_now(step, self._waiting, self._held_at(now), now)
        if ready:
            channel = self._channels.way(ready[0])
            await self._deliver(channel, [m for m in ready if self._channels.way(m) is channel])
        elif held is not None:
            await self._wait_out(held)

    def _held_at(self, now: float) -> Callable[[Message], Blocked | None]:
        """Why a message waits ``now``; what need not wait overtakes it. Each way is asked once."""
        holds: dict[tuple[DeliveryChannel, QueueMode], Blocked | None] = {}

        def held(message: Message) -> Blocked | None:
            way = self._channels.way(message), message.mode
            if way not in holds:
                holds[way] = self._channels.hold(message, now)
            return holds[way] or self._channels.waits(message, now, self.underway(now))

        return held

    def _turn_since(self, now: float) -> float | None:
        """When the turn began that runs: with the message that went over just before."""
        since = self._guards.turn_since(now)
        over = self._over_at
        return over if since is not None and 0 <= since - over < ON_ITS_WAY else since

    async def _stop(self, message: Message) -> None:
        """Have the running turn stopped for this message, unless it is the message's own."""
        channel = self._channels.way(message)
        if message.attempt and await self._landed(channel, message):
            await self._deliver(channel, [message])
            return
        now, under = self._clock(), self.underway(self._clock())
        held = self._stopper.hold(message, now)
        if held is None and under is not None and under < ON_ITS_WAY:
            held = Blocked("another message is on its way", 0.1)
        if held is None:
            if not await self._not_withdrawn([message], State.QUEUED, STOPPING):
                return
            held = await self._stopper.stop(message)
            if held is None and message in self._waiting:
                at = self._waiting.index(message)
                self._waiting[at] = self._as_steer(message, UNSTOPPED)
                return
        if held is not None:
            await self._wait_out(held)

    async def _deliver(self, channel: DeliveryChannel, ready: list[Message]) -> None:
        self._in_hand = {ready[0].id}
        try:
            batch, held = await self._hand_over(channel, ready)
        finally:
            self._in_hand = set()
            self._handed_over.set()
        if batch:
            await self._after(channel, batch)
        if held is not None:
            await self._wait_out(held)
        else:
            self._holding = ""

    async def _hand_over(
        self, channel: DeliveryChannel, ready: list[Message]
    ) -> tuple[list[Message], Blocked | None]:
        """The first of those that are ``ready`` go over; which, and why no more of the batch."""
        first = ready[0]
        if first.attempt and await self._landed(channel, first):
            self._went_over(first)
            return [first], None
        together = first.mode is QueueMode.COLLECT and len(ready) > 1 and channel.combines
        batch = ready if together else channel.batch(ready)
        batch = [m for m in batch if m is first or not (m.attempt and channel.landed(m))]
        self._in_hand = {m.id for m in batch}
        batch = await self._not_withdrawn(batch, State.DELIVERING, presence=True)
        batch = [self._with_presence(message) for message in batch]
        self._told -= self._in_hand  # should they wait again, that is news
        if not batch:
            return [], None
        now = self._clock()
        held = self._guards.limited(now) or self._held_at(now)(batch[0])
        if held is not None:
            # That took a moment, and a dialog or a question has come up in it.
            return [], held
        self._handed_over.clear()
        submitted = await self._submit(channel, batch)
        for message in batch[: submitted.count]:
            self._went_over(message)
        if submitted.count:
            self._guards.tried(self._clock())
        return batch[: submitted.count], submitted.hold

    async def _submit(self, channel: DeliveryChannel, batch: list[Message]) -> Submitted:
        """Hand the batch over; the senders learn what keeps it when that takes a while."""
        told = ""
        handing = asyncio.ensure_future(channel.submit(batch))
        try:
            while not (await asyncio.wait([handing], timeout=HELD_AFTER))[0]:
                if (why := channel.unproven) and why != told:
                    told = why
                    reports = (self._reports.delivery(m, State.DELIVERING, why) for m in batch)
                    await asyncio.gather(*reports)
        finally:
            handing.cancel()
        return handing.result()

    def _with_presence(self, message: Message) -> Message:
        told = self._reports.with_presence(message)
        if told is not message:
            self._waiting[self._waiting.index(message)] = told
        return told

    def _went_over(self, message: Message) -> None:
        self._over_at = self._clock()
        self._waiting.remove(message)
        self._unproven[marker_of(message)] = message

    async def _landed(self, channel: DeliveryChannel, message: Message) -> bool:
        """Whether an earlier try got through; a channel that learns it late is given the time.

        Earlier tries are those of sessions before this one, so the time runs from its start.
        """
        end = self._started + channel.landing_takes
        while not channel.landed(message):
            if self._clock() >= end:
                return False
            await asyncio.sleep(0.1)
        return True

    async def _after(self, channel: DeliveryChannel, batch: list[Message]) -> None:
        """Account for what went over. The next batch need not wait until the broker has it all.

        At most one batch is being accounted for at a time. A session that dies meanwhile is
        followed by one that is offered the same messages and finds that they landed.
        """
        await self._settled()
        submitted = asyncio.gather(*(self._reports.delivery(m, State.SUBMITTED) for m in batch))
        self._accounted = submitted
        proof = await channel.read(batch)
        if proof is None:
            if why := channel.unproven:
                await self._settled()
                await asyncio.gather(
                    *(self._reports.delivery(m, State.SUBMITTED, why) for m in batch)
                )
            return
        seen = [m for m in batch if self._unproven.pop(marker_of(m), None) is not None]

        async def account() -> None:
            await submitted
            reports = (self._reports.delivery(m, State.SEEN, proof=proof) for m in seen)
            await asyncio.gather(*reports)

        self._accounted = asyncio.ensure_future(account())

    async def _find_proofs(self) -> bool:
        """Report what the screen shows by now of what went over; whether some is still missing."""
        ways = self._read_by() if self._unproven else ()
        if not ways or self._clock() - self._over_at > PROOF_PATIENCE:
            return False
        for marker, message in list(self._unproven.items())[-PROOFS_AT_ONCE:]:
            channel = self._channels.way(message)
            if channel not in ways or not channel.shown(message):
                continue
            if self._unproven.pop(marker, None) is not None:
                await self._reports.delivery(message, State.SEEN, proof="screen")
        return bool(self._unproven)

    async def _settled(self) -> None:
        """Until the broker has all that was reported of earlier batches."""
        if self._accounted is not None:
            await self._accounted
            self._accounted = None

    async def _wait_out(self, held: Blocked) -> None:
        """Wait for the obstacle to go; the senders learn of it when that takes a while."""
        now = self._clock()
        if held.reason != self._holding:
            self._holding, self._since = held.reason, now
            self._told.clear()
        pause = min(held.again or LOOK_AGAIN, LOOK_AGAIN)
        untold = HELD_AFTER - (now - self._since)
        if untold > 0:
            await self._rest(min(pause, untold))
            return
        news = [m for m in self._waiting if m.id not in self._told]
        self._told.update(m.id for m in news)
        await self._not_withdrawn(news, State.QUEUED, held.reason)
        await self._rest(pause)

    async def _not_withdrawn(
        self, messages: list[Message], state: State, reason: str = "", *, presence: bool = False
    ) -> list[Message]:
        """Report ``state`` of these; those that were not withdrawn meanwhile. The rest is gone."""
        reports = (self._reports.delivery(m, state, reason, presence=presence) for m in messages)
        there = await asyncio.gather(*reports)
        left = []
        for message, kept in zip(messages, there, strict=True):
            if kept:
                left.append(message)
            elif message in self._waiting:
                self._waiting.remove(message)
        return left

    async def _rest(self, seconds: float | None) -> None:
        """Until something changes, at most ``seconds``."""
        # Not wait_for: before Python 3.12 it can swallow a cancellation that comes with a wake-up.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
                self._wake.clear()
