"""The ops of memory: a model that is set up later, damaged places, answers of bounded length."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import ConfigError, RelayError, StorageError, UsageError
from relay.core.paths import Home
from relay.features.memory import requests, store_access
from relay.features.memory.embedding import EmbedderUnavailable, minilm
from relay.features.memory.records import ORIGIN, Memory, Place, Scope, Tier
from relay.features.memory.requests import MemoryOps, MemoryRequest
from relay.features.memory.spec import StoreSpec, parse_store
from relay.features.memory.store_access import StoreAccess, make_embedder
from tests.features.memory.embedding.server import Answer, Asked, EmbeddingServer
from tests.features.memory.indexes.opening import Cheap

NOW = 1_700_000_000_000


@pytest.fixture
def ask(home: Home) -> Any:
    spec = StoreSpec()
    access = StoreAccess(spec, home)
    ops = MemoryOps(access, spec.masked(), home.memory)

    def asking(op: str, **fields: Any) -> dict[str, Any]:
        request = {"op": f"memory_{op}", "cwd": "/src/shop", **fields}
        return dict(ops.answer(MemoryRequest(request, None, None, NOW)))

    asking.access = access  # type: ignore[attr-defined]
    yield asking
    access.close()


def set_up(monkeypatch: pytest.MonkeyPatch, make: Callable[[str], object]) -> None:
    monkeypatch.setattr(store_access, "installed", lambda models: models)
    monkeypatch.setattr(minilm, "MiniLM", make)


def test_a_model_that_is_set_up_later_is_used_from_then_on(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("save", text="the cache listens on 6379")
    assert ask("stats")["tier"] == "words" and ask.access.caught_up()
    embedder = Cheap()
    set_up(monkeypatch, lambda folder: embedder)
    stats = ask("stats")
    assert (stats["tier"], stats["embedder"], stats["pending"]) == ("hybrid", "cheap", 1)
    while not ask.access.caught_up():
        pass
    assert ask("stats")["pending"] == 0 and len(embedder.asked) == 1
    [hit] = ask("search", query="redis")["memories"]
    assert (hit["tier"], hit["text"]) == ("hybrid", "the cache listens on 6379")
    ask("save", text="we release on Mondays")
    while not ask.access.caught_up():
        pass
    assert ask("stats")["pending"] == 0
    ask.access.close()
    assert embedder.closed == 1


def test_an_embedder_that_is_away_is_not_asked_without_end(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Cheap()
    embedder.problem = "it is away"
    set_up(monkeypatch, lambda folder: embedder)
    ask("save", text="the cache listens on 6379")
    for _ in range(3):
        if ask.access.caught_up():
            break
    else:
        raise AssertionError("it goes on")
    assert ask("search", query="cache")["memories"][0]["tier"] == "words"


def test_a_model_that_is_damaged_costs_the_meaning_only(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: str) -> object:
        raise EmbedderUnavailable("the weights are damaged")

    set_up(monkeypatch, broken)
    ask("save", text="the cache listens on 6379")
    stats = ask("stats")
    assert (stats["tier"], stats["problem"]) == ("words", "the weights are damaged")


def test_an_answer_is_no_longer_than_a_line_of_the_protocol(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "PAGE_MAX", 2000)
    for number in range(5):
        ask("save", text=f"fact number {number} " + "x" * 800)
    listed = ask("list", limit=5)
    assert len(listed["memories"]) < 5 and listed["more"]
    rows: list[object] = []
    after: object = None
    while (page := ask("export", after=after))["more"]:
        assert len(page["memories"]) == 1
        rows += page["memories"]
        after = page["after"]
    assert len(rows) == 5


def test_an_import_has_a_limit(ask: Any) -> None:
    with pytest.raises(UsageError, match="at most 500"):
        ask("import", memories=[{}] * 501)


def test_a_damaged_place_costs_only_its_own_memories(ask: Any, home: Home) -> None:
    ask("save", text="the port is 6379")
    ask("save", text="ports are numbers", scope="user")
    ask.access.close()
    (Path(home.memory) / "user.db").write_bytes(b"no database" * 100)
    for found in (ask("search", query="port"), ask("list")):
        assert [row["text"] for row in found["memories"]] == ["the port is 6379"]
        assert "user.db" in found["problem"]
    assert "problem" not in ask("list", scope="project")
    with pytest.raises(StorageError):
        ask("list", scope="user")


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take Unicode names only")
def test_a_home_whose_name_is_no_unicode_is_as_good_as_any(tmp_path: Path) -> None:
    home = Home(os.fsdecode(os.fsencode(tmp_path) + b"/h \xff#?"))
    spec = StoreSpec()
    for _ in range(2):  # the second one reads what is there
        access = StoreAccess(spec, home)
        ops = MemoryOps(access, spec.masked(), home.memory)

        def ask(op: str, **fields: Any) -> dict[str, Any]:
            request = {"op": f"memory_{op}", "cwd": "/x", **fields}
            return dict(ops.answer(MemoryRequest(request, None, None, NOW)))  # noqa: B023

        ask("save", text="a fact")
        stats = ask("stats")
        assert stats["count"] == 1 and stats["folder"].encode().endswith(b"/h ?#?/memory")
        assert ask("list")["memories"]
        access.close()


def test_a_save_that_is_repeated_under_its_id_is_told_as_new(ask: Any) -> None:
    first = ask("save", text="the port is 6379", save_token="0123456789")
    again = ask("save", text="the port is 6379", save_token="0123456789")
    assert again["outcome"] == first["outcome"] == "new" and again["memory"] == first["memory"]
    assert ask("save", text="the port is 6379", save_token="9876543210")["outcome"] == "same"
    with pytest.raises(StorageError, match="another memory has the id"):
        ask("save", text="an id is never given twice", save_token="0123456789")
    assert ask("stats")["count"] == 1


def asked(
    agent: str | None = "Ada", project: str | None = "/src/shop", **fields: object
) -> MemoryRequest:
    return MemoryRequest(dict(fields), agent, "run-1", 0, project)


def memory(scope: Scope, owner: str = "", agent: str | None = "Ada", where: str = "") -> Memory:
    meta = {ORIGIN: where} if where else {}
    return Memory("k23fb0fc", "x", Place(scope, owner), agent, None, 0, 0, None, meta)


@pytest.mark.parametrize(
    ("found", "may"),
    [
        (memory(Scope.USER, where="/src/shop"), True),
        (memory(Scope.USER, where="/src/other"), False),
        (memory(Scope.USER, agent="Bob", where="/src/shop"), False),
        (memory(Scope.USER, agent=None), False),
        (memory(Scope.PROJECT, "/src/shop", agent=None), True),
        (memory(Scope.AGENT, "ada"), True),
    ],
    ids=["own", "own-elsewhere", "another-agents", "the-persons", "project", "agent"],
)
def test_an_agent_changes_of_what_is_for_everybody_only_its_own(found: Memory, may: bool) -> None:
    if may:
        asked().check_change(found)
    else:
        with pytest.raises(RelayError):
            asked().check_change(found)
    asked(agent=None).check_change(found)


def test_where_something_comes_from_is_written_by_relay_alone() -> None:
    forged = {ORIGIN: "", "auto": True}
    assert asked(meta=forged).meta() == {"auto": True, ORIGIN: "/src/shop"}
    assert asked(agent=None, meta=forged).meta() == {"auto": True}
    long = "/" + "x" * 5000
    kept = (asked(project=long).meta() or {})[ORIGIN]
    assert len(kept) == 200 and long.endswith(kept[1:])


# -- From what the configuration says to the backend and the embedder that are meant.

USER = Place(Scope.USER)


def embedder(home: Home, section: dict[str, Any], backend: str = "local") -> Any:
    return make_embedder(parse_store(backend, {"embedder": section}).config, home)


def test_a_model_that_is_asked_for_must_be_there(home: Home) -> None:
    with pytest.raises(ConfigError) as caught:
        embedder(home, {"provider": "minilm"})
    assert caught.value.hint == "relay memory setup"


def test_a_model_that_is_set_up_is_taken(models: Path, isolated_home: Path) -> None:
    found = make_embedder({}, Home(str(isolated_home)))
    assert found is not None and found.name == "all-MiniLM-L6-v2"
    found.close()


def test_each_server_is_asked_in_its_way(home: Home) -> None:
    def reply(asked: Asked) -> Answer:
        vectors = [[1.0, 0.0, 0.0] for _ in asked.body["input"]]
        data = [{"index": n, "embedding": one} for n, one in enumerate(vectors)]
        return Answer({"embeddings": vectors, "data": data})

    with EmbeddingServer(reply) as server:
        for section, path, name in (
            ({"provider": "ollama"}, "/api/embed", "ollama:nomic-embed-text"),
            ({"provider": "openai", "model": "m"}, "/v1/embeddings", "openai:m"),
            ({"provider": "lmstudio", "model": "m"}, "/v1/embeddings", "openai:m"),
        ):
            found = embedder(home, {**section, "url": server.url, "apiKey": "k", "dims": 3})
            assert found.embed(["x"]).shape == (1, 3)
            assert (found.name, found.dims) == (name, 3)
            assert server.asked[-1].path == path
            assert server.asked[-1].headers["authorization"] == "Bearer k"


def test_the_local_store_searches_with_it(home: Home) -> None:
    """Two texts without a word in common, whose vectors are the same."""

    def reply(asked: Asked) -> Answer:
        return Answer({"embeddings": [[1.0, 0.5] for _ in asked.body["input"]]})

    with EmbeddingServer(reply) as server:
        section = {"provider": "ollama", "model": "m", "url": server.url}
        store = StoreAccess(parse_store("local", {"embedder": section}), home).opened()
        store.save("it listens on 6379", USER, agent=None, session=None, now_ms=0)
        [hit] = store.search("which port?", [USER], 1)
        assert hit.tier is Tier.HYBRID and store.stats().embedder == "ollama:m"
        store.close()


def test_without_a_model_the_default_store_goes_by_words(home: Home) -> None:
    store = StoreAccess(StoreSpec(), home).opened()
    assert store.stats().tier is Tier.WORDS
    store.close()
    assert make_embedder({}, home) is None
    assert embedder(home, {"provider": "none"}) is None
