"""``ctx.memory`` in sync and async handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from relay.core.errors import NotFound, UsageError
from relay.features.memory.context_memory import MemoryList
from tests.hooks.fakes import FakeActions, context

MEMORY = {"id": "k23fb0fc", "text": "the port\nis 6379", "scope": "project", "created_ms": 7}


def acting() -> FakeActions:
    actions = FakeActions()
    actions.memories = {
        "memory": MEMORY,
        "memories": [MEMORY],
        "outcome": "new",
        "redacted": [],
        "more": False,
    }
    return actions


def test_a_sync_handler_uses_what_it_gets_as_a_list() -> None:
    actions = acting()
    ctx = context(actions)
    found = ctx.memory.search("port")
    assert [memory.content for memory in found] == ["the port\nis 6379"]
    assert len(found) == 1 and found[0].id == "k23fb0fc" and found[:1] == [MEMORY]
    assert f"{found}" == "- the port is 6379"
    assert ctx.memory.list(scope="user").wait() == [MEMORY]
    saved = ctx.memory.add("x", scope="user", meta={"a": 1}).wait()
    assert (saved.outcome, saved["text"], saved.createdMs) == ("new", MEMORY["text"], 7)
    assert str(ctx.memory.get("k23").wait()) == MEMORY["text"]
    assert ctx.memory.delete("k23").wait()["id"] == ctx.memory.forget("k23").wait()["id"]
    assert actions.done == [
        ("search", {"query": "port", "limit": 10}),
        ("list", {"limit": 20, "scope": "user"}),
        ("save", {"text": "x", "scope": "user", "meta": {"a": 1}}),
        ("get", {"id": "k23"}),
        ("forget", {"id": "k23"}),
        ("forget", {"id": "k23"}),
    ]


def test_an_async_handler_awaits_it() -> None:
    async def handler(ctx: Any) -> None:
        found = await ctx.memory.search("port", {"limit": 3})
        assert isinstance(found, MemoryList) and found[0].content == MEMORY["text"]
        assert (await ctx.memory.add("x", {"agentId": ctx.agentId})).id == "k23fb0fc"
        assert (await ctx.memory.get("k23")).scope == "project"

    asyncio.run(handler(context(acting())))


def test_an_error_comes_where_the_answer_is_wanted() -> None:
    actions = acting()
    actions.refusal = NotFound("there is no memory 'zzz'")
    with pytest.raises(NotFound):
        context(actions).memory.get("zzz").wait()
    with pytest.raises(NotFound):
        list(context(actions).memory.search("x"))


def test_mistakes_are_explained() -> None:
    ctx: Any = context(acting())
    wrongs: list[Callable[[], object]] = [
        lambda: ctx.memory.add(""),
        lambda: ctx.memory.add(7),
        lambda: ctx.memory.search("x", "user"),
        lambda: ctx.memory.search("x", scop="user"),
    ]
    for wrong in wrongs:
        with pytest.raises(UsageError):
            wrong()
    with pytest.raises(AttributeError, match="did you mean 'scope'"):
        _ = ctx.memory.get("k23").wait().scop
