"""One place's memories: their file, its schema, and the SQL. Nothing here knows of other places."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from relay.core import sqlite
from relay.core.errors import StorageError
from relay.features.memory.records import Memory, Place, Scope, check_meta
from relay.features.memory.rules import near_key
from relay.features.memory.session_texts import day

_COLUMNS = "id, text, agent, session, created_ms, updated_ms, supersedes, meta"
#: Rows that are read at a time, so that no reader holds the log for long.
_PAGE = 500


class PlaceDatabase:
    """An open file. Every failure of SQLite is a StorageError."""

    def __init__(self, path: str, connection: sqlite3.Connection) -> None:
        self.path = path
        self.db = connection
        self._file = _identity(path)
        with SCHEMA.errors(path):
            self.place = read_place(connection)
            if self._unclean():
                self._empty_log()

    @classmethod
    def open(cls, path: str, place: Place | None = None) -> PlaceDatabase | None:
        """The file at ``path``, created for ``place`` (else None where there is none)."""
        connection = connect(path, place)
        if connection is None:
            return None
        try:
            return cls(path, connection)
        except BaseException:
            connection.close()
            raise

    def moved(self) -> bool:
        """Whether another file, or none, is where this one was."""
        return _identity(self.path) != self._file

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: durable when it is left, undone when something is raised."""
        with SCHEMA.errors(self.path), sqlite.transaction(self.db):
            yield self.db

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One state of the file for several statements."""
        with SCHEMA.errors(self.path):
            self.db.execute("BEGIN")
            try:
                yield self.db
            finally:
                self.db.execute("ROLLBACK")

    # -- reading

    def starting_with(self, prefix: str, limit: int) -> list[Memory]:
        """Those whose id is ``prefix``, else begins so."""
        with SCHEMA.errors(self.path):
            found = self.db.execute(
                f"SELECT {_COLUMNS} FROM memories WHERE id=?", (prefix,)
            ).fetchall()
            found = (
                found
                or self.db.execute(
                    f"SELECT {_COLUMNS} FROM memories WHERE id>=? AND id<? ORDER BY id LIMIT ?",
                    (prefix, prefix + "\x7f", limit),
                ).fetchall()
            )
        return [self._memory(row) for row in found]

    def by_ids(self, ids: Iterable[str]) -> dict[str, Memory]:
        """Those of ``ids`` that are here."""
        with SCHEMA.errors(self.path):
            found = self.db.execute(
                f"SELECT {_COLUMNS} FROM memories WHERE id IN (SELECT value FROM json_each(?))",
                (json.dumps(list(ids)),),
            ).fetchall()
        return {row[0]: self._memory(row) for row in found}

    def newest_ids(self, limit: int) -> list[str]:
        """The ids of the newest."""
        with SCHEMA.errors(self.path):
            found = self.db.execute(
                "SELECT id FROM memories ORDER BY updated_ms DESC LIMIT ?", (limit,)
            ).fetchall()
        return [row[0] for row in found]

    def newest(self, limit: int, before_ms: int | None, before_id: str = "") -> list[Memory]:
        """The newest first, of those before this time and id."""
        with SCHEMA.errors(self.path):
            found = self.db.execute(
                f"SELECT {_COLUMNS} FROM memories WHERE (updated_ms, id) < (?, ?)"
                " ORDER BY updated_ms DESC, id DESC LIMIT ?",
                ((1 << 62) if before_ms is None else before_ms, before_id, limit),
            ).fetchall()
        return [self._memory(row) for row in found]

    def page(self, after: str) -> list[Memory]:
        """Some of those behind the id ``after``, by id; none when there are no more."""
        with SCHEMA.errors(self.path):
            page = self.db.execute(
                f"SELECT {_COLUMNS} FROM memories WHERE id>? ORDER BY id LIMIT ?", (after, _PAGE)
            ).fetchall()
        return [self._memory(row) for row in page]

    def rows(self, rows: Sequence[int]) -> dict[int, Memory]:
        """The memories of these rows."""
        with SCHEMA.errors(self.path):
            found = self.db.execute(
                f"SELECT {_COLUMNS}, row FROM memories"
                " WHERE row IN (SELECT value FROM json_each(?))",
                (json.dumps(list(rows)),),
            ).fetchall()
        return {row[-1]: self._memory(row) for row in found}

    def superseded(self) -> set[str]:
        """The ids (also of other places) that memories of this place replace."""
        with SCHEMA.errors(self.path):
            found = self.db.execute(
                "SELECT supersedes FROM memories WHERE supersedes NOT NULL"
            ).fetchall()
        return {row[0] for row in found}

    def match(self, expression: str, limit: int) -> dict[int, float]:
        """Row -> BM25 (higher is better) of the best for an FTS5 expression."""
        with SCHEMA.errors(self.path):
            found = self.db.execute(
                "SELECT rowid, rank FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT ?",
                (expression, limit),
            ).fetchall()
        return {row: -rank for row, rank in found}

    def holds(self, row: int, expressions: Iterable[str]) -> int:
        """How many of the FTS5 expressions match this row."""
        with SCHEMA.errors(self.path):
            return sum(
                self.db.execute(
                    "SELECT 1 FROM texts WHERE texts MATCH ? AND rowid=?", (one, row)
                ).fetchone()
                is not None
                for one in expressions
            )

    def count(self) -> int:
        """How many there are."""
        with SCHEMA.errors(self.path):
            return int(self.db.execute("SELECT count(*) FROM memories").fetchone()[0])

    def without_vector(self, embedder: str, dims: int) -> int:
        """How many have no vector of this embedder."""
        with SCHEMA.errors(self.path):
            return int(
                self.db.execute(
                    "SELECT CASE WHEN embedder=? AND dims=? THEN (SELECT count(*) FROM pending)"
                    " ELSE (SELECT count(*) FROM memories) END FROM state",
                    (embedder, dims),
                ).fetchone()[0]
            )

    # -- indexes behind the file: see relay.features.memory.indexes

    def enrolled(self, name: str) -> bool:
        """Whether this place is filled into the index."""
        with SCHEMA.errors(self.path):
            return bool(self.db.execute("SELECT 1 FROM indexes WHERE name=?", (name,)).fetchone())

    def enrol(self, name: str) -> None:
        """Fill this place into the index from now on."""
        if not self.enrolled(name):
            with self.writing():
                self.db.execute("INSERT OR IGNORE INTO indexes VALUES (?)", (name,))

    def not_indexed(self, name: str, limit: int) -> list[Memory]:
        """Some of those that the index does not hold yet, the newest first."""
        with SCHEMA.errors(self.path):
            rows = self.db.execute(
                f"SELECT {_COLUMNS} FROM memories m WHERE NOT EXISTS"
                " (SELECT 1 FROM indexed i WHERE i.id=m.id AND i.name=?)"
                " ORDER BY row DESC LIMIT ?",
                (name, limit),
            ).fetchall()
        return [self._memory(row) for row in rows]

    def outdated(self, name: str, limit: int) -> list[str]:
        """Some of the keys under which the index holds what is gone, or was another text."""
        with SCHEMA.errors(self.path):
            rows = self.db.execute(
                "SELECT key FROM indexed WHERE name=? AND id='' LIMIT ?", (name, limit)
            ).fetchall()
        return [row[0] for row in rows]

    def index_lag(self, name: str) -> tuple[int, int]:
        """How many memories the index lacks, and how many it holds that are outdated."""
        with SCHEMA.errors(self.path):
            lacking, outdated = self.db.execute(
                "SELECT (SELECT count(*) FROM memories m WHERE NOT EXISTS"
                " (SELECT 1 FROM indexed i WHERE i.id=m.id AND i.name=?1)),"
                " (SELECT count(*) FROM indexed WHERE name=?1 AND id='')",
                (name,),
            ).fetchone()
        return lacking, outdated

    def set_indexed(self, name: str, ids_by_key: Mapping[str, str], texts: Iterable[str]) -> None:
        """The index holds these now, with ``texts`` in the same order; one that was changed or
        forgotten meanwhile is outdated."""
        with self.writing():
            self.db.executemany(
                "INSERT OR REPLACE INTO indexed (name, key, id) VALUES (?1, ?2,"
                " ifnull((SELECT id FROM memories WHERE id=?3 AND text=?4), ''))",
                [
                    (name, key, id_, text)
                    for (key, id_), text in zip(ids_by_key.items(), texts, strict=True)
                ],
            )

    def unset_indexed(self, name: str, keys: Iterable[str] | None = None) -> None:
        """The index does not hold these keys any more; None: nothing at all."""
        with self.writing():
            if keys is None:
                self.db.execute("DELETE FROM indexed WHERE name=?", (name,))
            else:
                self.db.executemany(
                    "DELETE FROM indexed WHERE name=? AND key=?", [(name, key) for key in keys]
                )

    def rows_by_id(self, ids: Iterable[str]) -> dict[str, int]:
        """Id -> row of those of ``ids`` that are here."""
        with SCHEMA.errors(self.path):
            rows = self.db.execute(
                "SELECT id, row FROM memories WHERE id IN (SELECT value FROM json_each(?))",
                (json.dumps(list(ids)),),
            ).fetchall()
        return dict(rows)

    def rows_of_texts(self, texts: Iterable[str]) -> dict[str, int]:
        """Text -> row of those that say nearly the same, of several the newest."""
        near = {_near(text): text for text in texts}
        marks = ",".join("?" * len(near))
        with SCHEMA.errors(self.path):
            rows = self.db.execute(
                f"SELECT near, row FROM memories WHERE near IN ({marks}) ORDER BY row", list(near)
            ).fetchall()
        return {near[key]: row for key, row in rows}

    # -- writing: inside ``writing``

    def alike(self, text: str, supersedes: str | None) -> tuple[int, Memory] | None:
        """The memory that says the same: the very text first, else the newest near one.

        Not one that is superseded. Where ``supersedes`` is given only that one counts, or one that
        supersedes it already: another that says the same keeps its own history.
        """
        found = self.db.execute(
            f"SELECT {_COLUMNS}, row FROM memories m WHERE near=?1 AND NOT EXISTS"
            " (SELECT 1 FROM memories s WHERE s.supersedes=m.id)"
            " AND (?2 IS NULL OR m.id=?2 OR m.supersedes=?2)"
            " ORDER BY text=?3 DESC, updated_ms DESC, row DESC LIMIT 1",
            (_near(text), supersedes, text),
        ).fetchone()
        return None if found is None else (found[-1], self._memory(found))

    def insert(self, memory: Memory) -> bool:
        """Add it; False when its id is here already."""
        added = self.db.execute(
            "INSERT OR IGNORE INTO memories (id, text, day, near, agent, session, created_ms,"
            " updated_ms, supersedes, meta) VALUES (?,?,?,?,?,?,?,?,?,?)",
            (
                memory.id,
                memory.text,
                day(memory.created_ms),
                _near(memory.text),
                memory.agent,
                memory.session,
                memory.created_ms,
                memory.updated_ms,
                memory.supersedes,
                check_meta(memory.meta),
            ),
        )
        if added.rowcount == 0:
            return False
        self._index(int(added.lastrowid or 0), memory.text, day(memory.created_ms))
        return True

    def touch(self, row: int, now_ms: int) -> None:
        """It was saved again."""
        self.db.execute("UPDATE memories SET updated_ms=? WHERE row=?", (now_ms, row))

    def replace(self, row: int, memory: Memory) -> None:
        """Put ``memory`` in the place of the one in ``row``, with the same id."""
        self._unindex(row)
        self.db.execute(
            "UPDATE memories SET text=?, day=?, near=?, agent=?, session=?, updated_ms=?, meta=?"
            " WHERE row=?",
            (
                memory.text,
                day(memory.updated_ms),
                _near(memory.text),
                memory.agent,
                memory.session,
                memory.updated_ms,
                check_meta(memory.meta),
                row,
            ),
        )
        self._index(row, memory.text, day(memory.updated_ms))

    def relink(self, old: str, new: str | None) -> None:
        """What superseded ``old``, which goes, supersedes what that superseded."""
        self.db.execute("UPDATE memories SET supersedes=? WHERE supersedes=?", (new, old))

    def remove(self, id_: str) -> bool:
        """Take it out of the tables and the index; ``purge`` then does the rest."""
        found = self.db.execute("SELECT row FROM memories WHERE id=?", (id_,)).fetchone()
        if found is None:
            return False
        self._unindex(found[0])
        self.db.execute("DELETE FROM memories WHERE row=?", found)
        # The words of what is deleted stay in the index until its parts are merged.
        self.db.execute("INSERT INTO texts (texts) VALUES ('optimize')")
        self.db.execute("UPDATE state SET unclean=unclean+1")
        return True

    def _index(self, row: int, text: str, written: str) -> None:
        self.db.execute("INSERT INTO texts (rowid, text, day) VALUES (?,?,?)", (row, text, written))
        self.db.execute("INSERT OR IGNORE INTO pending VALUES (?)", (row,))

    def _unindex(self, row: int) -> None:
        self.db.execute(
            "INSERT INTO texts (texts, rowid, text, day)"
            " SELECT 'delete', row, text, day FROM memories WHERE row=?",
            (row,),
        )
        self.db.execute("DELETE FROM pending WHERE row=?", (row,))
        if self.db.execute("DELETE FROM vectors WHERE row=?", (row,)).rowcount:
            self.db.execute("UPDATE state SET removed=removed+1")
        self.db.execute(
            "UPDATE indexed SET id='' WHERE id=(SELECT id FROM memories WHERE row=?)", (row,)
        )

    def purge(self) -> None:
        """After ``remove``: nothing of it is left in the log. Raises StorageError when another
        program reads for so long that this cannot be done now; then it is done at the next
        opening."""
        # SQLite waits for readers by itself, but not for others that empty the log just now.
        end, pause = time.monotonic() + SCHEMA.busy, threading.Event()
        with SCHEMA.errors(self.path):
            while not self._empty_log():
                if time.monotonic() < end:
                    pause.wait(0.01)
                    continue
                raise StorageError(
                    f"it is forgotten, but its text is still in {self.path}-wal: another program"
                    " is reading the file",
                    hint="end that; the text goes when the memories are opened next",
                    code="not_purged",
                )

    def _unclean(self) -> int:
        """Count what was forgotten since the log was emptied."""
        return int(self.db.execute("SELECT unclean FROM state").fetchone()[0])

    def _empty_log(self) -> bool:
        before = self._unclean()
        if self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            return False
        # Another process may have forgotten something since: its mark stays.
        self.db.execute("UPDATE state SET unclean=0 WHERE unclean=?", (before,))
        return True

    def _memory(self, row: tuple[Any, ...]) -> Memory:
        id_, text, agent, session, created_ms, updated_ms, supersedes, meta = row[:8]
        return Memory(
            id_,
            text,
            self.place,
            agent,
            session,
            created_ms,
            updated_ms,
            supersedes,
            json.loads(meta),
        )


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _near(text: str) -> bytes:
    return hashlib.sha256(near_key(text).encode()).digest()[:16]


SUFFIX = ".db"
_PATTERN = re.compile(r"user\.db|(?:project|agent)-(?:[a-z0-9]+-)*[0-9a-f]{16}\.db")
_ODD = re.compile(r"[^a-z0-9]+")
_SLUG_MAX = 32

#: One tuple of statements for each version, applied in one transaction each.
#:
#: ``day`` is when the text was written, in words ("22 November 2026"): questions name days. It is
#: indexed, but not embedded: in a vector it only blurs what the text says.
#: ``near`` is a hash of the text's key (see duplicates.py). ``vectors`` holds float16, of length 1,
#: for the one embedder of ``state``; ``stamp`` grows with every vector that is written, and
#: ``state.removed`` with every one that goes, so that what others changed is read, and no more.
#: ``pending`` are the rows without a vector.
#: ``state.unclean``: something was forgotten, and the log may still hold its text.
#: ``indexes`` are those that this place is filled into (see relay.features.memory.indexes),
#: ``indexed`` what they hold of it: their key, and the memory's id; "" where its text has changed
#: since.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE memories (
            row INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            text TEXT NOT NULL,
            day TEXT NOT NULL,
            near BLOB NOT NULL,
            agent TEXT,
            session TEXT,
            created_ms INTEGER NOT NULL,
            updated_ms INTEGER NOT NULL,
            supersedes TEXT,
            meta TEXT NOT NULL
        )""",
        "CREATE INDEX memories_near ON memories (near)",
        "CREATE INDEX memories_updated ON memories (updated_ms)",
        "CREATE INDEX memories_supersedes ON memories (supersedes) WHERE supersedes NOT NULL",
        "CREATE VIRTUAL TABLE texts USING fts5 (text, day, content='memories', content_rowid='row',"
        " tokenize='porter unicode61')",
        "CREATE TABLE vectors"
        " (row INTEGER PRIMARY KEY, stamp INTEGER NOT NULL, data BLOB NOT NULL)",
        "CREATE INDEX vectors_stamp ON vectors (stamp)",
        "CREATE TABLE pending (row INTEGER PRIMARY KEY)",
        """CREATE TABLE state (
            scope TEXT NOT NULL,
            owner TEXT NOT NULL,
            embedder TEXT NOT NULL DEFAULT '',
            dims INTEGER NOT NULL DEFAULT 0,
            removed INTEGER NOT NULL DEFAULT 0,
            unclean INTEGER NOT NULL DEFAULT 0
        )""",
    ),
    (
        "CREATE TABLE indexes (name TEXT PRIMARY KEY)",
        """CREATE TABLE indexed (
            name TEXT NOT NULL,
            key TEXT NOT NULL,
            id TEXT NOT NULL,
            PRIMARY KEY (name, key)
        )""",
        "CREATE INDEX indexed_id ON indexed (id, name)",
    ),
)
SCHEMA = sqlite.Schema(
    title="the memories in {path}",
    noun="a file of memories",
    application_id=0x726D656D,  # "rmem"
    migrations=MIGRATIONS,
    pragmas=("secure_delete=ON",),  # what is forgotten is overwritten with zeros
    busy=30.0,
)


