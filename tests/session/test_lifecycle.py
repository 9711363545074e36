"""When hooks fire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from relay.hooks.events import HookEventName
from relay.hooks.functions import FunctionRunner
from relay.hooks.registry import Registry
from relay.session import lifecycle
from relay.session.lifecycle import Lifecycle


class Desk:
    def __init__(self, registry: Registry) -> None:
        self.injected: list[str] = []
        self.noted: list[str] = []
        self.tasks: list[asyncio.Future[None]] = []
        self.runner = FunctionRunner(registry)
        self.lifecycle = Lifecycle(
            registry,
            self.runner,
            None,  # type: ignore[arg-type]
            inject=self.injected.append,
            note=self.noted.append,
            spawn=lambda work: self.tasks.append(asyncio.ensure_future(work)),
            idle_seconds=30.0,
        )


def play(registry: Registry, scenario: Callable[[Desk], Awaitable[None]]) -> Desk:
    async def limited() -> Desk:
        desk = Desk(registry)
        async with asyncio.timeout(20):
            await scenario(desk)
            await asyncio.gather(*desk.tasks)
            await desk.runner.close()
        return desk

    return asyncio.run(limited())


def test_what_hooks_return_is_injected_and_what_they_do_wrong_is_noted() -> None:
    registry = Registry()
    registry.add_hook("session_start", lambda: {"inject": ["one", "two"]})
    registry.add_hook("session_start", lambda: 1 / 0)

    async def scenario(desk: Desk) -> None:
        await desk.lifecycle.fire(HookEventName.SESSION_START)

    desk = play(registry, scenario)
    assert desk.injected == ["one", "two"]
    assert len(desk.noted) == 1 and "ZeroDivisionError" in desk.noted[0]


def test_lines_go_to_on_output_together_and_none_is_lost() -> None:
    heard: list[str] = []
    registry = Registry()
    registry.add_hook("output", heard.append)

    async def scenario(desk: Desk) -> None:
        for number in range(50):
            desk.lifecycle.output([f"line {number}"])

    play(registry, scenario)
    assert "\n".join(heard).splitlines() == [f"line {number}" for number in range(50)]
    assert len(heard) < 50


def test_a_slow_on_output_loses_the_oldest_and_says_so() -> None:
    registry = Registry()
    registry.add_hook("output", lambda output: None)

    async def scenario(desk: Desk) -> None:
        for _ in range(100):
            desk.lifecycle.output(["x" * 1000])

    assert "too slow" in play(registry, scenario).noted[0]
    assert lifecycle.OUTPUT_WAITING_MAX < 100 * 1000


def test_idle_fires_once_for_each_idle_period() -> None:
    fired: list[int] = []
    registry = Registry()
    registry.add_hook("idle", lambda: fired.append(1))

    async def scenario(desk: Desk) -> None:
        watch = desk.lifecycle
        assert watch.idle_deadline() is None
        watch.active(100.0)
        assert watch.idle_deadline() == 130.0
        watch.tick(129.0)
        watch.tick(130.0)
        watch.tick(200.0)
        assert watch.idle_deadline() is None
        watch.active(201.0)
        watch.tick(231.0)

    play(registry, scenario)
    assert len(fired) == 2


def test_without_hooks_nothing_is_collected_or_waited_for() -> None:
    async def scenario(desk: Desk) -> None:
        desk.lifecycle.output(["text"])
        desk.lifecycle.active(1.0)
        assert desk.tasks == [] and desk.lifecycle.idle_deadline() is None

    play(Registry(), scenario)
