"""relay's own handlers for ``@memory:`` and for what is remembered at a start and an end."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

from relay.config.memory_settings import MemorySettings
from relay.hooks.events import HookEventName
from relay.hooks.registry import Registry
from relay.memory import session_addon, session_texts
from relay.memory.session_store import NoStore
from tests.hooks.fakes import FakeActions, context

ROW = {
    "id": "k23fb0fc",
    "text": "the port is 6379",
    "scope": "project",
    "session": "earlier",
}


def registered(memories: MemorySettings | None = None) -> Registry:
    registry = Registry()
    session_addon.register_memory(registry, memories or MemorySettings())
    return registry


def test_memory_has_four_actions_of_relays_own() -> None:
    registry = registered()
    assert registry.namespaces() == {"memory"}
    for action in ("save", "search", "forget", "list"):
        [handler] = registry.select("memory", action)
        actions = FakeActions()
        handler.callee.binding.call(handler.callee.function, (action, "x", context(actions)))
        assert handler.builtin and actions.done == [("command", action, "x")]
    assert registry.select("memory", "burn") == []


def test_an_overriding_handler_of_the_users_takes_its_place() -> None:
    registry = registered()
    registry.add_pattern("memory", "*", lambda target: None, override=True)
    assert [handler.builtin for handler in registry.select("memory", "save")] == [False]


def test_hooks_at_the_start_and_the_end_by_the_settings() -> None:
    start, end = HookEventName.SESSION_START, HookEventName.SESSION_END
    assert registered().hooks(start) and not registered().hooks(end)
    registry = registered(MemorySettings(inject_on_start=False, prompt_on_end=True))
    assert not registry.hooks(start) and registry.hooks(end)


def test_a_start_recalls_what_fits_the_task_and_what_is_newest() -> None:
    actions = FakeActions()
    actions.memories = {"memories": [ROW], "more": False}
    text = asyncio.run(session_addon.recall(context(actions)))
    assert text == session_texts.at_start([ROW])
    assert actions.done == [
        ("search", {"query": "the task", "limit": 20}),
        ("list", {"limit": 20}),
    ]


def test_a_start_recalls_nothing_of_its_own_session() -> None:
    actions = FakeActions()
    ctx = context(actions)
    actions.memories = {"memories": [{**ROW, "session": ctx.session_id}], "more": False}
    assert asyncio.run(session_addon.recall(ctx)) is None


def test_a_folder_whose_name_is_no_unicode_costs_only_that_name() -> None:
    actions = FakeActions()
    ctx = context(actions)
    ctx.working_dir = "/src/caf\udce9"
    asyncio.run(session_addon.recall(ctx))
    ctx.task = None
    asyncio.run(session_addon.recall(ctx))
    assert actions.done == [
        ("search", {"query": "the task", "limit": 20}),
        ("list", {"limit": 20}),
        ("list", {"limit": 20}),
    ]


def test_a_start_without_memories_says_nothing() -> None:
    assert asyncio.run(session_addon.recall(context(FakeActions()))) is None


def test_a_start_without_a_store_is_no_failure_of_a_hook() -> None:
    class Nowhere(FakeActions):
        def memory(self, op: str, fields: dict[str, Any]) -> Future[dict[str, Any]]:
            future: Future[dict[str, Any]] = Future()
            future.set_exception(NoStore("the environment variable Q is not set"))
            return future

    assert asyncio.run(session_addon.recall(context(Nowhere()))) is None
