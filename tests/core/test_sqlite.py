"""A file of relay's is created, migrated, or refused and left alone: the ledger as the example."""

from __future__ import annotations

import sqlite3
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from relay.core import sqlite
from relay.core.errors import StorageError
from relay.ledger.schema import SCHEMA
from relay.ledger.store import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def made(path: Path) -> Path:
    Ledger(str(path)).close()
    return path


def test_a_new_file_is_ours_and_private(path: Path) -> None:
    made(path)
    database = sqlite3.connect(path)
    assert database.execute("PRAGMA user_version").fetchone()[0] == SCHEMA.version
    assert database.execute("PRAGMA application_id").fetchone()[0] == SCHEMA.application_id
    assert database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    database.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_every_commit_is_synced(path: Path) -> None:
    connection = sqlite.connect(str(path), SCHEMA)
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    connection.close()


def test_an_empty_file_becomes_a_ledger(path: Path) -> None:
    path.touch()
    made(path)


def test_a_newer_file_is_refused_and_untouched(path: Path) -> None:
    made(path)
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version={SCHEMA.version + 1}")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match="newer relay") as failure:
        Ledger(str(path))
    assert "upgrade" in failure.value.hint
    assert path.read_bytes() == before


def test_a_newer_version_that_only_the_log_holds_is_refused_too(path: Path) -> None:
    made(path)
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("PRAGMA wal_autocheckpoint=0")
    writer.execute(f"PRAGMA user_version={SCHEMA.version + 1}")
    before = path.read_bytes()
    assert struct.unpack(">I", before[60:64])[0] == SCHEMA.version
    with pytest.raises(StorageError, match="newer relay"):
        Ledger(str(path))
    assert path.read_bytes() == before
    writer.close()


@pytest.mark.parametrize(
    "content",
    [b"not a database", b"x" * 5000, b"SQLite format 3\x00" + b"\xff" * 4080],
    ids=["short", "long", "damaged"],
)
def test_what_is_no_ledger_is_refused_and_untouched(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StorageError) as failure:
        Ledger(str(path))
    assert failure.value.hint
    assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_another_programs_database_is_refused_and_untouched(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE events (mine)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match="another program"):
        Ledger(str(path))
    assert path.read_bytes() == before


def test_a_damaged_page_is_reported_and_not_repaired(path: Path) -> None:
    made(path)
    content = bytearray(path.read_bytes())
    content[100:400] = b"\xff" * 300  # the schema's own page
    path.write_bytes(bytes(content))
    with pytest.raises(StorageError) as failure:
        Ledger(str(path))
    assert failure.value.code == "storage"
    assert path.read_bytes() == bytes(content)


def with_more(*migrations: tuple[str, ...]) -> sqlite.Schema:
    return replace(SCHEMA, migrations=(*SCHEMA.migrations, *migrations))


def test_a_migration_that_fails_leaves_the_last_version(path: Path) -> None:
    made(path)
    broken = ("CREATE TABLE half (x)", "INSERT INTO nowhere VALUES (1)")
    with pytest.raises(StorageError):
        sqlite.connect(str(path), with_more(broken))
    ledger = Ledger(str(path))
    with ledger.guard() as database:
        tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
    assert "half" not in tables
    ledger.close()


def test_migrations_run_in_order_on_an_old_file(path: Path) -> None:
    made(path)
    more = with_more(("CREATE TABLE first (x)",), ("ALTER TABLE first ADD COLUMN y",))
    database = sqlite.connect(str(path), more)
    database.execute("INSERT INTO first (x, y) VALUES (1, 2)")
    assert sqlite.inspect(str(path), more) == SCHEMA.version + 2
    database.close()


def test_the_first_rows_are_written_with_the_first_version_only(path: Path) -> None:
    one = replace(SCHEMA, migrations=(("CREATE TABLE owner (name)",),))
    for name in ("first", "second"):
        database = sqlite.connect(str(path), one, [("INSERT INTO owner VALUES (?)", (name,))])
        assert database.execute("SELECT name FROM owner").fetchall() == [("first",)]
        database.close()


def test_two_connections_may_create_the_file_at_once(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: sqlite.connect(str(path), SCHEMA), range(8)))
    assert sqlite.inspect(str(path), SCHEMA) == SCHEMA.version
    for database in opened:
        database.close()
