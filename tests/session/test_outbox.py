"""What the agent says to others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from relay.core.errors import BrokerUnavailable, NotFound, RelayError, StorageError
from relay.session import outbox as module
from relay.session.outbox import Sender

Answer = dict[str, Any] | RelayError


class Desk:
    """A sender whose broker answers from a list, and repeats its last answer."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.told: list[str] = []
        self.noted: list[str] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.sender = Sender(self.request, self.told.append, self.noted.append, self.spawn)

    async def request(self, op: str, **fields: Any) -> dict[str, Any]:
        assert op == "send"
        self.asked.append(fields)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, RelayError):
            raise answer
        return answer

    def spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)

    def run(self, then: Callable[[], object]) -> None:
        async def scenario() -> None:
            then()
            async with asyncio.timeout(10):
                await asyncio.gather(*self.tasks)

        asyncio.run(scenario())


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)


def fields(number: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": f"id{number}", "to": ["Bob"], "body": "hello", **more}


OK: Answer = {"id": "id1", "deliveries": [{"to": "Bob", "state": "queued", "reason": None}]}


def test_messages_leave_in_order_and_nothing_is_told_when_all_is_well() -> None:
    desk = Desk(OK)
    desk.run(lambda: [desk.sender.send(fields(number)) for number in range(5)])
    assert [one["id"] for one in desk.asked] == [f"id{number}" for number in range(5)]
    assert desk.told == [] and desk.sender.state() == []


@pytest.mark.parametrize("error", [BrokerUnavailable("gone"), StorageError("the disk is full")])
def test_what_the_broker_cannot_take_now_stays_pending_under_its_id(error: RelayError) -> None:
    desk = Desk(error, error, OK)
    desk.run(lambda: desk.sender.send(fields()))
    assert [one["id"] for one in desk.asked] == ["id1"] * 3
    assert desk.told == [] and desk.noted and desk.sender.state() == []


def test_a_refusal_is_explained_to_the_agent() -> None:
    desk = Desk(NotFound("the message is empty", hint="write something"))
    desk.run(lambda: desk.sender.send(fields()))
    assert desk.told == ["not sent: the message is empty (write something)"]
    assert desk.sender.state() == []


def test_a_notice_that_is_refused_is_not_explained_by_another_notice() -> None:
    desk = Desk(NotFound("no"))
    desk.run(lambda: desk.sender.send(fields(notice=True)))
    assert desk.told == []


def test_an_unknown_name_is_explained_with_who_is_there() -> None:
    desk = Desk(
        {
            "id": "id1",
            "deliveries": [{"to": "Bbo", "state": "held", "reason": "nobody"}],
            "did_you_mean": ["Bob"],
            "present": ["Bob", "Carol"],
        }
    )
    desk.run(lambda: desk.sender.send(fields()))
    (told,) = desk.told
    assert "nobody is called Bbo yet" in told
    assert "Did you mean Bob?" in told and "Bob, Carol" in told and "seven days" in told


@pytest.mark.parametrize("parked", [True, False])
def test_what_stays_held_is_told_once_until_something_changes(parked: bool) -> None:
    held = {"to": "Bob", "state": "held", "reason": "too many"} | (
        {"parked": True} if parked else {}
    )
    desk = Desk({"id": "id1", "deliveries": [held]})
    number = 0

    def say(answer: Answer | None = None) -> int:
        nonlocal number
        number += 1
        if answer is not None:
            desk.answers = [answer]
        desk.tasks.clear()
        desk.run(lambda: desk.sender.send(fields(number)))
        return len(desk.told)

    # An agent that answers each notice with another message is not kept busy for ever.
    assert [say(), say(), say()] == [1, 1, 1]
    say(OK)
    assert say({"id": "id1", "deliveries": [held]}) == 2
    assert say() == 2
    desk.sender.person()
    assert say() == 3


def test_a_repetition_is_not_explained_again() -> None:
    desk = Desk({"id": "id1", "duplicate": True, "deliveries": [{"to": "Zoe", "state": "held"}]})
    desk.run(lambda: desk.sender.send(fields()))
    assert desk.told == []


def test_a_broadcast_to_nobody_says_so() -> None:
    desk = Desk(
        {"id": "id1", "deliveries": [{"to": "*", "state": "failed", "reason": "nobody is there"}]}
    )
    desk.run(lambda: desk.sender.send(fields()))
    assert desk.told == ["not delivered to *: nobody is there"]


def test_what_was_pending_is_sent_again_by_the_next_session() -> None:
    stuck = Desk(BrokerUnavailable("gone"))

    async def scenario() -> None:
        stuck.sender.send(fields())
        for _ in range(5):
            await asyncio.sleep(0)
        for task in stuck.tasks:
            task.cancel()
        await asyncio.gather(*stuck.tasks, return_exceptions=True)

    asyncio.run(scenario())
    pending = stuck.sender.state()
    desk = Desk(OK)
    desk.run(lambda: desk.sender.restore(pending))
    assert [one["id"] for one in desk.asked] == ["id1"]


def test_the_queue_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 2)
    desk = Desk(OK)

    def flood() -> None:
        for number in range(3):
            desk.sender.send(fields(number))

    desk.run(flood)
    assert len(desk.asked) == 2
    assert "too many messages wait" in desk.told[0]


def test_a_full_queue_is_told_once_and_not_told_of_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 1)
    monkeypatch.setattr(module, "NOTICES_MAX", 1)
    desk = Desk(OK)

    def tell(text: str) -> None:
        # As a session does it: what is told is itself a message.
        desk.told.append(text)
        desk.sender.send(fields(100 + len(desk.told), body=text, notice=True))

    desk.sender = Sender(desk.request, tell, desk.noted.append, desk.spawn)
    desk.run(lambda: [desk.sender.send(fields(number)) for number in range(3)])
    assert [one["id"] for one in desk.asked] == ["id0", "id101"]
    assert len(desk.told) == 2 and len(desk.noted) == 1


def test_what_waits_is_counted_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_BYTES_MAX", 100)
    desk = Desk(OK)
    desk.run(lambda: [desk.sender.send(fields(number, body="€" * 20)) for number in range(2)])
    assert [one["id"] for one in desk.asked] == ["id0"]
    assert "too many messages wait" in desk.told[0]
