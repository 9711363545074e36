"""A searcher that a trusted configuration registers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.config import load, trust
from relay.core.errors import ConfigError
from relay.core.paths import Home
from relay.features.memory.records import Tier
from relay.features.memory.settings import MEMORY
from relay.features.memory.spec import StoreSpec
from relay.features.memory.store_access import StoreAccess
from tests.features.memory.local.test_store import FACTS, NOW, PROJECT, USER, save, texts

CONFIG = """\
def search(query, limit, scope):
    if "broken" in query:
        raise RuntimeError("the index is broken")
    if "number" in query:
        return [1]
    return ["zzzzzzzz", "The tests need Redis on port 6379.", scope]

class Search:
    def search(self, query, limit, scope):
        return search(query, limit, scope)

memory = {"searcher": %s}
"""


@pytest.fixture
def spec(home: Home, tmp_path: Path) -> Callable[[str], StoreSpec]:
    def made(name: str) -> StoreSpec:
        path = tmp_path / "relay.config.py"
        path.write_text(CONFIG % name)
        trust.trust(home, str(path))
        return load.load(trust.read_config(str(path)), home=home).settings.of(MEMORY).store

    return made


@pytest.mark.parametrize("name", ["search", "Search", "Search()"])
def test_what_it_gives_is_looked_up_in_the_store(
    name: str, spec: Callable[[str], StoreSpec], home: Home
) -> None:
    access = StoreAccess(spec(name), home)
    store = access.opened([])
    assert store.stats().pending == 0
    save(store, FACTS[0])
    save(store, FACTS[0], USER)
    save(store, FACTS[1])
    hits = store.search("where does the cache listen?", [PROJECT, USER], 5, now_ms=NOW)
    assert [(hit.memory.text, hit.memory.place) for hit in hits] == [
        (FACTS[0], PROJECT),
        (FACTS[0], USER),
    ]
    assert {hit.tier for hit in hits} == {Tier.HYBRID}
    store.forget(hits[0].memory.id)
    assert texts(store, "where does the cache listen?") == []
    access.close()


@pytest.mark.parametrize(("query", "why"), [("broken", "index is broken"), ("number", "list of")])
def test_one_that_fails_costs_the_meaning_only(
    query: str, why: str, spec: Callable[[str], StoreSpec], home: Home
) -> None:
    access = StoreAccess(spec("search"), home)
    store = access.opened([])
    save(store, FACTS[1])
    assert texts(store, f"{query} deploy") == [FACTS[1]]
    assert why in store.stats().problem
    access.close()


def test_a_file_that_has_changed_is_not_run(spec: Callable[[str], StoreSpec], home: Home) -> None:
    named = spec("search")
    Path(named.file).write_text("raise SystemExit('run')")
    access = StoreAccess(named, home)
    assert "has changed since" in access.opened([]).stats().problem
    access.close()


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        ({"searcher": 1}, "cannot be called"),
        ({"searcher": print, "backend": "mem0"}, "takes the place"),
        ({"backend": "custom", "config": {"object": print}}, "register a searcher"),
    ],
)
def test_what_cannot_be_is_refused(memory: dict[str, Any], why: str) -> None:
    from relay.features.memory.settings import memory_settings

    with pytest.raises(ConfigError) as caught:
        memory_settings(memory)
    assert why in f"{caught.value.message} {caught.value.hint}"
