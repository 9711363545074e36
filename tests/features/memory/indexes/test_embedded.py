"""Indexes that an earlier relay wrote, that a configuration registers, and what is on the disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.config import load, trust
from relay.core.errors import ConfigError
from relay.core.paths import Home
from relay.features.memory import store_access
from relay.features.memory.indexes.qdrant import QdrantIndex
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.records import Memory, Outcome, Place, Scope, Tier
from relay.features.memory.settings import MEMORY
from relay.features.memory.spec import StoreSpec
from relay.features.memory.store_access import StoreAccess
from tests.features.memory.indexes.opening import OPENERS, Cheap, index_of, opened
from tests.features.memory.local.test_store import FACTS, NOW, OTHER, PROJECT, USER, save, texts

#: Files of the relay that kept memories in qdrant or mem0 alone, with an embedder of 16 numbers,
#: and saves for a store that was away in files of their own.
FORMER = Path(__file__).parent.parent / "former"
SHOP, ADA = PROJECT, Place(Scope.AGENT, "ada")
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
    hits = store.search(f"redis port {tag}", places, 5)
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


# -- A searcher that a trusted configuration registers.

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
    hits = store.search("where does the cache listen?", [PROJECT, USER], 5)
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


# -- Embedded indexes: what is on the disk, and what is not.

kinds = pytest.mark.parametrize("kind", sorted(OPENERS))
DEADLINE = 120.0


def holding(folder: Path, *words: str) -> list[str]:
    """The files that hold any of the words."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files
    return [
        f"{file.relative_to(folder)}: {word}"
        for file in files
        for word in words
        if word.encode() in file.read_bytes()
    ]


# -- purging


@kinds
def test_what_is_forgotten_is_in_no_file(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    kept = save(store, "The heron stays").memory
    saves = [
        save(store, f"quokkaword {number} " + "filler text " * (number * 7 % 90), place).memory
        for number, place in enumerate([PROJECT, USER, OTHER] * 7)
    ]
    while store.catch_up(16):
        pass
    files = [name.split(":")[0] for name in holding(tmp_path, "quokkaword")]
    assert any(name.startswith("mem0/") for name in files) == (kind == "mem0")
    for memory in saves:
        store.forget(memory.id)
    while store.catch_up(16):
        pass
    assert holding(tmp_path, "quokkaword") == []
    store.close()
    assert holding(tmp_path, "quokkaword") == [] and holding(tmp_path, "heron")
    again = opened(kind, tmp_path)
    assert list(again.export()) == [kept]
    again.close()


@kinds
def test_what_was_replaced_is_in_no_file(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path)
    save(store, "remember that the WOMBATWORD rule holds.", meta={"a": "NUMBATWORD"})
    store.catch_up(16)
    again = save(store, "the WOMBATWORD rule holds", now=NOW + 1, meta={"a": "b"})
    assert again.outcome is Outcome.UPDATED
    store.catch_up(16)
    assert holding(tmp_path / kind, "remember that", "NUMBATWORD") == []
    store.close()


# -- nothing beside the folder

#: Works with a store while every look at the network is written down.
ALONE = """
import sys
from pathlib import Path

asked = []
NET = ("socket.connect", "socket.getaddrinfo", "socket.sendto", "urllib.Request")
sys.addaudithook(lambda name, args: asked.append((name, args)) if name in NET else None)
kind, folder = sys.argv[1:]
from pathlib import Path
from relay.features.memory.indexes import IndexMeaning
from relay.features.memory.indexes.mem0 import Mem0Index
from relay.features.memory.indexes.qdrant import QdrantIndex
from relay.features.memory.records import Place, Scope

heavy = {"mem0", "qdrant_client", "numpy", "openai", "posthog"} & set(sys.modules)
assert not heavy, heavy
from tests.features.memory.indexes.opening import opened

store = opened(kind, Path(folder))
assert not store.meaning.problem, store.meaning.problem
assert ("mem0" in sys.modules) == (kind == "mem0")
place = Place(Scope.USER)
for number in range(30):
    saves = store.save(f"Fact {number} of London and Paris", place, agent=None, session=None,
                       now_ms=number)
    store.save(f"fact {number} of London and Paris.", place, agent="bob", session=None,
               now_ms=number)
    assert store.search("What about Ada Lovelace in London?", [place], 5)
store.forget(saves.memory.id)
while store.catch_up(16):
    pass
assert len(list(store.export())) == 29
store.stats()
store.close()
assert asked == [], asked
"""


@kinds
def test_nothing_goes_to_the_network_or_beside_the_folder(kind: str, tmp_path: Path) -> None:
    names = ("home", "tmp", "cwd", "store")
    places = {name: tmp_path / name for name in names}
    for place in places.values():
        place.mkdir()
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", ALONE, kind, str(places["store"])],
        cwd=places["cwd"],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(Path(__file__).resolve().parents[4]),
            "HOME": str(places["home"]),
            "TMPDIR": str(places["tmp"]),
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for name in ("home", "tmp", "cwd"):
        assert list(places[name].rglob("*")) == []
    assert list(tmp_path.iterdir()) and {one.name for one in tmp_path.iterdir()} == set(names)
