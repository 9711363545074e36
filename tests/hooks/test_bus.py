from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.core.errors import Timeout, UsageError
from relay.hooks import bus as module
from relay.hooks.bus import BusError, MessageBus, correlation_id


def _fails(_message: Any) -> None:
    raise ValueError("broken")


def test_everybody_on_the_channel_gets_the_message_in_their_order() -> None:
    bus = MessageBus()
    got: list[tuple[str, Any]] = []
    bus.subscribe("a", lambda message: got.append(("one", message)))
    bus.subscribe("a", lambda message: got.append(("two", message)))
    bus.subscribe("b", lambda message: got.append(("other", message)))
    assert bus.publish("a", 1) == 2
    assert got == [("one", 1), ("two", 1)]
    assert bus.publish("nobody", 1) == 0


def test_a_subscriber_that_fails_hurts_nobody_and_is_reported() -> None:
    reported: list[tuple[str, str]] = []
    bus = MessageBus(lambda channel, error: reported.append((channel, str(error))))
    got: list[Any] = []
    bus.subscribe("a", _fails)
    bus.subscribe("a", got.append)
    assert bus.publish("a", 1) == 1
    assert bus.publish("a", 2) == 1
    assert got == [1, 2]
    assert reported == [("a", "broken")] * 2


def test_a_report_that_fails_hurts_nobody_either() -> None:
    def report(channel: str, error: Exception) -> None:
        raise OSError(channel) from error

    bus = MessageBus(report)
    got: list[Any] = []
    bus.subscribe("a", _fails)
    bus.subscribe("a", got.append)
    assert bus.publish("a", 1) == 1
    assert got == [1]


def test_what_has_unsubscribed_hears_nothing_more() -> None:
    bus = MessageBus()
    got: list[Any] = []
    subscription = bus.subscribe("a", got.append)
    bus.publish("a", 1)
    subscription.unsubscribe()
    subscription.unsubscribe()
    assert bus.publish("a", 2) == 0
    assert got == [1]
    assert bus.subscribers("a") == 0


def test_who_subscribes_twice_and_ends_one_still_hears_once() -> None:
    bus = MessageBus()
    got: list[Any] = []
    first = bus.subscribe("a", got.append)
    bus.subscribe("a", got.append)
    first.unsubscribe()
    bus.publish("a", 1)
    assert got == [1]


def test_unsubscribing_counts_at_once_and_subscribing_from_the_next_message() -> None:
    bus = MessageBus()
    got: list[tuple[str, Any]] = []

    def first(message: Any) -> None:
        got.append(("first", message))
        if message == 1:
            second.unsubscribe()
            bus.subscribe("a", lambda m: got.append(("third", m)))

    bus.subscribe("a", first)
    second = bus.subscribe("a", lambda m: got.append(("second", m)))
    bus.publish("a", 1)
    bus.publish("a", 2)
    assert got == [("first", 1), ("first", 2), ("third", 2)]


def test_subscribers_that_nobody_would_await_are_refused() -> None:
    async def never(_message: Any) -> None: ...

    reported: list[str] = []
    bus = MessageBus(lambda _channel, error: reported.append(str(error)))
    with pytest.raises(UsageError, match="cannot be async"):
        bus.subscribe("a", never)
    bus.subscribe("a", lambda message: never(message))
    assert bus.publish("a", 1) == 0
    assert reported == ["a subscriber returned a coroutine, which nobody awaits"]


def test_a_response_reaches_the_request_with_its_id() -> None:
    async def scenario() -> list[Any]:
        bus = MessageBus()
        asked: list[dict[str, Any]] = []
        bus.subscribe("X_REQUEST", asked.append)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(bus.request("X_REQUEST", {"correlation_id": "1"}, 5))
            second = group.create_task(bus.request("X_REQUEST", {"correlationId": "2"}, 5))
            while len(asked) < 2:
                await asyncio.sleep(0)
            bus.publish("X_RESPONSE", {"correlation_id": "2", "for": "second"})
            bus.publish("X_RESPONSE", {"correlation_id": "3", "for": "nobody"})
            bus.publish("X_RESPONSE", {"correlation_id": "1", "for": "first"})
            bus.publish("X_RESPONSE", {"correlation_id": "1", "for": "nobody"})
        return [first.result()["for"], second.result()["for"]]

    assert asyncio.run(scenario()) == ["first", "second"]


def test_a_request_without_an_id_gets_one_and_stays_as_it_was() -> None:
    async def scenario() -> None:
        bus = MessageBus()

        def echo(message: dict[str, Any]) -> None:
            bus.publish("replies", message)

        bus.subscribe("questions", echo)
        message = {"text": "hello"}
        first = await bus.request("questions", message, 5, replies="replies")
        second = await bus.request("questions", message, 5, replies="replies")
        assert message == {"text": "hello"}
        assert first["text"] == "hello"
        assert first["correlation_id"] != second["correlation_id"]

    asyncio.run(scenario())


def test_a_request_that_nobody_answers_ends() -> None:
    async def scenario() -> None:
        bus = MessageBus()
        with pytest.raises(BusError, match="nobody listens"):
            await bus.request("X_REQUEST", {}, 5)
        bus.subscribe("X_REQUEST", lambda _message: None)
        with pytest.raises(Timeout, match=r"no response on X_RESPONSE within 0\.01 s"):
            await bus.request("X_REQUEST", {"correlation_id": "1"}, 0.01)
        # What came too late is for nobody, and its id is free again.
        bus.publish("X_RESPONSE", {"correlation_id": "1"})
        with pytest.raises(Timeout):
            await bus.request("X_REQUEST", {"correlation_id": "1"}, 0.01)

    asyncio.run(scenario())


def test_one_id_waits_for_one_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUESTS_MAX", 2)

    async def scenario() -> None:
        bus = MessageBus()
        bus.subscribe("X_REQUEST", lambda _message: None)
        async with asyncio.TaskGroup() as group:
            waiting = [
                group.create_task(bus.request("X_REQUEST", {"correlation_id": name}, 30))
                for name in "12"
            ]
            await asyncio.sleep(0)
            with pytest.raises(BusError, match="already waits"):
                await bus.request("X_REQUEST", {"correlation_id": "1"}, 30)
            with pytest.raises(BusError, match="2 requests already wait"):
                await bus.request("X_REQUEST", {"correlation_id": "3"}, 30)
            for task in waiting:
                task.cancel()
        with pytest.raises(Timeout):  # whoever was cancelled waits no more
            await bus.request("X_REQUEST", {"correlation_id": "1"}, 0.01)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ({"correlation_id": "a"}, "a"),
        ({"correlationId": "b"}, "b"),
        ({"correlation_id": "", "correlationId": "b"}, "b"),
        ({"correlation_id": "a", "correlationId": "b"}, "a"),
        ({"correlation_id": 7}, ""),
        ({}, ""),
        (None, ""),
        ("correlation_id", ""),
    ],
)
def test_an_id_is_a_text_in_either_spelling(message: object, found: str) -> None:
    assert correlation_id(message) == found
