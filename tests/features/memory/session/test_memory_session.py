"""``@memory:`` while the broker answers, is away, or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from relay.core.errors import BrokerUnavailable, ConfigError, NotFound, RelayError, StorageError
from relay.features.memory import session as memory_commands
from relay.features.memory.ops import MEMORY_SAVE, OPS
from relay.features.memory.session import MemoryGate, MemorySession, NoStore, chosen
from relay.features.memory.spec import StoreSpec, parse_store
from relay.session.session_commands import FeatureCommand

MEMORY = {"id": "k23fb0fc", "text": "the port is 6379", "scope": "project"}
REPLY = {"memory": MEMORY, "outcome": "new", "redacted": [], "memories": [MEMORY], "more": False}


class Desk:
    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.told: list[tuple[str, str]] = []
        self.noted: list[str] = []
        self.errors: list[RelayError] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.tasks: list[asyncio.Future[None]] = []
        self.memory = MemorySession(self, MemoryGate(self))
        self.states: list[int] = []

    def answer(self, id_: str, text: str) -> None:
        self.told.append((id_, text))

    def note(self, text: str) -> None:
        self.noted.append(text)

    def changed(self) -> None:
        self.states.append(len(self.memory.state()))

    def spawn(self, work: Awaitable[None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def request(self, op: str, *_: Any, **fields: Any) -> Any:
        await self.gate.wait()
        self.asked.append((op, fields))
        if self.errors:
            raise self.errors.pop(0)
        return REPLY

    def say(self, action: str, text: str = "", id_: str = "1", **attributes: str) -> None:
        self.memory.take(FeatureCommand(id_, action, text, attributes))

    async def settled(self) -> Desk:
        assert await self.memory.settle(20)
        return self


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_commands, "RETRY_SECONDS", 0.01)


async def test_each_command_is_an_op_in_the_place_where_the_agent_works() -> None:
    desk = Desk()
    desk.say("save", "the port is 6379\n", "1", scope="user", supersedes="abc")
    desk.say("search", "port", "2", limit="3")
    desk.say("list", "", "3", limit="99")
    desk.say("forget", " k23 ", "4")
    await desk.settled()
    assert desk.asked == [
        (
            "memory_save",
            {"scope": "user", "supersedes": "abc", "text": "the port is 6379"},
        ),
        ("memory_search", {"query": "port", "limit": 3, "scope": None}),
        ("memory_list", {"limit": 10, "scope": None}),
        ("memory_forget", {"id": "k23"}),
    ]
    # What worked as it was said costs the agent no turn.
    assert [identifier for identifier, _ in desk.told] == ["2", "3"]


@pytest.mark.parametrize(
    "command",
    [
        FeatureCommand("1", "save", "  "),
        FeatureCommand("1", "frobnicate", "x"),
        FeatureCommand("1", "save", "x" * (memory_commands.TEXT_MAX + 1)),
        FeatureCommand("1", "forget", "x", {"scope": "user"}),
        FeatureCommand("1", "search", "x", {"limit": "0"}),
        FeatureCommand("1", "search", "x", {"limit": "ten"}),
    ],
)
async def test_what_cannot_be_done_is_refused_at_once(command: FeatureCommand) -> None:
    desk = Desk()
    desk.memory.take(command)
    assert desk.asked == [] and desk.memory.state() == []
    assert desk.told[0][1].startswith(f"not done: @memory:{command.action}: ")


async def test_a_save_waits_for_a_broker_that_is_away_and_keeps_its_turn() -> None:
    desk = Desk()
    desk.errors = [BrokerUnavailable("away"), RelayError("full", code="busy")]
    desk.say("save", "first", "1")
    desk.say("save", "second", "2")
    await desk.settled()
    assert [fields["text"] for _, fields in desk.asked] == ["first"] * 3 + ["second"]
    assert desk.told == []
    assert desk.noted == ["@memory:save waits: away", "@memory:save waits: full"]


async def test_what_waits_is_in_the_checkpoint_and_is_done_by_the_next_session() -> None:
    first = Desk()
    first.gate.clear()
    first.say("save", "the port is 6379", "1", scope="user")
    first.say("save", "the port is 6379", "1", scope="user")  # heard again
    await asyncio.sleep(0)
    state = first.memory.state()
    assert state == [
        {
            "id": "1",
            "action": "save",
            "text": "the port is 6379",
            "attributes": {"scope": "user"},
        }
    ]
    for task in first.tasks:
        task.cancel()
    await asyncio.gather(*first.tasks, return_exceptions=True)
    second = Desk()
    second.memory.restore(state)
    await second.settled()
    assert second.asked[0][1]["scope"] == "user" and second.memory.state() == []


async def test_what_the_store_refuses_is_told_with_what_to_do() -> None:
    desk = Desk()
    desk.errors = [NotFound("no memory 'zzz'", hint="did you mean 'zzx'?")]
    desk.say("forget", "zzz", "1")
    await desk.settled()
    desk.errors = [StorageError("the file is damaged")]
    desk.say("save", "x", "2")
    await desk.settled()
    assert [text for _, text in desk.told] == [
        "not done: @memory:forget: no memory 'zzz' (did you mean 'zzx'?)",
        "not done: @memory:save: the file is damaged",
    ]


async def test_a_search_that_comes_too_late_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_commands, "SEARCH_DEADLINE", 0.0)

    desk = Desk()
    desk.errors = [BrokerUnavailable("away")]
    desk.say("search", "port", "1")
    await desk.settled()
    assert desk.told == [("1", "not done: @memory:search: away")]


async def test_nobody_is_told_after_the_agents_end_but_its_saves_are_done() -> None:
    desk = Desk()
    desk.errors = [BrokerUnavailable("away")]
    desk.say("save", "last words", "1")
    desk.memory.agent_gone()
    await desk.settled()
    assert len(desk.asked) == 2 and desk.told == []


async def test_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_commands, "PENDING_MAX", 2)

    desk = Desk()
    desk.gate.clear()
    for number in range(3):
        desk.say("save", f"fact {number}", str(number))
    assert desk.told == [("2", "not done: @memory:save: too many earlier ones still wait")]
    assert not await desk.memory.settle(0.01)
    desk.gate.set()
    await desk.settled()
    assert len(desk.asked) == 2


SERVER = parse_store("qdrant", {"url": "http://q:6333", "apiKeyEnv": "Q_KEY"})


def test_the_broker_gets_what_the_environment_of_the_session_holds() -> None:
    fields = chosen(SERVER, {"Q_KEY": "k"}).fields
    assert StoreSpec.from_json(fields["store"]) == SERVER.resolved({"Q_KEY": "k"})


def test_while_the_configuration_has_a_mistake_no_other_store_takes_its_place() -> None:
    found = chosen(StoreSpec(), {}, ConfigError("no backend 'mem9'", hint="did you mean mem0?"))
    assert found.problem is not None and "no backend 'mem9' (did you mean mem0?)" in found.note


def test_a_searcher_without_a_file_cannot_be_made_elsewhere() -> None:
    assert isinstance(chosen(StoreSpec("searcher"), {}).problem, ConfigError)
    assert chosen(StoreSpec("custom", {}, "/c.py", "s"), {}).problem is None


class Broker:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def request(self, op: str, *_: Any, **fields: Any) -> Any:
        self.asked.append(op)
        return {"op": op}


def test_without_a_store_nothing_about_memories_is_asked() -> None:
    broker = Broker()
    problem = ConfigError("no key")
    gate = MemoryGate(broker, problem)
    gate.check("agents")
    for op in OPS:
        with pytest.raises(NoStore, match="no key"):
            gate.check(op)
    with pytest.raises(NoStore, match="no key"):
        asyncio.run(gate.request(MEMORY_SAVE, text="x"))
    assert broker.asked == []
