"""What handlers can do, from any thread."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import pytest

from relay.core.errors import RelayError
from relay.core.message import QueueMode
from relay.directive.grammar import Match
from relay.protocol.op import by_name
from relay.session.actions import SessionActions
from relay.session.detector import Detection
from relay.session.run_info import RunInfo
from relay.session.session_commands import (
    FeatureCommand,
    FeatureRequested,
    PersonNote,
    SendRequested,
)
from relay.session.session_events import EventQueue

E = TypeVar("E")

HEARD = Detection(
    "01K00000000000000000000001", Match("relay", "Bob", "hi", {}, False, "@relay:Bob hi")
)


class Desk:
    """Actions of an agent called Alice; messages are answered by ``answer``."""

    def __init__(self, **options: Any) -> None:
        self.now_ms = 1_700_000_000_000
        self.events = EventQueue()
        self.asked: list[tuple[str, dict[str, Any]]] = []
        run = RunInfo("run", "Alice", "me", 0, "/src/shop", {}, **options)
        loop = asyncio.get_running_loop()
        self.actions = SessionActions(loop, self.events, self, run, lambda: self.now_ms)

    async def request(self, op: str, *_: Any, **fields: Any) -> Any:
        self.asked.append((op, fields))
        return {"agents": [{"name": "Bob"}]}

    def taken(self, kind: type[E]) -> list[E]:
        """The events of one kind that were posted since the last look."""
        found = []
        while (event := self.events.take()) is not None:
            if isinstance(event, kind):
                found.append(event)
        return found

    def sent(self) -> list[dict[str, Any]]:
        return [event.fields for event in self.taken(SendRequested)]


async def test_each_action_is_a_message_with_an_id() -> None:
    desk = Desk()
    injected, _ = desk.actions.inject("for me")
    sent, _ = desk.actions.send("Bob, Carol", "hello", mode=QueueMode.STEER, thread="t")
    noted, _ = desk.actions.notify("errors", "it broke")
    assert desk.sent() == [
        {"id": injected, "to": ["Alice"], "body": "for me", "notice": True, "by_hook": True},
        {"id": sent, "to": ["Bob", "Carol"], "body": "hello", "thread": "t", "mode": "steer"},
        {"id": noted, "to": ["me"], "body": "it broke", "thread": "errors"},
    ]
    assert len({injected, sent, noted}) == 3


async def test_from_another_thread_the_answer_comes_through() -> None:
    desk = Desk()

    def work() -> list[dict[str, Any]]:
        identifier, answer = desk.actions.inject("from a thread")
        assert answer.result(10) == {"id": identifier}
        return desk.actions.agents().result(10)

    working = asyncio.ensure_future(asyncio.to_thread(work))
    requested = await desk.events.next()
    assert isinstance(requested, SendRequested)
    identifier = requested.fields["id"]
    desk.actions.settle(identifier, {"id": identifier})
    assert await working == [{"name": "Bob"}]


async def test_who_waits_at_the_sessions_end_gets_no_answer() -> None:
    desk = Desk()
    _, answer = desk.actions.send("Bob", "x", mode=None, thread=None)
    desk.actions.close()
    with pytest.raises(RelayError, match="has ended"):
        await asyncio.wrap_future(answer)


async def test_what_sends_a_match_on_sends_the_match_itself_once() -> None:
    desk = Desk()
    actions = desk.actions.for_match(HEARD)
    other, _ = actions.send("Carol", "hi", mode=None, thread=None)
    first, _ = actions.send("Bob", "hi", mode=None, thread=None)
    again, _ = actions.send("Bob", "hi", mode=None, thread=None)
    assert first == HEARD.id
    assert HEARD.id == again != other


async def test_handlers_that_tell_the_agent_more_and_more_are_stopped_until_the_person_speaks() -> (
    None
):
    desk = Desk(texts_max=2)

    def told() -> bool:
        _, future = desk.actions.inject("again")
        return not future.done() or future.exception() is None

    assert [told() for _ in range(4)] == [True, True, False, False]
    (note,) = desk.taken(PersonNote)
    assert "2 texts" in note.text
    desk.actions.person()
    assert [told() for _ in range(3)] == [True, True, False]
    desk.now_ms += 60_000
    assert told() and len(desk.taken(PersonNote)) == 1


async def test_what_a_feature_adds_to_ctx_asks_the_broker_from_any_thread() -> None:
    desk = Desk()

    def work() -> object:
        return desk.actions.request(by_name("memory_save"), {"text": "x"}).result(10)

    assert await asyncio.to_thread(work) == {"agents": [{"name": "Bob"}]}
    assert desk.asked == [("memory_save", {"text": "x"})]


async def test_what_is_said_to_memory_keeps_its_id_and_its_options_once() -> None:
    desk = Desk()
    match = Match("memory", "save", "tea", {"scope": "user"}, False, "@memory:save tea")
    actions = desk.actions.for_match(Detection(HEARD.id, match))
    actions.command("memory", "save", "something else")
    actions.command("memory", "save", "tea")
    actions.command("memory", "save", "tea")
    commands = [event.command for event in desk.taken(FeatureRequested)]
    assert commands[1] == FeatureCommand(HEARD.id, "save", "tea", {"scope": "user"})
    assert len({command.id for command in commands}) == 3
    assert commands[2].attributes == {}


async def test_an_answer_of_memory_has_one_id_however_often_it_is_given() -> None:
    desk = Desk(texts_max=2)
    for identifier in (HEARD.id, HEARD.id, "01K00000000000000000000002"):
        desk.actions.answer(identifier, "memory: saved")
    first, again = desk.sent()  # and the third was one too many
    assert first == again and first["id"] not in (HEARD.id, None) and first["notice"]
    assert first["id"][:10] == HEARD.id[:10] and len(first["id"]) == 26