def file_name(place: Place) -> str:
    """A name of letters, digits and dashes: readable, and different for every place."""
    if place.scope is Scope.USER:
        return "user" + SUFFIX
    slug = _ODD.sub("-", place.owner.rsplit("/", 1)[-1].lower())[:_SLUG_MAX].strip("-")
    digest = hashlib.sha256(place.owner.encode()).hexdigest()[:16]
    return "-".join(part for part in (place.scope.value, slug, digest) if part) + SUFFIX


def is_ours(name: str) -> bool:
    """Whether a file of this name in the folder holds memories."""
    return bool(_PATTERN.fullmatch(name))


def connect(path: str, place: Place | None) -> sqlite3.Connection | None:
    """Open the file at ``path``; for ``place`` it is created where there is none.

    None when there is none (or it was killed before it held anything) and no place was given.
    Raises StorageError, with the file as it was, when it is not ours, holds another place, is
    damaged, or was written by a newer relay.
    """
    if sqlite.inspect(path, SCHEMA) == 0 and place is None:
        return None
    first: list[sqlite.Statement] = []
    if place is not None:
        values = (place.scope.value, place.owner)
        first = [("INSERT INTO state (scope, owner) VALUES (?,?)", values)]
    connection = sqlite.connect(path, SCHEMA, first)
    try:
        with SCHEMA.errors(path):
            if place is not None and read_place(connection) != place:
                raise StorageError(
                    f"{path} holds the memories of another place",
                    hint="move the file away; relay starts a new one",
                )
    except BaseException:
        connection.close()
        raise
    return connection


def read_place(connection: sqlite3.Connection) -> Place:
    """Whose memories the file holds."""
    scope, owner = connection.execute("SELECT scope, owner FROM state").fetchone()
    return Place(Scope(scope), owner)
