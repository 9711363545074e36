"""The plain route functions of one event: in one thread while they are quick, else side by side."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from relay.core.dispatch import Event
from relay.features.personas.worker_main import PlainCalls, Said
from relay.hooks.registry import Registry

EVENT = Event("01", "mail", "message", "mom@x", "hi", 1)


def asked(*functions: Callable[[Event], object]) -> list[Said]:
    """What each said."""
    registry = Registry()
    for number, function in enumerate(functions):
        registry.add_route(f"f{number}", function)

    async def ask() -> list[Said]:
        return await PlainCalls(lambda value: value, 20.0).call(EVENT, registry.routes())

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


async def test_one_that_hangs_is_given_up_and_named_until_it_ends() -> None:
    over = threading.Event()
    registry = Registry()
    registry.add_route("hangs", lambda event: over.wait(30))
    registry.add_route("says", lambda event: True)

    calls = PlainCalls(lambda value: value, 0.05)
    said = await calls.call(EVENT, registry.routes())
    assert [one[1:] for one in said] == [(None, "it did not end within 0.05 s"), (True, None)]
    [callee] = calls.hanging()
    assert callee is registry.routes()[0].callee
    over.set()
    while calls.hanging():
        await asyncio.sleep(0.01)
