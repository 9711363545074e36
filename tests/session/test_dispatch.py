"""From finds to handlers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest

from relay.core.errors import BrokerUnavailable, RelayError, StorageError, UsageError
from relay.directive.grammar import Match, TooLong, Unclosed
from relay.hooks.registry import BUILTIN, Registry
from relay.hooks.run_functions import FunctionRunner
from relay.protocol import frames
from relay.session import retrying
from relay.session.detector import Detection
from relay.session.dispatch import Dispatcher


def match(namespace: str, target: str, body: str = "x", number: int = 1) -> Detection:
    raw = f"@{namespace}:{target} {body}"
    return Detection(f"id{number}", Match(namespace, target, body, {}, False, raw))


class Desk:
    def __init__(self, registry: Registry) -> None:
        self.injected: list[str] = []
        self.told: list[str] = []
        self.noted: list[str] = []
        self.claimed: set[str] = set()
        self.tasks: list[asyncio.Future[None]] = []
        self.runner = FunctionRunner(registry)
        self.dispatcher = Dispatcher(
            registry,
            self.runner,
            context=lambda heard: None,  # type: ignore[arg-type, return-value]
            claim=self.claim,
            inject=self.injected.append,
            tell=self.told.append,
            note=self.noted.append,
            spawn=self.spawn,
        )

    async def claim(self, heard: Detection) -> bool:
        fresh = heard.id not in self.claimed
        self.claimed.add(heard.id)
        return fresh

    def spawn(self, work: Awaitable[None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def close(self) -> None:
        await self.dispatcher.settle(10.0)
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.runner.close()


def run(registry: Registry, *items: Detection, claimed: set[str] | None = None) -> Desk:
    async def scenario() -> Desk:
        desk = Desk(registry)
        desk.claimed |= claimed or set()
        for item in items:
            desk.dispatcher.take(item)
        await desk.close()
        return desk

    return asyncio.run(scenario())


def test_the_users_handler_answers_and_the_answer_is_injected() -> None:
    registry = Registry()
    registry.add_pattern("deploy", "*", lambda target, message: f"{target}: {message}")
    desk = run(registry, match("deploy", "staging", "v1"))
    assert desk.injected == ["staging: v1"] and desk.told == []


def test_what_an_earlier_session_began_is_not_run_again() -> None:
    calls: list[str] = []
    registry = Registry()
    registry.add_pattern("deploy", "*", lambda target: calls.append(target))
    run(registry, match("deploy", "a", number=1), match("deploy", "b", number=2), claimed={"id1"})
    assert calls == ["b"]


def test_one_namespace_keeps_its_order() -> None:
    calls: list[str] = []
    registry = Registry()
    registry.add_pattern("log", "*", lambda target: calls.append(target))
    run(registry, *[match("log", str(number), number=number) for number in range(30)])
    assert calls == [str(number) for number in range(30)]


def test_relays_own_handler_runs_at_once_and_its_refusal_is_told() -> None:
    sent: list[str] = []

    def relay(target: str, message: str) -> None:
        if not message:
            raise UsageError("the text is empty", hint="say something")
        sent.append(target)

    registry = Registry()
    registry.add_pattern("relay", "*", relay, source=BUILTIN)
    desk = run(registry, match("relay", "Bob"), match("relay", "Ann", ""))
    assert sent == ["Bob"]
    assert desk.told == ["not done: @relay:Ann: the text is empty (say something)"]


def test_a_handler_that_fails_is_noted_for_the_person_and_told_in_short() -> None:
    def broken(target: str) -> None:
        raise ValueError("secret detail")

    registry = Registry()
    registry.add_pattern("deploy", "*", broken)
    desk = run(registry, match("deploy", "x"))
    assert "secret detail" in desk.noted[0]
    assert "secret detail" not in desk.told[0] and "failed" in desk.told[0]


def test_a_target_without_a_handler_is_told_with_what_there_is() -> None:
    registry = Registry()
    registry.add_pattern("deploy", "staging", lambda: None)
    desk = run(registry, match("deploy", "stagging"))
    assert "nothing handles @deploy:stagging" in desk.told[0] and "staging" in desk.told[0]


def test_mistakes_of_form_are_told() -> None:
    desk = run(
        Registry(),
        Detection("a", Unclosed("relay", "Bob", ("@relay:Ann x",), "text")),
        Detection("b", TooLong("relay", "Bob", 2_000_000)),
    )
    assert "never closed" in desk.told[0] and "1 more" in desk.told[0]
    assert "2000000 bytes" in desk.told[1]


def test_what_waits_survives_in_the_checkpoint() -> None:
    calls: list[str] = []
    registry = Registry()
    registry.add_pattern("log", "*", lambda target: calls.append(target))

    async def scenario() -> list[dict[str, Any]]:
        desk = Desk(registry)
        desk.dispatcher.take(match("log", "one"))
        state = desk.dispatcher.state()
        for task in desk.tasks:
            task.cancel()
        await asyncio.gather(*desk.tasks, return_exceptions=True)
        await desk.runner.close()
        return state

    state = asyncio.run(scenario())
    assert calls == []

    async def again() -> None:
        desk = Desk(registry)
        desk.dispatcher.restore(state)
        await desk.close()

    asyncio.run(again())
    assert calls == ["one"]


def failing_once(desk: Desk, error: RelayError) -> None:
    """The first claim fails with ``error``."""
    claim, errors = desk.claim, [error]

    async def failing(heard: Detection) -> bool:
        if errors:
            raise errors.pop()
        return await claim(heard)

    desk.dispatcher._claim = failing


@pytest.mark.parametrize(
    "error, done",
    [
        (UsageError("a thread's name has at most 256 characters"), ["two"]),
        (BrokerUnavailable("it is away"), ["one", "two"]),
        (StorageError("the disk is full"), ["one", "two"]),
    ],
)
def test_one_that_cannot_be_claimed_does_not_stop_its_lane(
    monkeypatch: pytest.MonkeyPatch, error: RelayError, done: list[str]
) -> None:
    monkeypatch.setattr(retrying, "RETRY_SECONDS", 0.0)
    calls: list[str] = []
    registry = Registry()
    registry.add_pattern("log", "*", lambda target: calls.append(target))

    async def scenario() -> Desk:
        desk = Desk(registry)
        failing_once(desk, error)
        desk.dispatcher.take(match("log", "one", number=1))
        desk.dispatcher.take(match("log", "two", number=2))
        await desk.close()
        return desk

    desk = asyncio.run(scenario())
    assert calls == done
    assert bool(desk.told) == (done == ["two"]) and bool(desk.noted) == (done != ["two"])


def test_an_answer_that_cannot_be_injected_does_not_stop_its_lane() -> None:
    registry = Registry()
    registry.add_pattern("log", "*", lambda target: {"inject": target})

    async def scenario() -> Desk:
        desk = Desk(registry)
        injected = desk.injected

        def inject(text: str) -> None:
            if text == "empty":
                raise UsageError("the text is empty")
            injected.append(text)

        desk.dispatcher._inject = inject
        desk.dispatcher.take(match("log", "empty", number=1))
        desk.dispatcher.take(match("log", "full", number=2))
        await desk.close()
        return desk

    desk = asyncio.run(scenario())
    assert desk.injected == ["full"] and "the text is empty" in desk.told[0]


def test_what_waits_is_bounded_so_that_it_fits_into_a_checkpoint() -> None:
    registry = Registry()
    registry.add_pattern("log", "*", lambda target: None)

    async def scenario() -> Desk:
        desk = Desk(registry)
        for number in range(10):
            desk.dispatcher.take(match("log", "x", "y" * 1_000_000, number))
        size = len(json.dumps(desk.dispatcher.state()))
        await desk.close()
        assert size < frames.FRAME_MAX / 2
        return desk

    desk = asyncio.run(scenario())
    assert len(desk.told) == 8 and "too many earlier ones" in desk.told[0]
