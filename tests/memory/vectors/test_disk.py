"""Embedded stores: what is on the disk, what is not, and who may open it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from relay.memory.backend import Backend, StoreUnavailable
from relay.memory.embedding import Embedder
from relay.memory.records import Outcome
from relay.memory.vectors import qdrant_opening
from relay.memory.vectors.mem0_points import open_mem0
from relay.memory.vectors.qdrant_points import open_qdrant
from relay.testing.memory_contract import FACTS, NOW, OTHER, PROJECT, USER, save
from tests.memory.vectors.cheap import Cheap

Opener = Callable[[Mapping[str, Any], str, Embedder | None], Backend]
OPENERS: dict[str, Opener] = {"qdrant": open_qdrant, "mem0": open_mem0}
kinds = pytest.mark.parametrize("kind", sorted(OPENERS))
DEADLINE = 120.0


def opened(kind: str, folder: Path, **more: Any) -> Backend:
    return OPENERS[kind]({}, str(folder), Cheap(**more))


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
    backend = opened(kind, tmp_path)
    kept = save(backend, "The heron stays").memory
    saved = [
        save(backend, f"quokkaword {number} " + "filler text " * (number * 7 % 90), place).memory
        for number, place in enumerate([PROJECT, USER, OTHER] * 7)
    ]
    assert holding(tmp_path, "quokkaword") and holding(tmp_path, "heron")
    for memory in saved:
        backend.forget(memory.id)
    assert holding(tmp_path, "quokkaword") == []
    backend.close()
    assert holding(tmp_path, "quokkaword") == [] and holding(tmp_path, "heron")
    again = opened(kind, tmp_path)
    assert list(again.export()) == [kept]
    again.close()


@kinds
def test_what_was_replaced_is_in_no_file(kind: str, tmp_path: Path) -> None:
    backend = opened(kind, tmp_path)
    save(backend, "remember that the WOMBATWORD rule holds.", meta={"a": "NUMBATWORD"})
    again = save(backend, "the WOMBATWORD rule holds", now=NOW + 1, meta={"a": "b"})
    assert again.outcome is Outcome.UPDATED
    assert holding(tmp_path, "remember that", "NUMBATWORD") == []
    backend.forget(again.memory.id)
    assert holding(tmp_path, "WOMBATWORD") == []
    backend.close()


# -- nothing beside the folder

#: Works with a store while every look at the network is written down.
ALONE = """
import sys
from pathlib import Path

asked = []
NET = ("socket.connect", "socket.getaddrinfo", "socket.sendto", "urllib.Request")
sys.addaudithook(lambda name, args: asked.append((name, args)) if name in NET else None)
kind, folder = sys.argv[1:]
from relay.memory.records import Place, Scope
from relay.memory.vectors.mem0_points import open_mem0
from relay.memory.vectors.qdrant_points import open_qdrant

heavy = {"mem0", "qdrant_client", "numpy", "openai", "posthog"} & set(sys.modules)
assert not heavy, heavy
from tests.memory.vectors.cheap import Cheap

store = {"qdrant": open_qdrant, "mem0": open_mem0}[kind]({}, folder, Cheap())
assert ("mem0" in sys.modules) == (kind == "mem0")
place = Place(Scope.USER)
for number in range(30):
    saved = store.save(f"Fact {number} of London and Paris", place, agent=None, session=None,
                       now_ms=number)
    store.save(f"fact {number} of London and Paris.", place, agent="bob", session=None,
               now_ms=number)
    assert store.search("What about Ada Lovelace in London?", [place], 5, now_ms=0)
store.forget(saved.memory.id)
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
            "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
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


# -- processes

#: Saves for ever, and prints the id of each once it is confirmed.
SAVER = """
import sys
from relay.memory.records import Place, Scope
from tests.memory.vectors.cheap import Cheap
from tests.memory.vectors.test_disk import OPENERS

kind, folder, name = sys.argv[1:]
places = [Place(Scope.PROJECT, "/src/shop"), Place(Scope.USER)]
store = OPENERS[kind]({}, folder, Cheap())
print("open", flush=True)
number = 0
while True:
    text = f"fact {number} of {name} " + "about redis " * (number % 7)
    saved = store.save(text, places[number % 2], agent=name, session=None, now_ms=number)
    print(saved.memory.id, flush=True)
    if number % 5 == 4:
        store.forget(store.save("soon gone", places[0], agent=None, session=None, now_ms=0)
                     .memory.id)
    number += 1
"""


def saver(kind: str, folder: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SAVER, kind, str(folder), name],
        cwd=Path(__file__).resolve().parents[3],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed(process: subprocess.Popen[str]) -> list[str]:
    """Kill it; the whole lines that were not read yet."""
    os.kill(process.pid, signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE)
    assert err == ""
    return [line.strip() for line in out.splitlines(keepends=True) if line.endswith("\n")]


@kinds
def test_what_was_confirmed_survives_a_kill(kind: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    confirmed: list[str] = []
    for round_ in range(3):
        process = saver(kind, tmp_path, f"w{round_}")
        try:
            assert process.stdout is not None
            for _ in range(rng.randrange(1, 60)):
                confirmed.append(process.stdout.readline().strip())
        finally:
            confirmed += killed(process)
    wanted = [line for line in confirmed if line != "open"]
    backend = opened(kind, tmp_path)
    kept = {memory.id: memory for memory in backend.export()}
    assert len(wanted) > 3 and [id_ for id_ in wanted if id_ not in kept] == []
    # At most the save that was in hand when it was killed is there beside them.
    assert len(kept) <= len(set(wanted)) + 2 * 3
    for id_ in rng.sample(wanted, 3):
        places = [PROJECT, USER]
        found = backend.search(kept[id_].text, places, 1000, now_ms=0)
        assert id_ in {hit.memory.id for hit in found}
    backend.close()


@kinds
def test_a_folder_that_another_process_has_open(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = saver(kind, tmp_path, "other")
    try:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        monkeypatch.setattr(qdrant_opening, "LOCKED", 0.2)
        with pytest.raises(StoreUnavailable) as caught:
            opened(kind, tmp_path)
        assert str(tmp_path) in caught.value.message and caught.value.hint
    finally:
        killed(process)
    monkeypatch.undo()
    opened(kind, tmp_path).close()


def test_a_folder_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = opened("qdrant", tmp_path)
    memory = save(first, FACTS[0]).memory
    looks: list[bool] = []
    is_locked = qdrant_opening._is_locked

    def look(path: str) -> bool:
        looks.append(is_locked(path))
        if len(looks) == 3:
            first.close()
        return looks[-1]

    monkeypatch.setattr(qdrant_opening, "_is_locked", look)
    second = opened("qdrant", tmp_path)
    assert looks[:3] == [True] * 3 and looks[-1] is False
    assert second.get(memory.id) == memory
    second.close()


@kinds
def test_a_first_opening_that_was_cut_off(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "qdrant"
    folder.mkdir()
    (folder / "meta.json").write_bytes(b"")
    backend = opened(kind, tmp_path)
    assert save(backend, FACTS[0]).outcome is Outcome.NEW
    backend.close()
