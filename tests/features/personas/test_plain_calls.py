"""The plain route functions of one event: in one thread while they are quick, else side by side."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from relay.core.dispatch import Event
from relay.features.personas.worker_main import PlainCalls, Said
from relay.hooks.registry import Registry
from relay.hooks.run_functions import HUNG_PER_HANDLER

EVENT = Event("01", "mail", "message", "mom@x", "hi", 1)


def asked(
    *functions: Callable[[Event], object], timeout: float = 20.0, times: int = 1
) -> list[Said]:
    """What each said, the last time that they were asked."""
    registry = Registry()
    for number, function in enumerate(functions):
        registry.add_route(f"f{number}", function)

    async def ask() -> list[Said]:
        calls = PlainCalls(lambda value: value, timeout)
        said: list[Said] = []
        for _ in range(times):
            said = await calls.call(EVENT, registry.routes())
        return said

    return asyncio.run(ask())


def test_quick_ones_share_a_thread_and_each_has_its_say() -> None:
    threads = set()

    def quick(event: Event) -> object:
        threads.add(threading.get_ident())
        return event.content if len(threads) > 5 else None

    def broken(event: Event) -> object:
        raise SystemExit("on purpose")

    said = asked(*[quick] * 999, broken)
    assert len(said) == 1000 and len(threads) <= 5
    assert [one[1:] for one in said[:2]] == [(None, None)] * 2
    assert str(said[-1][2]).startswith("SystemExit: on purpose (line ")


def test_slow_ones_run_side_by_side() -> None:
    together = threading.Barrier(20)

    def slow(event: Event) -> object:
        together.wait(15)  # BrokenBarrierError unless all of them are here
        return True

    assert [one[1:] for one in asked(*[slow] * 20)] == [(True, None)] * 20


def test_one_that_hangs_is_given_up_and_after_three_times_called_no_more() -> None:
    over = threading.Event()
    calls: list[float] = []

    def hangs(event: Event) -> object:
        calls.append(time.monotonic())
        over.wait(30)
        return True

    said = asked(hangs, lambda event: True, timeout=0.05, times=HUNG_PER_HANDLER + 1)
    over.set()
    assert len(calls) == HUNG_PER_HANDLER
    assert [one[1:] for one in said] == [
        (None, f"switched off: {HUNG_PER_HANDLER} of its calls hang"),
        (True, None),
    ]
