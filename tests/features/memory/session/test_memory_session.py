"""``@memory:`` while the broker answers, is away or refuses; what is remembered at a start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.agents.context_door import ContextDoor
from relay.config.settings import Settings
from relay.core.errors import BrokerUnavailable, ConfigError, NotFound, RelayError, StorageError
from relay.features.memory import session, session_texts
from relay.features.memory import session as memory_commands
from relay.features.memory.ops import MEMORY_SAVE, OPS
from relay.features.memory.session import (
    KEPT_MAX,
    TAIL_MAX,
    LastWords,
    MemoryGate,
    MemorySession,
    NoStore,
    Recall,
    about,
    chosen,
    tail,
)
from relay.features.memory.settings import MEMORY, MemorySettings
from relay.features.memory.spec import StoreSpec, parse_store
from relay.hooks.events import HookEventName
from relay.hooks.registry import Registry
from relay.session.door import SessionFacts
from relay.session.feature_parts import FeatureParts
from relay.session.session_commands import FeatureCommand

ROW = {"id": "k23fb0fc", "text": "the port is 6379", "scope": "project", "session": "earlier"}
REPLY = {"memory": ROW, "outcome": "new", "redacted": [], "memories": [ROW], "more": False}


class Desk:
    """A session, its broker and its agent, whose context door is the file ``told`` if any."""

    def __init__(self, folder: Path | None = None, event: str = "") -> None:
        self.reply: dict[str, Any] = dict(REPLY)
        self.file = None if folder is None else folder / "told"
        if self.file is not None and not event:
            self.file.write_text("")
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.told: list[tuple[str, str]] = []
        self.noted: list[str] = []
        self.errors: list[RelayError] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.tasks: list[asyncio.Future[None]] = []
        self.memory = MemorySession(
            cast(FeatureParts, self),
            MemoryGate(self),
            door=None if self.file is None else ContextDoor(str(self.file), event),
            recall=Recall("the task", "now", "/src"),
        )
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
        return self.reply

    def say(self, action: str, text: str = "", id_: str = "1", **attributes: str) -> None:
        self.memory.take(FeatureCommand(id_, action, text, attributes))

    async def settled(self) -> Desk:
        assert await self.memory.settle(20)
        return self

    async def starts(self) -> str:
        """Its run begins; what it is told in its context."""
        self.memory.begin()
        await asyncio.gather(*self.tasks)
        return self.context

    @property
    def context(self) -> str:
        return "" if self.file is None or not self.file.exists() else self.file.read_text().strip()


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
        ("memory_save", {"scope": "user", "supersedes": "abc", "text": "the port is 6379"}),
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
        {"id": "1", "action": "save", "text": "the port is 6379", "attributes": {"scope": "user"}}
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
    fields, _ = chosen(SERVER, {"Q_KEY": "k"})
    assert StoreSpec.from_json(fields["store"]) == SERVER.resolved({"Q_KEY": "k"})


def test_while_the_configuration_has_a_mistake_no_other_store_takes_its_place() -> None:
    _, problem = chosen(
        StoreSpec(), {}, ConfigError("no backend 'mem9'", hint="did you mean mem0?")
    )
    assert problem is not None and problem.line == "no backend 'mem9' (did you mean mem0?)"


def test_a_searcher_without_a_file_cannot_be_made_elsewhere() -> None:
    assert isinstance(chosen(StoreSpec("searcher"), {})[1], ConfigError)
    assert chosen(StoreSpec("custom", {}, "/c.py", "s"), {})[1] is None


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


# -- relay's own handlers for ``@memory:``, and what is remembered at a start and an end.


def registered(memories: MemorySettings | None = None, kind: str = "claude") -> Registry:
    registry = Registry()
    settings = Settings(features={MEMORY: memories or MemorySettings()})
    session.register(registry, SessionFacts(kind, {}, {}, settings))
    return registry


def test_an_overriding_handler_of_the_users_takes_its_place() -> None:
    registry = registered()
    registry.add_pattern("memory", "*", lambda target: None, override=True)
    assert [handler.builtin for handler in registry.select("memory", "save")] == [False]


def test_a_reminder_is_for_an_agent_in_a_conversation_and_by_the_settings() -> None:
    end, wanted = HookEventName.SESSION_END, MemorySettings(prompt_on_end=True)
    assert not registered().hooks(end)
    assert registered(wanted).hooks(end)
    assert not registered(wanted, "command").hooks(end)


async def test_a_start_recalls_what_fits_the_task_and_what_is_newest(tmp_path: Path) -> None:
    agent = Desk(tmp_path)
    assert await agent.starts() == session_texts.at_start([ROW], "/src")
    assert agent.told == []
    assert agent.asked == [
        ("memory_search", {"query": "the task", "limit": 20}),
        ("memory_list", {"limit": 20}),
    ]


async def test_who_has_no_context_door_is_told_nothing_at_its_start() -> None:
    agent = Desk()
    await agent.starts()
    assert agent.told == [] and agent.asked == []


async def test_a_start_recalls_nothing_of_its_own_session(tmp_path: Path) -> None:
    agent = Desk(tmp_path)
    agent.reply["memories"] = [{**ROW, "session": "now"}]
    assert await agent.starts() == ""


async def test_what_a_handler_looked_for_is_not_told_twice(tmp_path: Path) -> None:
    agent = Desk(tmp_path)
    agent.memory.asked("memory_search")
    assert await agent.starts() == ""


async def test_a_start_without_a_store_is_told_nothing(tmp_path: Path) -> None:
    agent = Desk(tmp_path)
    agent.errors = [NoStore("the environment variable Q is not set")] * 2
    assert await agent.starts() == ""


def test_a_folder_whose_name_is_no_unicode_costs_only_that_name() -> None:
    assert about("the task", "/src/caf\udce9") == "the task"
    assert about(None, "/src/caf\udce9") == ""
    assert about("the task", "/src/shop") == "the task shop"


async def test_a_save_is_confirmed_beside_the_next_prompt(tmp_path: Path) -> None:
    agent = Desk(tmp_path, "UserPromptSubmit")
    agent.say("save", "the port is 6379")
    await agent.settled()
    assert "memory: saved as k23fb0fc (project)" in agent.context
    assert agent.told == []


@pytest.mark.parametrize(
    ("text", "outcome", "typed"),
    [
        ("x", {"outcome": "new", "redacted": []}, False),
        ("x", {"outcome": "same", "redacted": []}, False),
        ("x", {"outcome": "new", "redacted": ["a token"]}, True),
        ("x", {"outcome": "updated", "redacted": [], "former": "the port is 7"}, True),
        ("scope:user x", {"outcome": "new", "redacted": []}, True),
    ],
    ids=["new", "same", "redacted", "replaced", "missed-option"],
)
async def test_elsewhere_only_what_differs_from_what_was_said_is_worth_a_turn(
    text: str, outcome: dict[str, Any], typed: bool
) -> None:
    agent = Desk()
    agent.reply |= outcome
    agent.say("save", text)
    await agent.settled()
    assert bool(agent.told) is typed


# -- What leaves the session at its end with ``auto_save``, and what happens when it cannot.

OPENAI = {"provider": "openai", "model": "m", "url": "http://127.0.0.1:9"}
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0" * 2


class Rig:
    def __init__(
        self,
        config: dict[str, Any] = OPENAI,
        environ: dict[str, str] | None = None,
        project: str | None = "/src/shop",
        error: RelayError | None = None,
    ) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.notes: list[str] = []
        self._error = error
        self.words = LastWords(
            config, environ or {}, MemoryGate(self), cast(FeatureParts, self), project=project
        )

    def note(self, text: str) -> None:
        self.notes.append(text)

    async def request(self, op: str, *_: Any, **fields: Any) -> Any:
        self.asked.append((op, fields))
        if self._error is not None:
            raise self._error
        return {}

    def end(self) -> str:
        """The text that was handed over; empty for none."""
        asyncio.run(self.words.end())
        return str(self.asked[-1][1]["text"]) if self.asked else ""


def test_one_request_hands_over_the_words_the_model_and_where_they_belong() -> None:
    rig = Rig({**OPENAI, "api_key_env": "MINE"}, {"MINE": "sesame"})
    rig.words.said(["one", "two"])
    rig.words.said(["three"])
    assert rig.end() == "one\ntwo\nthree"
    ((op, fields),) = rig.asked
    assert op == "memory_extract" and fields["deadline"] <= 10
    assert fields["llm"] == {
        "provider": "openai",
        "model": "m",
        "url": "http://127.0.0.1:9/v1/chat/completions",
        "api_key": "sesame",
    }
    assert "cwd" not in fields and rig.notes == []


def test_no_secret_leaves_the_session_and_no_control() -> None:
    rig = Rig()
    rig.words.said([f"export GITHUB_TOKEN={TOKEN}", "\x1b[31mred\x1b[0m", "half \ud800"])
    text = rig.end()
    assert TOKEN[4:] not in text and "GITHUB_TOKEN" in text
    assert "\x1b" not in text and "\ud800" not in text


@pytest.mark.parametrize("size", [10, 1000, 3 * KEPT_MAX])
def test_only_the_end_is_kept_and_sent(size: int) -> None:
    rig = Rig()
    rig.words.said(["before", TOKEN])
    for number in range(3 * KEPT_MAX // size + 2):
        rig.words.said([f"{number} " + "x" * size])
        assert rig.words._size <= 2 * KEPT_MAX + size
    rig.words.said(["the last line"])
    text = rig.end()
    assert text.endswith("the last line") and "before" not in text
    assert len(text.encode()) <= TAIL_MAX


def test_a_secret_at_the_beginning_of_what_is_sent_is_masked() -> None:
    rig = Rig()
    filler = "and so on " * (TAIL_MAX // 10 - 3) + "."
    rig.words.said(["first " + TOKEN, filler])
    text = rig.end()
    assert text.endswith(filler) and TOKEN[-20:] not in text


def test_an_agent_that_said_nothing_asks_nothing() -> None:
    rig = Rig()
    rig.words.said(["", "  "])
    assert rig.end() == "" and rig.notes == []


def test_a_variable_that_is_not_set_is_noted_at_once() -> None:
    rig = Rig({**OPENAI, "api_key_env": "ABSENT"})
    assert len(rig.notes) == 1 and "ABSENT is not set" in rig.notes[0]
    rig.words.said(["one"])
    assert rig.end() == ""


def test_a_broker_that_is_away_is_asked_once(capsys: pytest.CaptureFixture[str]) -> None:
    rig = Rig(error=BrokerUnavailable("the broker could not be reached in time", hint="look"))
    rig.words.said(["one"])
    rig.end()
    assert len(rig.asked) == 1
    assert rig.notes == [
        "auto_save: nothing is kept of this session: the broker could not be reached in time (look)"
    ]
    assert capsys.readouterr().err == f"{rig.notes[0]}\n"


def test_a_folder_that_cannot_be_named_has_no_project() -> None:
    rig = Rig(project=None)
    rig.words.said(["one"])
    assert rig.end() == "" and "not Unicode" in rig.notes[0]


@given(st.text(), st.integers(1, 50))
def test_a_tail_is_the_end(text: str, limit: int) -> None:
    kept = tail(text, limit)
    assert len(kept.encode()) <= limit
    assert text.encode(errors="replace").endswith(kept.encode())
