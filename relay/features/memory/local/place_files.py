"""Which file holds a place's memories, its schema, and how it is opened."""

from __future__ import annotations

import hashlib
import re
import sqlite3

from relay.core import sqlite
from relay.core.errors import StorageError
from relay.features.memory.records import Place, Scope

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
#: ``indexes`` are those that this place is filled into (see relay.features.memory.index),
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
