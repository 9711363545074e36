"""When hooks fire, and what becomes of what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from relay.core.errors import RelayError
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Failure, empty_success
from relay.session import lifecycle
from relay.session.lifecycle import Lifecycle


class FakeEngine:
    """Answers each event with what is set for it, and remembers what was fired."""

    def __init__(self, **answers: Aggregated) -> None:
        self.answers = {HookEventName[name]: answer for name, answer in answers.items()}
        self.fired: list[tuple[HookEventName, dict[str, Any]]] = []

    def has(self, event: HookEventName) -> bool:
        return event in self.answers

    async def fire(self, event: HookEventName, fields: dict[str, Any]) -> Aggregated:
        self.fired.append((event, fields))
        return self.answers[event]


class Desk:
    def __init__(self, engine: FakeEngine) -> None:
        self.injected: list[str] = []
        self.noted: list[str] = []
        self.tasks: list[asyncio.Future[None]] = []
        self.engine = engine
        self.lifecycle = Lifecycle(
            engine,
            inject=self.inject,
            note=self.noted.append,
            spawn=lambda work: self.tasks.append(asyncio.ensure_future(work)),
            idle_seconds=30.0,
        )

    def inject(self, text: str) -> str:
        self.injected.append(text)
        return f"id of {text}"


def play(engine: FakeEngine, scenario: Callable[[Desk], Awaitable[None]]) -> Desk:
    async def limited() -> Desk:
        desk = Desk(engine)
        async with asyncio.timeout(20):
            await scenario(desk)
            await asyncio.gather(*desk.tasks)
        return desk

    return asyncio.run(limited())


def test_what_hooks_say_is_injected_and_what_they_do_wrong_is_noted() -> None:
    said = Aggregated(
        inject=["one", "two"],
        context="three",
        errors=[Failure("hook", "guard: it crashed")],
        conflicts=["two hooks disagree"],
        system_message="for the person",
    )

    async def scenario(desk: Desk) -> None:
        told = await desk.lifecycle.fire(HookEventName.SESSION_START, source="startup")
        assert told == ["id of one", "id of two", "id of three"]

    desk = play(FakeEngine(SESSION_START=said), scenario)
    assert desk.injected == ["one", "two", "three"]
    assert desk.noted == ["guard: it crashed", "two hooks disagree", "for the person"]
    assert desk.engine.fired == [(HookEventName.SESSION_START, {"source": "startup"})]


def test_nobody_is_told_anything_after_the_end_and_nothing_fires_that_nobody_hears() -> None:
    async def scenario(desk: Desk) -> None:
        assert not await desk.lifecycle.fire(HookEventName.SESSION_END, deliver=False)
        assert not await desk.lifecycle.fire(HookEventName.NOTIFICATION)
        desk.lifecycle.later(HookEventName.NOTIFICATION)
        desk.lifecycle.later(HookEventName.MESSAGE_RECEIVED, sender="Bob", body="hi")

    said = Aggregated(inject=["too late"], system_message="quiet", suppress_output=True)
    desk = play(FakeEngine(SESSION_END=said, MESSAGE_RECEIVED=empty_success()), scenario)
    assert desk.injected == [] and desk.noted == []
    assert desk.engine.fired == [
        (HookEventName.SESSION_END, {}),
        (HookEventName.MESSAGE_RECEIVED, {"sender": "Bob", "body": "hi"}),
    ]


def test_lines_go_to_on_output_together_and_none_is_lost() -> None:
    async def scenario(desk: Desk) -> None:
        for number in range(50):
            desk.lifecycle.output([f"line {number}"])

    desk = play(FakeEngine(OUTPUT=empty_success()), scenario)
    heard = [fields["output"] for _, fields in desk.engine.fired]
    assert "\n".join(heard).splitlines() == [f"line {number}" for number in range(50)]
    assert len(heard) < 50


def test_a_slow_on_output_loses_the_oldest_and_says_so() -> None:
    async def scenario(desk: Desk) -> None:
        for _ in range(100):
            desk.lifecycle.output(["x" * 1000])

    assert "too slow" in play(FakeEngine(OUTPUT=empty_success()), scenario).noted[0]
    assert lifecycle.OUTPUT_WAITING_MAX < 100 * 1000


def test_idle_fires_once_for_each_idle_period() -> None:
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

    desk = play(FakeEngine(IDLE=empty_success()), scenario)
    assert desk.engine.fired == [(HookEventName.IDLE, {"idle_seconds": 30.0})] * 2


def test_an_agent_that_was_told_that_it_ends_is_not_asked_whether_it_sleeps() -> None:
    async def scenario(desk: Desk) -> None:
        desk.lifecycle.active(1.0)
        await desk.lifecycle.end("hangup")
        assert desk.lifecycle.idle_deadline() is None

    play(FakeEngine(IDLE=empty_success(), SESSION_END=empty_success()), scenario)


def test_without_hooks_nothing_is_collected_or_waited_for() -> None:
    async def scenario(desk: Desk) -> None:
        desk.lifecycle.output(["text"])
        desk.lifecycle.active(1.0)
        assert desk.tasks == [] and desk.lifecycle.idle_deadline() is None

    play(FakeEngine(), scenario)


def test_what_an_earlier_session_has_fired_is_not_fired_again() -> None:
    kept: list[dict[str, Any]] = []

    async def first(desk: Desk) -> None:
        desk.lifecycle.begin(0.0)
        desk.lifecycle.message("M1", "Bob", "hi")
        desk.lifecycle.message("M2", "Bob", "ho")
        desk.lifecycle.settled("M2")
        desk.lifecycle.tick(30.0)
        await desk.lifecycle.end("hangup")
        kept.append(desk.lifecycle.state())

    async def second(desk: Desk) -> None:
        desk.lifecycle.restore(kept[0])
        desk.lifecycle.begin(40.0)
        desk.lifecycle.message("M1", "Bob", "hi")
        assert desk.lifecycle.idle_deadline() is None
        assert await desk.lifecycle.end("exit") == []

    def engine() -> FakeEngine:
        return FakeEngine(
            MESSAGE_RECEIVED=empty_success(), IDLE=empty_success(), SESSION_END=empty_success()
        )

    assert len(play(engine(), first).engine.fired) == 4
    assert kept[0]["announced"] == ["M1"]
    assert play(engine(), second).engine.fired == []


def test_what_cannot_be_sent_to_the_agent_is_noted_and_keeps_nothing_else_back() -> None:
    said = Aggregated(inject=["too long", "two"])

    async def scenario(desk: Desk) -> None:
        def inject(text: str) -> str:
            if text == "too long":
                raise RelayError("the text is too long")
            return desk.inject(text)

        desk.lifecycle._inject = inject
        assert await desk.lifecycle.fire(HookEventName.OUTPUT) == ["id of two"]

    desk = play(FakeEngine(OUTPUT=said), scenario)
    assert "the text is too long" in desk.noted[0]


def test_after_its_end_the_agent_is_told_nothing_of_what_it_said_last() -> None:
    async def scenario(desk: Desk) -> None:
        desk.lifecycle.output(["ERROR: boom"])
        desk.lifecycle.agent_gone()
        await desk.lifecycle.settle(10.0)
        assert desk.engine.fired == [(HookEventName.OUTPUT, {"output": "ERROR: boom"})]

    assert play(FakeEngine(OUTPUT=Aggregated(inject=["look"])), scenario).injected == []


def test_an_on_output_that_answers_its_own_texts_is_stopped_until_the_person_speaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lifecycle, "OUTPUT_TOGETHER", 0.0)

    async def scenario(desk: Desk) -> None:
        watch = desk.lifecycle

        async def echo(times: int) -> None:
            for number in range(times):
                watch.active(float(number))
                watch.output(["ERROR"])
                await watch.settle(10.0)

        await echo(lifecycle.ANSWERS_MAX + 5)
        assert len(desk.injected) == lifecycle.ANSWERS_MAX
        watch.person()
        await echo(1)
        assert len(desk.injected) == lifecycle.ANSWERS_MAX + 1

    desk = play(FakeEngine(OUTPUT=Aggregated(inject=["fix the ERROR"])), scenario)
    assert len(desk.noted) == 1 and "its own texts" in desk.noted[0]
