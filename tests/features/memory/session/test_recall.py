"""relay's own handlers for ``@memory:``, and what is remembered at a start and an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from relay.agents.context_door import ContextDoor
from relay.config.settings import Settings
from relay.features.memory import session, session_texts
from relay.features.memory.session import MemoryGate, MemorySession, NoStore, Recall, about
from relay.features.memory.settings import MEMORY, MemorySettings
from relay.hooks.events import HookEventName
from relay.hooks.registry import Registry
from relay.session.door import SessionFacts
from relay.session.session_commands import FeatureCommand

ROW = {
    "id": "k23fb0fc",
    "text": "the port is 6379",
    "scope": "project",
    "session": "earlier",
}


def registered(memories: MemorySettings | None = None, kind: str = "claude") -> Registry:
    registry = Registry()
    settings = Settings(features={MEMORY: memories or MemorySettings()})
    session.register(registry, SessionFacts(kind, {}, {}, settings))
    return registry


class Agent:
    """An agent whose file ``told`` is its context door, or which has none."""

    def __init__(self, folder: Path | None, rows: list[dict[str, Any]], event: str = "") -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.typed: list[str] = []
        self.rows = rows
        self.error: Exception | None = None
        self.outcome: dict[str, Any] = {"outcome": "new", "redacted": []}
        self.file = None if folder is None else folder / "told"
        if self.file is not None and not event:
            self.file.write_text("")
        self._tasks: list[asyncio.Future[None]] = []
        self.memory = MemorySession(
            self,
            MemoryGate(self),
            door=None if self.file is None else ContextDoor(str(self.file), event),
            recall=Recall("the task", "now", "/src"),
        )

    def answer(self, id_: str, text: str) -> None:
        self.typed.append(text)

    def note(self, text: str) -> None:
        pass

    def changed(self) -> None:
        pass

    def spawn(self, work: Awaitable[None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def request(self, op: str, *_: Any, **fields: Any) -> Any:
        self.asked.append((op, fields))
        if self.error:
            raise self.error
        return {"memories": self.rows, "more": False, "memory": ROW, **self.outcome}

    def starts(self) -> str:
        """Its run begins; what it is told in its context."""

        async def scenario() -> None:
            self.memory.begin()
            await asyncio.gather(*self._tasks)

        asyncio.run(scenario())
        return self.told

    def says(self, action: str, text: str) -> None:
        async def scenario() -> None:
            self.memory.take(FeatureCommand("1", action, text))
            assert await self.memory.settle(10)

        asyncio.run(scenario())

    @property
    def told(self) -> str:
        return "" if self.file is None or not self.file.exists() else self.file.read_text().strip()


def test_an_overriding_handler_of_the_users_takes_its_place() -> None:
    registry = registered()
    registry.add_pattern("memory", "*", lambda target: None, override=True)
    assert [handler.builtin for handler in registry.select("memory", "save")] == [False]


def test_a_reminder_is_for_an_agent_in_a_conversation_and_by_the_settings() -> None:
    end, wanted = HookEventName.SESSION_END, MemorySettings(prompt_on_end=True)
    assert not registered().hooks(end)
    assert registered(wanted).hooks(end)
    assert not registered(wanted, "command").hooks(end)


def test_a_start_recalls_what_fits_the_task_and_what_is_newest(tmp_path: Path) -> None:
    agent = Agent(tmp_path, [ROW])
    assert agent.starts() == session_texts.at_start([ROW], "/src")
    assert agent.typed == []
    assert agent.asked == [
        ("memory_search", {"query": "the task", "limit": 20}),
        ("memory_list", {"limit": 20}),
    ]


def test_who_has_no_context_door_is_told_nothing_at_its_start() -> None:
    agent = Agent(None, [ROW])
    agent.starts()
    assert agent.typed == [] and agent.asked == []


def test_a_start_recalls_nothing_of_its_own_session(tmp_path: Path) -> None:
    assert Agent(tmp_path, [{**ROW, "session": "now"}]).starts() == ""


def test_what_a_handler_looked_for_is_not_told_twice(tmp_path: Path) -> None:
    agent = Agent(tmp_path, [ROW])
    agent.memory.asked("memory_search")
    assert agent.starts() == ""


def test_a_start_without_a_store_is_told_nothing(tmp_path: Path) -> None:
    agent = Agent(tmp_path, [ROW])
    agent.error = NoStore("the environment variable Q is not set")
    assert agent.starts() == ""


def test_a_folder_whose_name_is_no_unicode_costs_only_that_name() -> None:
    assert about("the task", "/src/caf\udce9") == "the task"
    assert about(None, "/src/caf\udce9") == ""
    assert about("the task", "/src/shop") == "the task shop"


def test_a_save_is_confirmed_beside_the_next_prompt(tmp_path: Path) -> None:
    agent = Agent(tmp_path, [], "UserPromptSubmit")
    agent.says("save", "the port is 6379")
    assert "memory: saved as k23fb0fc (project)" in agent.told
    assert agent.typed == []


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
def test_elsewhere_only_what_differs_from_what_was_said_is_worth_a_turn(
    text: str, outcome: dict[str, Any], typed: bool
) -> None:
    agent = Agent(None, [])
    agent.outcome = outcome
    agent.says("save", text)
    assert bool(agent.typed) is typed
