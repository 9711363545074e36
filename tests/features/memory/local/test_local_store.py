"""The local store: its files, what is wrong with them, processes that share them and are killed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.errors import NotFound, StorageError, UsageError
from relay.features.memory.local import database as files
from relay.features.memory.local import local_store as module
from relay.features.memory.local.database import file_name
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.records import Memory, Place, Scope, Tier

USER = Place(Scope.USER)
PROJECT = Place(Scope.PROJECT, "/src/shop")
BAD = [b"this is text\n", b"SQLite format 3\0" + b"\xff" * 4096, b"\0" * 200]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(str(tmp_path / "memory"))
    yield store
    store.close()


def save(store: LocalStore, text: str, place: Place = USER, now: int = 1) -> Memory:
    return store.save(text, place, agent="ada", session=None, now_ms=now).memory


def path_of(store: LocalStore, place: Place) -> Path:
    return Path(store.folder, file_name(place))


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60))
def test_file_names_show_nothing_odd(path: str) -> None:
    name = files.file_name(Place(Scope.PROJECT, "/" + path))
    assert files.is_ours(name) and len(name) < 80
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")


def test_only_the_owner_can_read(store: LocalStore) -> None:
    old = os.umask(0)
    try:
        save(store, "x")
    finally:
        os.umask(old)
    assert os.stat(store.folder).st_mode & 0o777 == 0o700
    modes = {name: os.stat(Path(store.folder, name)).st_mode & 0o777 for name in _names(store)}
    assert modes == {"user.db": 0o600, "user.db-wal": 0o600, "user.db-shm": 0o600}


def test_reading_makes_no_files(store: LocalStore) -> None:
    assert store.search("x", [USER, PROJECT], 5) == []
    assert store.list([USER], 5) == [] and list(store.export()) == []
    with pytest.raises(NotFound):
        store.get("abc")
    assert store.stats().counts == {} and _names(store) == []


def test_a_save_is_synced_before_it_answers(store: LocalStore) -> None:
    save(store, "x")
    shelf = store.database(USER)
    assert shelf.db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert shelf.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert not shelf.db.in_transaction


def test_nothing_of_what_is_forgotten_is_left(store: LocalStore) -> None:
    rng = random.Random(7)

    def words(count: int) -> list[str]:
        return ["".join(rng.choices("bcdfghjklmnpqrtvwxz23456789", k=12)) for _ in range(count)]

    secret = words(400)
    save(store, "first " + " ".join(secret[:200]))
    for _ in range(40):
        save(store, " ".join(words(rng.choice([1, 20, 300]))))
    memory = save(store, "the first " + " ".join(secret[:200]))  # nearly the same: it is updated
    other = save(store, " ".join(secret[200:]))
    assert store.forget(memory.id).text.startswith("the first")
    store.forget(other.id)
    content = b"".join(Path(store.folder, name).read_bytes() for name in _names(store))
    # The index keeps what words begin with in common once: look for their ends.
    assert [word for word in secret if word[3:].encode() in content] == []
    assert store.search("first", [USER], 5) == []


def test_forgetting_says_so_when_the_log_cannot_be_emptied(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = save(store, "the text that stays")
    store.database(USER).db.execute("PRAGMA busy_timeout=10")
    monkeypatch.setattr(files, "SCHEMA", replace(files.SCHEMA, busy=0.05))
    path = path_of(store, USER)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM memories").fetchall()
        with pytest.raises(StorageError) as caught:
            store.forget(memory.id)
        assert caught.value.code == "not_purged" and caught.value.hint
        with pytest.raises(NotFound):
            store.get(memory.id)
        reader.execute("COMMIT")
        again = LocalStore(store.folder)  # the next one to open the file does what is left
        assert again.stats().counts == {USER: 0}
        assert b"text that stays" not in Path(f"{path}-wal").read_bytes() + path.read_bytes()
        again.close()


@pytest.mark.parametrize("content", BAD)
def test_what_is_no_store_is_refused_and_left_alone(store: LocalStore, content: bytes) -> None:
    path = path_of(store, USER)
    path.write_bytes(content)
    for ask in (
        lambda: save(store, "x"),
        lambda: store.search("x", [USER], 5),
        lambda: store.get("abc"),
        lambda: list(store.export()),
    ):
        with pytest.raises(StorageError) as caught:
            ask()
        assert str(path) in caught.value.message and caught.value.hint
    assert str(path) in store.stats().problem
    assert path.read_bytes() == content and _names(store) == ["user.db"]


def test_another_programs_database_is_refused_and_left_alone(store: LocalStore) -> None:
    path = path_of(store, USER)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE memories (id)")
    before = path.read_bytes()
    with pytest.raises(StorageError, match="another program"):
        save(store, "x")
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused(store: LocalStore) -> None:
    save(store, "x")
    store.close()
    with closing(sqlite3.connect(path_of(store, USER))) as db:
        db.execute(f"PRAGMA user_version={files.SCHEMA.version + 1}")
    with pytest.raises(StorageError, match="newer relay"):
        store.search("x", [USER], 5)


def test_damage_inside_is_told(store: LocalStore) -> None:
    for number in range(50):
        save(store, f"word{number} " * 200)
    store.close()
    path = path_of(store, USER)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\x55" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StorageError) as caught:
        list(store.export())
    assert "move the file away" in caught.value.hint
    assert path.read_bytes() == content


def test_a_damaged_file_hides_no_other_place(store: LocalStore) -> None:
    memory = save(store, "x", PROJECT)
    path_of(store, USER).write_bytes(BAD[0])
    assert store.get(memory.id[:4]) == memory
    assert save(store, "y", PROJECT).text == "y"
    with pytest.raises(StorageError):
        store.get("zzzzzzzz")
    assert store.restore([replace(memory, id="other000", text="z")]).new == 1
    assert store.stats().counts == {PROJECT: 3} and store.stats().problem
    assert store.forget(memory.id) == memory


def test_a_file_in_the_wrong_place_is_refused(store: LocalStore) -> None:
    save(store, "x", PROJECT)
    store.close()
    path_of(store, PROJECT).rename(path_of(store, USER))
    with pytest.raises(StorageError, match="another place"):
        store.search("x", [USER], 5)
    store.close()
    with pytest.raises(StorageError, match="another place"):
        save(store, "y")


def test_a_file_that_was_killed_before_its_first_row_is_used(store: LocalStore) -> None:
    path_of(store, USER).touch()
    assert store.search("x", [USER], 5) == []
    with closing(sqlite3.connect(path_of(store, PROJECT))) as db:
        db.execute("PRAGMA journal_mode=WAL")
    assert store.stats().counts == {}
    assert save(store, "x").text == "x" and save(store, "x", PROJECT).text == "x"


def test_a_file_that_is_moved_away_is_missed(store: LocalStore, tmp_path: Path) -> None:
    save(store, "x")
    path_of(store, USER).rename(tmp_path / "away.db")
    for tail in ("-wal", "-shm"):
        Path(f"{path_of(store, USER)}{tail}").rename(tmp_path / f"away.db{tail}")
    assert store.search("x", [USER], 5) == []
    save(store, "y")
    with closing(sqlite3.connect(path_of(store, USER))) as db:
        assert db.execute("SELECT text FROM memories").fetchall() == [("y",)]


def test_a_bounded_number_of_files_is_open(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OPEN_MAX", 3)
    places = [Place(Scope.PROJECT, f"/src/{number}") for number in range(8)]
    saved = [save(store, f"fact of {place.owner}", place) for place in places]
    assert len(store._databases) == 3
    assert [store.get(memory.id) for memory in saved] == saved
    found = store.search("fact", places, 20)
    assert len(found) == 8 and len(store._databases) == 3
    gone = saved.pop(0)
    assert store.forget(gone.id) == gone
    exported = store.export()
    first = next(exported)
    for place in places:
        store.list([place], 1)
    assert sorted([first.id, *(one.id for one in exported)]) == sorted(one.id for one in saved)


def test_days_are_found(store: LocalStore) -> None:
    save(store, "Released the importer", now=1_795_000_000_000)
    save(store, "Released the exporter", now=1_790_000_000_000)
    (best, *_) = store.search("what was released in November 2026", [USER], 5)
    assert best.memory.text == "Released the importer" and best.tier is Tier.WORDS


def test_look_alikes_in_a_typed_id(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "random_id", lambda: "0110wxyz")
    memory = save(store, "x")
    assert store.get("OIl0") == memory


def test_a_full_disk_is_told_and_costs_nothing(store: LocalStore) -> None:
    memory = save(store, "x")
    db = store.database(USER).db
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StorageError) as caught:
        save(store, "long " * 3000)
    assert "free some space" in caught.value.hint
    assert store.list([USER], 5) == [memory]
    db.execute("PRAGMA max_page_count=1000000")
    assert save(store, "y").text == "y"


def test_without_an_embedder_numpy_is_not_imported(tmp_path: Path) -> None:
    code = f"""
