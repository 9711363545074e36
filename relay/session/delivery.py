"""One agent's incoming messages, in order: each is handed over once, and its state reported.

The states that the sender sees come from here: ``delivering`` before the first byte is handed over,
``submitted`` after the last one, ``seen`` once that is proven, and ``queued`` with the reason while
something is in the way.
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
from relay.session.message_order import MessageOrder, ready_now
from relay.session.turn_stopper import CANNOT, STOPPING, UNSTOPPED, TurnStopper
from relay.session.typing_policy import ON_ITS_WAY, Guards
from relay.session.typist import AgentRoute, Submitted, Typist

#: A shorter wait is not reported to the sender. Seconds.
HELD_AFTER = 1.0
#: The reason for a short wait: an answer now would be taken for words of the turn before.
SETTLING = "the turn before it is being written down"
#: Check at least this often while something is in the way. Seconds.
LOOK_AGAIN = 1.0
#: For so many seconds, and of so many messages, the agent's screen is searched for a proof.
PROOF_PATIENCE = 600.0
PROOFS_AT_ONCE = 16
#: At the agent's end: how long the reports of the last batch may take. Seconds.
CLOSING = 1.0


class DeliveryQueue:
    """Takes messages from the broker and brings them to the agent, first in, first out."""

    def __init__(
        self,
        typist: Typist,
        reports: BrokerReports,
        guards: Guards,
        clock: Callable[[], float],
        stopper: TurnStopper,
        *,
        settling: Callable[[float], bool] = lambda now: False,
    ) -> None:
        """``settling``: the last words of an awaited turn may still come."""
        self._typist = typist
        self._reports = reports
        self._guards = guards
        self._clock = clock
        self._stopper = stopper
        self._settling = settling
        self._order = MessageOrder()
        self._waiting: deque[Message] = deque()
        self._in_hand: set[str] = set()  # ids of the messages that are being handed over
        self._unproven: OrderedDict[str, Message] = OrderedDict()  # marker -> submitted message
        self._over_at = 0.0  # when a message last went over
        self._wake = asyncio.Event()
        self._holding = ""  # why nothing is handed over now
        self._since = 0.0  # … and since when
        self._told: set[str] = set()  # ids of the messages whose senders know it
        self._started = clock()
        self._accounted: asyncio.Future[Any] | None = None  # the reports of the last batch
        self._handed_over = asyncio.Event()  # cleared while the typist hands over
        self._handed_over.set()

    def offer(self, message: Message) -> None:
        """Take a message that has not come before."""
        message = replace(message, primed=self._typist.primed)
        self._typist.offered(message)
        self._order.arrived(message, self._clock())
        if message.mode is QueueMode.INTERRUPT and not self._stopper.can:
            message = self._as_steer(message, CANNOT)
        self._waiting.append(message)
        self._wake.set()

    def _as_steer(self, message: Message, why: str) -> Message:
        """Turn an interrupt that cannot be done into a steer, or a followup."""
        self._reports.remark(message, why)
        return replace(message, mode=QueueMode.STEER)

    def waiting(self, wanted: Callable[[Message], bool]) -> list[Message]:
        """The ``wanted`` messages that wait and are not being handed over, oldest first."""
        return [m for m in self._waiting if m.id not in self._in_hand and wanted(m)]

    def claim(self, chosen: list[Message]) -> None:
        """Take these away from the typist: they go with the answers to hooks."""
        for message in chosen:
            self._waiting.remove(message)

    def give_back(self, messages: list[Message]) -> None:
        """Claimed messages did not arrive: they wait again, before later ones."""
        for message in messages:
            at = next((n for n, one in enumerate(self._waiting) if one.id > message.id), None)
            self._waiting.insert(len(self._waiting) if at is None else at, message)
        self._wake.set()

    def underway(self, now: float) -> float | None:
        """For how many seconds a message has been submitted but not seen; None: there is none."""
        return now - self._over_at if self._unproven else None

    def look_again(self) -> None:
        """Something has changed: check again whether a message may go."""
        self._wake.set()

    async def thrown_away(self, unread: int) -> None:
        """The person pressed Ctrl-C: the last ``unread`` bytes of the input will never be read.

        A message that is whole among them is typed again. One that was read in part fails, because
        nobody can tell what that part did.
        """
        lost = [
            (m, whole)
            for m, whole in (self._typist.throw_away(unread) if unread else ())
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
        """The broker has come back: report again why messages wait."""
        self._told.clear()

    def proven(self, text: str, by: str) -> list[tuple[Message, str]]:
        """The submitted messages whose markers are in ``text``: they are proven to be seen."""
        found = []
        if self._unproven:
            for marker in [marker for marker in self._unproven if marker in text]:
                found.append((self._unproven.pop(marker), by))
        return found

    async def close(self, unread: int | None) -> None:
        """The agent is gone, with ``unread`` bytes of its input left (None: unknown).

        The messages that it had read are seen; the others stay submitted, and the broker offers
        them to the next agent of that name.
        """
        with contextlib.suppress(TimeoutError):
            # First the reports of the last batch.
            async with asyncio.timeout(CLOSING):
                await self._handed_over.wait()
        await self._settled()
        if unread is None or not self._typist.proves_reading:
            return
        left = {message.id for message in self._typist.left_unread(unread)}
        typed = [
            m for m in self._unproven.values() if self._typist.route(m) is not AgentRoute.CHANNEL
        ]
        read = [m for m in typed if m.id not in left]
        self._unproven.clear()
        await asyncio.gather(*(self._reports.delivery(m, State.SEEN, proof="read") for m in read))

    async def run(self) -> None:
        """Deliver until cancelled."""
        while True:
            try:
                await self._step()
            except RelayError as error:
                # The agent's end, for example. Other messages must not depend on this one.
                await self._wait_out(Blocked(error.message, LOOK_AGAIN))

    async def _step(self) -> None:
        watched = await self._find_proofs()
        left = await self._typist.finish()
        if not self._waiting:
            await self._rest(LOOK_AGAIN if watched or left else None)
            return
        now = self._clock()
        if self._settling(now):
            await self._wait_out(Blocked(SETTLING, 0.1))
            return
        since = self._turn_since(now)
        step = self._order.next(self._waiting, now, since, steers=self._typist.steers)
        if isinstance(step, StopTurn):
            await self._stop(next(m for m in self._waiting if m.id == step.id))
            return
        held = self._guards.limited(now)
        if held is not None:
            await self._wait_out(held)
            return
        ready, held = ready_now(step, self._waiting, self._held_at(now), now)
        if ready:
            await self._deliver(ready)
        elif held is not None:
            await self._wait_out(held)

    def _held_at(self, now: float) -> Callable[[Message], Blocked | None]:
        """A function that says why a message waits ``now``. The screen is read once."""
        holds: dict[tuple[AgentRoute, QueueMode], Blocked | None] = {}

        def held(message: Message) -> Blocked | None:
            key = self._typist.route(message), message.mode
            if key not in holds:
                holds[key] = self._typist.hold(message, now)
            return holds[key] or self._typist.waits(message, now, self.underway(now))

        return held

    def _turn_since(self, now: float) -> float | None:
        """When the running turn began: with the message that was handed over just before."""
        since = self._guards.turn_since(now)
        over = self._over_at
        return over if since is not None and 0 <= since - over < ON_ITS_WAY else since

    async def _stop(self, message: Message) -> None:
        """Stop the running turn for this message, unless the message itself began it."""
        if message.attempt and await self._landed(message):
            await self._deliver([message])
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

    async def _deliver(self, ready: list[Message]) -> None:
        self._in_hand = {ready[0].id}
        try:
            batch, held = await self._hand_over(ready)
        finally:
            self._in_hand = set()
            self._handed_over.set()
        if batch:
            await self._after(batch)
        if held is not None:
            await self._wait_out(held)
        else:
            self._holding = ""

    async def _hand_over(self, ready: list[Message]) -> tuple[list[Message], Blocked | None]:
        """Hand over the first of the ``ready`` messages. Returns them, and why no more went."""
        first = ready[0]
        if first.attempt and await self._landed(first):
            self._went_over(first)
            return [first], None
        batch = self._typist.batch(ready)
        batch = [m for m in batch if m is first or not (m.attempt and self._typist.landed(m))]
        self._in_hand = {m.id for m in batch}
        batch = await self._not_withdrawn(batch, State.DELIVERING, presence=True)
        batch = [self._with_news(message) for message in batch]
        self._told -= self._in_hand  # if they wait again, that is reported again
        if not batch:
            return [], None
        now = self._clock()
        held = self._guards.limited(now) or self._held_at(now)(batch[0])
        if held is not None:
            # A dialog or a question came up meanwhile.
            return [], held
        self._handed_over.clear()
        submitted = await self._submit(batch)
        for message in batch[: submitted.count]:
            self._went_over(message)
        if submitted.count:
            self._guards.tried(self._clock())
        return batch[: submitted.count], submitted.hold

    async def _submit(self, batch: list[Message]) -> Submitted:
        """Hand the batch over; if that takes a while, tell the senders why."""
        told = ""
        handing = asyncio.ensure_future(self._typist.submit(batch))
        try:
            while not (await asyncio.wait([handing], timeout=HELD_AFTER))[0]:
                if (why := self._typist.asked(batch[0])) and why != told:
                    told = why
                    reports = (self._reports.delivery(m, State.DELIVERING, why) for m in batch)
                    await asyncio.gather(*reports)
        finally:
            handing.cancel()
        return handing.result()

    def _with_news(self, message: Message) -> Message:
        told = self._reports.with_news(message)
        if told is not message:
            self._waiting[self._waiting.index(message)] = told
        return told

    def _went_over(self, message: Message) -> None:
        self._over_at = self._clock()
        self._waiting.remove(message)
        self._unproven[marker_of(message)] = message

    async def _landed(self, message: Message) -> bool:
        """Whether an earlier attempt arrived; waits for an agent's records that show it late.

        Earlier attempts are those of earlier sessions, so the time counts from this one's start.
        """
        end = self._started + self._typist.landing_takes(message)
        while not self._typist.landed(message):
            if self._clock() >= end:
                return False
            await asyncio.sleep(0.1)
        return True

    async def _after(self, batch: list[Message]) -> None:
        """Report what was handed over. The next batch does not wait until the broker has all of it.

        At most one batch is being reported at a time. If the session dies meanwhile, the next one
        is offered the same messages, and finds that they have arrived.
        """
        await self._settled()
        submitted = asyncio.gather(*(self._reports.delivery(m, State.SUBMITTED) for m in batch))
        self._accounted = submitted
        reading = await self._typist.read(batch)
        if reading.proof is None:
            if why := reading.why:
                await self._settled()
                await asyncio.gather(
                    *(self._reports.delivery(m, State.SUBMITTED, why) for m in batch)
                )
            return
        proof = reading.proof
        seen = [m for m in batch if self._unproven.pop(marker_of(m), None) is not None]

        async def account() -> None:
            await submitted
            reports = (self._reports.delivery(m, State.SEEN, proof=proof) for m in seen)
            await asyncio.gather(*reports)

        self._accounted = asyncio.ensure_future(account())

    async def _find_proofs(self) -> bool:
        """Report the messages that the screen shows by now; whether some are still missing."""
        proves = bool(self._unproven) and self._typist.proves_reading
        if not proves or self._clock() - self._over_at > PROOF_PATIENCE:
            return False
        for marker, message in list(self._unproven.items())[-PROOFS_AT_ONCE:]:
            if self._typist.shown(message) and self._unproven.pop(marker, None) is not None:
                await self._reports.delivery(message, State.SEEN, proof="screen")
        return bool(self._unproven)

    async def _settled(self) -> None:
        """Wait until the broker has all reports of earlier batches."""
        if self._accounted is not None:
            await self._accounted
            self._accounted = None

    async def _wait_out(self, held: Blocked) -> None:
        """Wait until the obstacle is gone; if that takes a while, tell the senders."""
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
        """Report ``state`` of these. Returns those that were not withdrawn; drops the others."""
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
        """Wait until something changes, at most ``seconds``."""
        # Not wait_for: before Python 3.12 it can swallow a cancellation that comes with a wake-up.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
                self._wake.clear()
