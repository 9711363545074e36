"""What handlers can do, from any thread."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.errors import RelayError, UsageError
from relay.model import Mode
from relay.session.actions import SessionActions
from relay.session.hearing import Heard
from relay.text.grammar import Match

HEARD = Heard("01K00000000000000000000001", Match("relay", "Bob", "hi", {}, False, "@relay:Bob hi"))


class Desk:
    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.error: RelayError | None = None
        self.actions = SessionActions(
            asyncio.get_running_loop(),
            self.send,
            self.request,
            lambda: 1_700_000_000_000,
            own_name="Alice",
            person="me",
        )

    def send(self, fields: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        self.sent.append(fields)
        return self.future({"id": fields["id"]})

    def request(self, op: str, extra: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        return self.future({"agents": [{"name": "Bob"}]})

    def future(self, answer: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        if self.error is not None:
            done.set_exception(self.error)
        else:
            done.set_result(answer)
        return done


def test_each_action_is_a_message_with_an_id() -> None:
    async def scenario() -> None:
        desk = Desk()
        injected, _ = desk.actions.inject("for me")
        sent, _ = desk.actions.send("Bob, Carol", "hello", mode=Mode.STEER, thread="t")
        noted, _ = desk.actions.notify("errors", "it broke")
        assert desk.sent == [
            {"id": injected, "to": ["Alice"], "body": "for me", "notice": True},
            {"id": sent, "to": ["Bob", "Carol"], "body": "hello", "thread": "t", "mode": "steer"},
            {"id": noted, "to": ["me"], "body": "it broke", "thread": "errors"},
        ]
        assert len({injected, sent, noted}) == 3

    asyncio.run(scenario())


def test_from_another_thread_the_answer_comes_through() -> None:
    async def scenario() -> None:
        desk = Desk()

        def work() -> list[dict[str, Any]]:
            identifier, answer = desk.actions.inject("from a thread")
            assert answer.result(10) == {"id": identifier}
            return desk.actions.agents().result(10)

        assert await asyncio.to_thread(work) == [{"name": "Bob"}]

    asyncio.run(scenario())


def test_a_refusal_reaches_whoever_waits_for_it() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.error = UsageError("cannot send to yourself")
        _, answer = desk.actions.send("Alice", "x", mode=None, thread=None)
        with pytest.raises(UsageError, match="yourself"):
            await asyncio.wrap_future(answer)

    asyncio.run(scenario())


def test_what_a_match_sends_first_is_the_match_itself_once() -> None:
    async def scenario() -> None:
        desk = Desk()
        actions = desk.actions.for_match(HEARD)
        other, _ = actions.send("Carol", "hi", mode=None, thread=None)
        first, _ = actions.send("Bob", "hi", mode=None, thread=None)
        again, _ = actions.send("Bob", "hi", mode=None, thread=None)
        assert first == HEARD.id
        assert HEARD.id not in (other, again)

    asyncio.run(scenario())
