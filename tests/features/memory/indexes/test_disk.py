"""Embedded indexes: what is on the disk, and what is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relay.features.memory.records import Outcome
from tests.features.memory.indexes.opening import OPENERS, opened
from tests.features.memory.local.test_store import NOW, OTHER, PROJECT, USER, save

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
    saved = [
        save(store, f"quokkaword {number} " + "filler text " * (number * 7 % 90), place).memory
        for number, place in enumerate([PROJECT, USER, OTHER] * 7)
    ]
    while store.catch_up(16):
        pass
    files = [name.split(":")[0] for name in holding(tmp_path, "quokkaword")]
    assert any(name.startswith("mem0/") for name in files) == (kind == "mem0")
    for memory in saved:
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
    saved = store.save(f"Fact {number} of London and Paris", place, agent=None, session=None,
                       now_ms=number)
    store.save(f"fact {number} of London and Paris.", place, agent="bob", session=None,
               now_ms=number)
    assert store.search("What about Ada Lovelace in London?", [place], 5, now_ms=0)
store.forget(saved.memory.id)
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
