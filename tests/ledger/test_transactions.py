"""The ledger's file removed, replaced, cut or damaged: what is kept, and what is said."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from relay.core.errors import DamagedFile, FileLost
from relay.core.ids import new_ulid
from relay.ledger import queries
from relay.ledger.store import Ledger
from relay.ledger.transactions import set_aside

PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "ledger.db"


def opened(path: Path) -> Ledger:
    path.parent.mkdir(exist_ok=True)
    return Ledger(str(path))


def store(ledger: Ledger, body: str, to: str = "Bob") -> None:
    ledger.begin()
    add(ledger, body, to)
    ledger.commit()


def add(ledger: Ledger, body: str, to: str = "Bob") -> None:
    seq = ledger.next_seq()
    ledger.add(
        [(seq, new_ulid(seq), "message", "Ann", "agent", "followup", None, body, None, seq)],
        [(seq, to, ledger.next_number(to), 1, "queued", None, seq, 1, 0)],
    )


def waiting(ledger: Ledger, to: str = "Bob") -> list[str]:
    return [row["body"] for row in queries.inbox(ledger, to, everything=False, after=0, limit=9999)]


def told(path: Path) -> str:
    """The one message of relay's to the person."""
    with closing(sqlite3.connect(path)) as db:
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
    """A closed ledger with many messages; its pages can be damaged now."""
    ledger = opened(path)
    bodies = [f"message {number} " + "x" * 60 for number in range(count)]
    for start in range(0, count, 500):
        ledger.begin()
        for body in bodies[start : start + 500]:
            add(ledger, body)
        ledger.commit()
    ledger.checkpoint()
    ledger.close()
    return bodies


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path) -> None:
    """A page of the messages that is not the first one."""
    with closing(sqlite3.connect(path)) as db, db:
        [[root]] = db.execute("SELECT rootpage FROM sqlite_master WHERE name='events'")
    db.close()
    with open(path, "r+b") as file:
        pages = iter(lambda: file.read(PAGE), b"")
        leaves = [number for number, page in enumerate(pages) if b"message 1500 x" in page]
        assert root - 1 not in leaves
        file.seek(leaves[0] * PAGE)
        file.write(b"\xff" * PAGE)


def bodies_by_hand(path: Path, lines: set[str]) -> set[str]:
    """What the raw bytes of the pages that are left still say: no less may be recovered."""
    data = path.read_bytes()
    return {line for line in lines if line.encode() in data}


@pytest.mark.parametrize("damage", [cut, overwrite])
def test_the_command_that_is_named_finds_every_row_that_is_left(
    path: Path, damage: Callable[[Path], None]
) -> None:
    bodies = damaged(path)
    damage(path)
    before = path.read_bytes()
    text = set_aside(str(path))
    fresh = opened(path)
    assert waiting(fresh) == []
    store(fresh, "in the new one")
    fresh.close()
    [aside] = path.parent.glob("ledger.db.damaged-*")
    assert aside.read_bytes() == before
    # As the person does it: line by line what the message says, up to the broker's stop.
    _, recover, use = (line.partition(": ")[2] for line in text.splitlines())
    # It complains of rows of which only a part is left, and goes on.
    subprocess.run(["sh", "-c", recover], check=False, capture_output=True)
    subprocess.run(["sh", "-c", use.partition(" && ")[2]], check=True)
    left = bodies_by_hand(aside, set(bodies))
    assert 800 < len(left) < len(bodies)
    with closing(sqlite3.connect(path)) as db, db:
        found = {row[0] for row in db.execute("SELECT body FROM events")}
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
    assert found >= left
    recovered = opened(path)
    assert set(waiting(recovered)) <= set(bodies)
    store(recovered, "and on it goes")
    assert waiting(recovered)[-1] == "and on it goes"
    recovered.close()


@pytest.mark.parametrize("first", [0, 100], ids=["header", "tables"])
def test_where_nothing_is_left_to_copy_the_new_ledger_stays(path: Path, first: int) -> None:
    damaged(path)
    with open(path, "r+b") as file:
        file.seek(first)
        file.write(b"\xff" * (PAGE - first))
    text = set_aside(str(path))
    fresh = opened(path)
    store(fresh, "in the new one")
    fresh.close()
    assert ("This command copies" in text) == bool(first)
    if first:
        _, recover, use = (line.partition(": ")[2] for line in text.splitlines())
        subprocess.run(["sh", "-c", recover], check=False, capture_output=True)
        used = subprocess.run(["sh", "-c", use.partition(" && ")[2]], capture_output=True)
        assert used.returncode != 0
    again = opened(path)
    assert waiting(again) == ["in the new one"]
    again.close()


def test_what_the_log_of_a_damaged_ledger_held_is_set_aside_with_it(path: Path) -> None:
    ledger = opened(path)
    store(ledger, "in the log")
    shutil.copytree(path.parent, path.parent.with_name("killed"))
    ledger.close()
    set_aside(str(path.parent.with_name("killed") / path.name))
    [aside, log] = sorted(path.parent.with_name("killed").glob("ledger.db.damaged-*"))
    assert log.name == f"{aside.name}-wal"
    read = Ledger(str(aside))
    assert waiting(read) == ["in the log"]
    read.close()


def test_without_its_first_page_a_ledger_begins_anew(path: Path) -> None:
    damaged(path, 10)
    with open(path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 300)
    with pytest.raises(DamagedFile):
        opened(path)
    set_aside(str(path))
    ledger = opened(path)
    store(ledger, "first")
    assert waiting(ledger) == ["first"]
    ledger.close()


def test_who_has_no_sqlite3_is_told_to_install_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged(path, 10)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "(install the program sqlite3 first)" in set_aside(str(path))
