"""What an earlier relay wrote (tests/memory/former) is taken over, once.

These files are of the relay that kept memories in qdrant or mem0 alone, with an embedder of 16
numbers, and saves for a store that was away in files of their own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relay.core.paths import Home
from relay.features.memory import store_access
from relay.features.memory.indexes.qdrant import QdrantIndex
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.records import Memory, Place, Scope
from relay.features.memory.spec import StoreSpec
from relay.features.memory.store_access import StoreAccess
from tests.features.memory.indexes.opening import Cheap, index_of, opened

FORMER = Path(__file__).parent.parent / "former"
SHOP, USER, ADA = Place(Scope.PROJECT, "/src/shop"), Place(Scope.USER), Place(Scope.AGENT, "ada")
BEGAN = 1_764_000_000_000


def saved(tag: str) -> list[Memory]:
    """The four memories that each of the stores held."""
    return [
        Memory(f"{tag}0001", f"The tests need Redis on port 6379 ({tag})", SHOP, "ada", "run1",
               BEGAN, BEGAN),
        Memory(f"{tag}0002", f"Redis moved to port 7000 ({tag})", SHOP, "ada", "run1",
               BEGAN + 1000, BEGAN + 1000, f"{tag}0001", {"why": [1, None]}),
        Memory(f"{tag}0003", f"I prefer short answers ({tag})", USER, None, None,
               BEGAN + 2000, BEGAN + 2000),
        Memory(f"{tag}0004", f"Ada keeps notes in tmp ({tag})", ADA, "ada", "run1",
               BEGAN + 3000, BEGAN + 3000),
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FORMER, tmp_path / "memory"))


def by_id(store: LocalStore) -> list[Memory]:
    return sorted(store.export(), key=lambda memory: memory.id)


def test_files_of_the_local_store_are_read_and_written_on(folder: Path) -> None:
    store = LocalStore(str(folder))
    assert by_id(store) == saved("loca")
    new = store.save("a new one", SHOP, agent=None, session=None, now_ms=BEGAN + 9000).memory
    assert store.get(new.id) == new
    store.close()


@pytest.mark.parametrize("kind", ["qdrant", "mem0"])
def test_what_was_in_an_index_alone_is_in_the_store(kind: str, folder: Path) -> None:
    tag = kind[:4]
    embedder = Cheap(16)
    store = opened(kind, folder, embedder)
    assert by_id(store) == saved("loca") + saved(tag)
    # It is filled already: nothing is embedded again but what was in the files alone.
    places = [SHOP, USER, ADA]
    hits = store.search(f"redis port {tag}", places, 5, now_ms=BEGAN)
    assert hits[0].memory == saved(tag)[1]
    store.forget(f"{tag}0001")
    while store.catch_up(16):
        pass
    assert store.stats().pending == 0 and store.stats().problem == ""
    store.close()
    again = opened(kind, folder, embedder)
    assert f"{tag}0001" not in {memory.id for memory in again.export()}
    again.close()


def test_of_a_server_only_the_places_that_are_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes to a server that one project uses must not reach the others."""
    init = QdrantIndex.__init__

    def on_server(self: QdrantIndex, *given: Any) -> None:
        init(self, *given)
        self.shared = True

    monkeypatch.setattr(QdrantIndex, "__init__", on_server)
    store = opened("qdrant", folder, Cheap(16))
    assert by_id(store) == saved("loca")
    index_of(store).open(store, [USER, Place(Scope.PROJECT, "/src/blog")])
    assert by_id(store) == [*saved("loca"), saved("qdra")[2]]
    index_of(store).open(store, [USER, SHOP])
    assert by_id(store) == saved("loca") + saved("qdra")[:3]
    store.forget("qdra0003")
    index_of(store).open(store, [USER, SHOP])
    store.close()
    again = opened("qdrant", folder, Cheap(16))
    index_of(again).open(again, [USER, SHOP])
    assert by_id(again) == saved("loca") + saved("qdra")[:2]
    again.close()


def test_it_is_taken_over_without_an_embedder_too(tmp_path: Path, folder: Path) -> None:
    home = Home(str(tmp_path))
    access = StoreAccess(StoreSpec("qdrant", {"vector_store": {"provider": "qdrant"}}), home)
    store = access.opened([])
    assert {memory.id for memory in store.export()} >= {f"qdra000{n}" for n in range(1, 5)}
    assert "needs an embedder" in store.stats().problem
    access.close()


def test_kept_saves_are_in_the_store(folder: Path) -> None:
    store = LocalStore(str(folder))
    store_access.take_over(str(folder), store)
    first, second, third = (store.get(f"kept000{number}") for number in range(1, 4))
    assert (first.text, first.place, first.agent) == ("Invoices are rounded half up", SHOP, "ada")
    assert (second.supersedes, second.agent) == (first.id, None)
    # Eve may not replace what the person has said for every project: it is not hidden.
    assert (third.text, third.supersedes) == ("I prefer long answers", None)
    assert list((folder / "kept").iterdir()) == []
    store_access.take_over(str(folder), store)
    store.close()


def test_kept_saves_of_a_process_that_still_runs_are_left_to_it(folder: Path) -> None:
    [path] = (folder / "kept").glob("*.db")
    code = (
        "import fcntl,sys;f=open(sys.argv[1],'a+b');fcntl.lockf(f,fcntl.LOCK_EX);print(1,flush=1)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"{code};sys.stdin.read()", f"{path}.lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"1\n"
        store = LocalStore(str(folder))
        store_access.take_over(str(folder), store)
        assert path.exists() and by_id(store) == saved("loca")
        assert other.stdin is not None
        other.stdin.close()
    store_access.take_over(str(folder), store)
    assert not path.exists() and len(by_id(store)) == 7
    store.close()