import sys
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.records import Place, Scope
store = LocalStore({str(tmp_path)!r})
store.save("x", Place(Scope.USER), agent=None, session=None, now_ms=1)
assert store.search("x", [Place(Scope.USER)], 5) and store.stats().pending == 0
assert store.catch_up(10) == 0
store.close()
heavy = {{"numpy", "asyncio", "mem0", "http.client"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        LocalStore(str(tmp_path / "file" / "memory"))
    assert caught.value.hint


def test_many_ids_that_begin_alike_are_shown_in_part(store: LocalStore) -> None:
    memory = save(store, "x")
    store.restore(replace(memory, id=f"abc{number:05}") for number in range(30))
    with pytest.raises(UsageError) as caught:
        store.get("abc")
    assert caught.value.message.endswith("…")


def _names(store: LocalStore) -> list[str]:
    return sorted(os.listdir(store.folder), key=len)


PLACES = [Place(Scope.PROJECT, "/src/shop"), Place(Scope.USER)]
#: Saves, and prints the id of each once it is confirmed; searches, lists and forgets in between.
WORKER = """
import sys, time
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.records import Place, Scope

folder, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
places = [Place(Scope.PROJECT, "/src/shop"), Place(Scope.USER)]
store = LocalStore(folder)
for number in range(count):
    place = places[number % 2]
    text = f"fact {number} of {name} " + "about redis " * (number % 7)
    saved = store.save(text, place, agent=name, session=None, now_ms=number)
    print(saved.memory.id, flush=True)
    if number % 5 == 0:
        store.search("redis fact", places, 5)
    if number % 10 == 9:
        extra = store.save(f"soon gone {name} {number}", place, agent=name, session=None, now_ms=0)
        store.forget(extra.memory.id)
        store.list(places, 5)
store.close()
"""


def start(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), name, str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_share_a_folder_without_a_lock_error(tmp_path: Path) -> None:
    # Nothing is there yet: they also race for making the files.
    workers = [start(tmp_path, f"w{number}", 40) for number in range(4)]
    ids: list[str] = []
    for worker in workers:
        out, err = worker.communicate(timeout=120)
        assert (worker.returncode, err) == (0, "")
        ids += out.split()
    store = LocalStore(str(tmp_path))
    kept = {memory.id for memory in store.export()}
    assert len(ids) == len(set(ids)) == 160 and kept == set(ids)
    assert sum(store.stats().counts.values()) == 160
    store.close()


def test_what_was_confirmed_survives_a_kill(tmp_path: Path) -> None:
    rng = random.Random(7)
    confirmed: list[str] = []
    for round_ in range(3):
        worker = start(tmp_path, f"w{round_}", 100_000)
        try:
            assert worker.stdout is not None and worker.stderr is not None
            for _ in range(rng.randrange(1, 40)):
                confirmed.append(worker.stdout.readline().strip())
        finally:
            os.kill(worker.pid, signal.SIGKILL)
            out, err = worker.communicate(timeout=60)
        assert err == ""
        # What was printed and not read yet was confirmed too; the last line may be cut.
        confirmed += [line for line in out.splitlines(keepends=True) if line.endswith("\n")]
    store = LocalStore(str(tmp_path))
    kept = {memory.id: memory for memory in store.export()}
    wanted = [id_.strip() for id_ in confirmed]
    assert wanted and [id_ for id_ in wanted if id_ not in kept] == []
    # The index and the rows tell the same: each can be found by its words.
    for id_ in rng.sample(wanted, min(5, len(wanted))):
        found = store.search(kept[id_].text, PLACES, 1000)
        assert id_ in {hit.memory.id for hit in found}
    for place in PLACES:
        shelf = store.database(place)
        with shelf.writing() as db:
            db.execute("INSERT INTO texts (texts, rank) VALUES ('integrity-check', 1)")
    store.close()
