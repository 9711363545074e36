from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from relay.session.timer import Alarm

LONG = 3600.0


class Due:
    """What is due, and when it was rung for it; what is rung for is done."""

    def __init__(self) -> None:
        self.clock = asyncio.get_running_loop().time
        self.times: list[float | None] = [None]
        self.rung: list[float] = []
        self.ring = asyncio.Event()
        self.alarm = Alarm(lambda: self.times, self.rings, self.clock)

    def rings(self, now: float) -> None:
        self.rung.append(now)
        self.times = [time for time in self.times if time is None or time > now]
        self.ring.set()


def play(scenario: Callable[[Due], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario(Due())

    asyncio.run(limited())


def test_it_rings_at_the_first_of_what_is_due_and_then_at_the_next() -> None:
    async def scenario(due: Due) -> None:
        now = due.clock()
        due.times = [None, now + 0.05, now + LONG, now - 1]
        due.alarm.set()
        await due.ring.wait()
        assert len(due.rung) == 1 and due.times == [None, now + 0.05, now + LONG]
        due.ring.clear()
        await due.ring.wait()
        assert due.rung[1] >= now + 0.05 and due.times == [None, now + LONG]
        due.alarm.cancel()

    play(scenario)


def test_a_new_setting_replaces_the_one_before() -> None:
    async def scenario(due: Due) -> None:
        due.times = [due.clock() + LONG]
        due.alarm.set()
        due.times = [due.clock() + 0.01]
        due.alarm.set()
        await due.ring.wait()
        assert len(due.rung) == 1

    play(scenario)


def test_it_is_silent_when_nothing_is_due_and_after_it_was_cancelled() -> None:
    async def scenario(due: Due) -> None:
        due.alarm.set()  # nothing is due
        due.times = [due.clock()]
        due.alarm.set()
        due.alarm.cancel()
        due.alarm.cancel()
        await asyncio.sleep(0.05)
        assert due.rung == []

    play(scenario)
