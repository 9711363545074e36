"""Which store a session asks for, and what it says when that cannot be known."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.core.errors import ConfigError
from relay.features.memory.ops import MEMORY_SAVE, OPS
from relay.features.memory.session import MemoryGate, NoStore, chosen
from relay.features.memory.spec import StoreSpec, parse_store

SERVER = parse_store("qdrant", {"url": "http://q:6333", "apiKeyEnv": "Q_KEY"})


def test_the_default_store_needs_no_field() -> None:
    assert chosen(StoreSpec(), {}).fields == {} and not chosen(StoreSpec(), {}).note


def test_the_broker_gets_what_the_environment_of_the_session_holds() -> None:
    fields = chosen(SERVER, {"Q_KEY": "k"}).fields
    assert StoreSpec.from_json(fields["store"]) == SERVER.resolved({"Q_KEY": "k"})


def test_a_variable_that_is_missing_is_told_to_the_person() -> None:
    found = chosen(SERVER, {})
    assert found.fields == {}
    assert found.note.startswith("memories are neither saved nor found: memory: the environment")
    assert "Q_KEY" in found.note and "where relay is started" in found.note


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
