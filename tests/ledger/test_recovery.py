"""The ledger's file removed, replaced, cut or damaged: what is kept, and what is said."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from pathlib import Path

import pytest

from relay.core.errors import DamagedFile, FileLost
from relay.core.ids import new_ulid
from relay.ledger import queries, recovery
from relay.ledger.recovery import recover
from relay.ledger.store import Ledger
from tests.ledger.rows import fill

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "ledger.db"


def opened(path: Path) -> Ledger:
    path.parent.mkdir(exist_ok=True)
    return Ledger(str(path))


def store(ledger: Ledger, body: str, to: str = "Bob") -> None:
    ledger.begin()
    seq = ledger.next_seq()
    ledger.add_plain(
        [(seq, new_ulid(seq), "Ann", "agent", body, seq)],
        [(seq, to, ledger.next_number(to), seq, 1)],
    )
    ledger.commit()


def waiting(ledger: Ledger, to: str = "Bob") -> list[str]:
    return [row["body"] for row in queries.inbox(ledger, to, everything=False, after=0, limit=9999)]


def told(path: Path) -> str:
    """The one message of relay's to the person."""
    with sqlite3.connect(path) as db:
        [[text]] = db.execute("SELECT body FROM events WHERE agent='relay'").fetchall()
    return str(text)


@pytest.mark.parametrize(
    "names",
    [("",), ("-wal",), ("", "-wal", "-shm"), ("", "-shm")],
    ids=["file", "log", "all", "without log"],
)
def test_a_file_that_is_removed_is_put_back_with_all_that_was_acknowledged(
    path: Path, names: tuple[str, ...]
) -> None:
    ledger = opened(path)
    store(ledger, "before")
    for name in names:
        os.unlink(f"{path}{name}")
    store(ledger, "after")
    # As after a kill: what is there now is what another process finds.
    shutil.copytree(path.parent, path.parent.with_name("found"))
    found = opened(path.parent.with_name("found") / path.name)
    assert waiting(found) == waiting(ledger) == ["before", "after"]
    found.close()
    ledger.close()
    assert "was removed. It has been put back" in told(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_in_its_place_is_left_alone_and_nothing_more_is_stored(path: Path) -> None:
    ledger = opened(path)
    store(ledger, "before")
    os.rename(path, path.with_name("elsewhere"))
    path.write_bytes(b"another")
    for _ in range(2):
        with pytest.raises(FileLost, match="another file has taken its place"):
            store(ledger, "after")
        ledger.rollback()
    assert path.read_bytes() == b"another"
    ledger.close()
    kept = opened(min(path.parent.glob("ledger.db.removed-*")))
    assert waiting(kept) == ["before"]
    kept.close()


def test_without_its_folder_nothing_more_is_stored(path: Path) -> None:
    ledger = opened(path)
    store(ledger, "before")
    os.rename(path.parent, path.parent.with_name("moved"))
    with pytest.raises(FileLost, match="its folder is gone"):
        store(ledger, "after")
    ledger.close()
    again = opened(path.parent.with_name("moved") / path.name)
    assert waiting(again) == ["before"]
    again.close()


def damaged(path: Path, count: int = 3000) -> list[str]:
    """A closed ledger with many messages; the folder's pages can be damaged now."""
    ledger = opened(path)
    bodies = [f"message {number} " + "x" * 60 for number in range(count)]
    for start in range(0, count, 500):
        ledger.begin()
        for body in bodies[start : start + 500]:
            seq = ledger.next_seq()
            ledger.add_plain(
                [(seq, new_ulid(seq), "Ann", "agent", body, seq)],
                [(seq, "Bob", ledger.next_number("Bob"), seq, 1)],
            )
        ledger.commit()
    ledger.checkpoint()
    ledger.close()
    return bodies


def overwrite(path: Path, page: int) -> None:
    with open(path, "r+b") as file:
        file.seek(page * PAGE)
        file.write(b"\xff" * PAGE)


@pytest.mark.parametrize("seed", range(6))
def test_of_damaged_pages_all_others_are_recovered(path: Path, seed: int) -> None:
    bodies = damaged(path)
    pages = path.stat().st_size // PAGE
    chance = random.Random(seed)
    for page in chance.sample(range(1, pages), 2):
        overwrite(path, page)
    before = path.read_bytes()
    text = recover(str(path))
    ledger = opened(path)
    kept = waiting(ledger)
    assert set(kept) <= set(bodies) and len(kept) == len(set(kept)) and kept
    store(ledger, "and on it goes")
    assert waiting(ledger)[-1] == "and on it goes"
    ledger.close()
    [aside] = path.parent.glob("ledger.db.damaged-*")
    assert aside.read_bytes() == before and aside.name in text
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_whose_delivery_cannot_be_read_is_found_by_the_index(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = damaged(path, 400)
    with sqlite3.connect(path) as db:
        [[root]] = db.execute("SELECT rootpage FROM sqlite_master WHERE name='deliveries'")
    db.close()
    overwrite(path, root - 1)  # its first page: no delivery can be reached by it
    monkeypatch.setattr(recovery, "PATIENCE", 0.1)
    recover(str(path))
    ledger = opened(path)
    assert waiting(ledger) == bodies
    ledger.close()


def test_without_its_first_page_a_ledger_begins_anew(path: Path) -> None:
    damaged(path, 10)
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 300)
    with pytest.raises(DamagedFile):
        opened(path)
    assert "0 of its messages" in recover(str(path))
    ledger = opened(path)
    store(ledger, "first")
    assert waiting(ledger) == ["first"]
    ledger.close()


def test_a_file_that_was_cut_is_recovered_as_far_as_it_goes(path: Path) -> None:
    bodies = damaged(path)
    os.truncate(path, path.stat().st_size // 2)
    recover(str(path))
    ledger = opened(path)
    assert set(waiting(ledger)) <= set(bodies)
    ledger.close()


def counts_of(path: Path) -> dict[str, int]:
    with sqlite3.connect(path) as db:
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        return {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}


def worked(path: Path, count: int) -> dict[str, int]:
    """A closed ledger of a broker that has worked; how many rows its tables have."""
    ledger = opened(path)
    fill(ledger, count)
    ledger.checkpoint()
    ledger.close()
    return counts_of(path)


def test_every_table_is_recovered(path: Path) -> None:
    before = worked(path, 20)
    recover(str(path))
    assert counts_of(path) == before


@pytest.mark.parametrize("seed", range(6))
def test_of_damaged_pages_no_row_is_left_that_refers_to_nothing(path: Path, seed: int) -> None:
    before = worked(path, 400)
    pages = path.stat().st_size // PAGE
    with sqlite3.connect(path) as db:
        roots = {row[0] for row in db.execute("SELECT rootpage FROM sqlite_master")}
    chance = random.Random(seed)
    leaves = [page for page in range(1, pages) if page + 1 not in roots]
    for page in chance.sample(leaves, 3):
        overwrite(path, page)
    recover(str(path))
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    after = counts_of(path)
    # A page holds dozens of rows; what hung on one that is lost is lost with it.
    assert {name: after[name] for name in before if after[name] < before[name] // 2} == {}
