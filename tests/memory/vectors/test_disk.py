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

from relay.errors import ConfigError, RelayError, StorageError
from relay.memory.backend import Backend, StoreUnavailable
from relay.memory.contract import FACTS, NOW, OTHER, PROJECT, USER, save, texts
from relay.memory.embedding import Embedder
from relay.memory.model import Outcome, Place, Scope
from relay.memory.vectors import qdrant_opening
from relay.memory.vectors.mem0_points import open_mem0
from relay.memory.vectors.qdrant_points import open_qdrant
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
from relay.memory.model import Place, Scope
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


#: Somebody has imported mem0 already, as it comes.
IMPORTED = """
import sys
import mem0.memory.main as main
import mem0.memory.telemetry as telemetry

assert main.MEM0_TELEMETRY and telemetry.MEM0_TELEMETRY
telemetry._get_oss_telemetry = lambda: sys.exit("it tells something")
from relay.memory.vectors.mem0_points import load

load(sys.argv[1], telemetry=False)
assert not main.MEM0_TELEMETRY and not telemetry.MEM0_TELEMETRY
telemetry.capture_event("mem0.init", None)
"""


def test_mem0_tells_nothing_even_if_it_was_there_before(tmp_path: Path) -> None:
    environ = {key: value for key, value in os.environ.items() if key != "MEM0_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, str(tmp_path / "store")],
        cwd=Path(__file__).resolve().parents[3],
        env={**environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert (done.returncode, done.stderr) == (0, "")


# -- processes

#: Saves for ever, and prints the id of each once it is confirmed.
SAVER = """
import sys
from relay.memory.model import Place, Scope
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


# -- settings


@kinds
def test_without_an_embedder_it_says_what_to_do(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        OPENERS[kind]({}, str(tmp_path), None)
    assert "relay memory setup" in caught.value.hint


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


def test_mem0_is_not_told_another_length_than_the_embedders(tmp_path: Path) -> None:
    config = {"vector_store": {"provider": "qdrant", "embedding_model_dims": 1536}}
    with pytest.raises(ConfigError) as caught:
        open_mem0(config, str(tmp_path), Cheap())
    assert "1536" in caught.value.message and "64" in caught.value.message


@pytest.mark.parametrize(
    "store",
    [
        {"provider": "qdrant", "config": {"path": "{}", "collection_name": "mine"}},
        {"provider": "qdrant", "path": "{}", "collection_name": "mine"},
    ],
)
@kinds
def test_a_path_and_a_name_may_be_chosen(kind: str, store: Any, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    if "config" in store:
        if kind == "qdrant":
            return  # relay.memory.spec flattens it; mem0's own form is for mem0
        store = {**store, "config": {**store["config"], "path": str(chosen)}}
    else:
        store = {**store, "path": str(chosen)}
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
