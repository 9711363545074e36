"""What a store of vectors can be told, what is refused, and what may be missing or fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import ConfigError, RelayError, StorageError
from relay.memory import vectors
from relay.memory.backend import StoreUnavailable
from relay.memory.records import Place, Scope
from relay.testing.memory_contract import FACTS, NOW, PROJECT, USER, save, texts
from tests.memory.vectors.cheap import Cheap
from tests.memory.vectors.test_disk import OPENERS, kinds, opened


@kinds
def test_without_an_embedder_it_says_what_to_do(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        OPENERS[kind]({}, str(tmp_path), None)
    assert "relay memory setup" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "module"),
    [
        ("qdrant", "qdrant_client"),
        ("mem0", "qdrant_client"),
        ("mem0", "relay.memory.vectors.mem0_parts"),
    ],
)
def test_what_is_not_installed_is_named(
    kind: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delattr(vectors, "mem0_parts", raising=False)
    with pytest.raises(ConfigError) as caught:
        opened(kind, tmp_path)
    assert "cannot be imported" in caught.value.message and "pip install" in caught.value.hint


@kinds
def test_vectors_of_another_length_are_refused(kind: str, tmp_path: Path) -> None:
    backend = opened(kind, tmp_path)
    save(backend, FACTS[0])
    backend.close()
    with pytest.raises(ConfigError) as caught:
        opened(kind, tmp_path, dims=32, name="other")
    said = caught.value.message
    assert "64" in said and "32" in said and "other" in said and caught.value.hint
    opened(kind, tmp_path).close()  # the failure has left nothing locked


@kinds
def test_a_path_and_a_name_may_be_chosen(kind: str, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    store = {"provider": "qdrant", "path": str(chosen), "collection_name": "mine"}
    backend = OPENERS[kind]({"vector_store": store}, str(tmp_path / "folder"), Cheap())
    save(backend, FACTS[0])
    assert (chosen / "collection" / "mine").is_dir()
    assert not (tmp_path / "folder" / "qdrant").exists()
    backend.close()


@kinds
def test_a_folder_that_cannot_be_made(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        opened(kind, tmp_path / "file")
    assert caught.value.hint


@kinds
def test_an_embedder_that_is_away_changes_nothing(kind: str, tmp_path: Path) -> None:
    embedder = Cheap()
    backend = OPENERS[kind]({}, str(tmp_path), embedder)
    first = save(backend, FACTS[0]).memory
    embedder.problem = "the embedder sleeps"
    asks: list[Callable[[], object]] = [
        lambda: save(backend, FACTS[1]),
        lambda: save(backend, f"{FACTS[0]}.", now=NOW + 1),
        lambda: texts(backend, "redis"),
    ]
    for ask in asks:
        with pytest.raises(StoreUnavailable) as caught:
            ask()
        assert "sleeps" in caught.value.message and caught.value.hint
    assert backend.list([PROJECT], 5) == [first]
    embedder.problem = ""
    save(backend, FACTS[1])
    assert texts(backend, "redis port")[0] == FACTS[0]
    backend.close()
    backend.close()
    assert embedder.closed


@kinds
def test_a_disk_that_fails_is_no_lost_server(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qdrant_client.local.persistence import CollectionPersistence

    backend = opened(kind, tmp_path)
    first = save(backend, FACTS[0]).memory

    def full(*_: Any) -> None:
        import sqlite3

        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(CollectionPersistence, "persist", full)
        patch.setattr(CollectionPersistence, "delete", full)
        for ask in (lambda: save(backend, FACTS[1]), lambda: backend.forget(first.id)):
            with pytest.raises(RelayError) as caught:
                ask()
            assert type(caught.value) is StorageError and "disk is full" in caught.value.message
    assert backend.list([PROJECT], 5) == [first] and texts(backend, "redis") == [FACTS[0]]
    backend.forget(first.id)
    assert backend.list([PROJECT], 5) == [] == texts(backend, "redis")
    backend.close()


def test_places_with_odd_names_stay_apart(tmp_path: Path) -> None:
    odd = [
        Place(Scope.PROJECT, owner)
        for owner in ("/a b", "/a%20b", "/a\tb", "/ü", "/a:b", "/" + "x" * 4000)
    ]
    for kind in OPENERS:
        backend = opened(kind, tmp_path / kind)
        for number, place in enumerate([*odd, USER]):
            save(backend, f"fact {number}", place)
        for number, place in enumerate([*odd, USER]):
            assert texts(backend, "fact", place) == [f"fact {number}"]
        assert backend.stats().counts == dict.fromkeys([*odd, USER], 1)
        backend.close()
