"""Saves that an earlier relay kept for a store that was away: they go into the files, once."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from contextlib import closing
from typing import Any

from relay.core.errors import RelayError
from relay.core.files import unlink_if_there
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.records import ORIGIN, Memory, Place, Scope, may_replace

_COLUMNS = "id, text, scope, owner, agent, session, supersedes, meta, now_ms"


def take_over(folder: str, store: LocalStore) -> None:
    """Take what is in ``folder``/kept into ``store``, in the order in which it was saved, and
    remove the files. One that cannot be read, or is another process's still, stays."""
    kept = os.path.join(folder, "kept")
    try:
        names = sorted(name for name in os.listdir(kept) if name.endswith(".db"))
    except OSError:
        return
    for name in names:
        path = os.path.join(kept, name)
        try:
            with open(path + ".lock", "a+b") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _take(path, store)
                for tail in ("", "-wal", "-shm", ".lock"):
                    unlink_if_there(path + tail)
        except (OSError, sqlite3.Error, ValueError, RelayError) as error:
            print(f"kept saves in {path} cannot be taken over yet: {error}", flush=True)


def _take(path: str, store: LocalStore) -> None:
    with closing(sqlite3.connect(path)) as db:
        ids = dict(db.execute("SELECT told, id FROM aliases").fetchall())
        for row in db.execute(f"SELECT {_COLUMNS} FROM saves ORDER BY seq").fetchall():
            store.restore([_memory(row, ids, store)])


def _memory(row: tuple[Any, ...], ids: dict[str, str], store: LocalStore) -> Memory:
    id_, text, scope, owner, agent, session, supersedes, meta, now_ms = row
    place = Place(Scope(scope), owner)
    fields: dict[str, object] = {} if meta is None else json.loads(meta)
    supersedes = None if supersedes is None else ids.get(supersedes, supersedes)
    if supersedes is not None and agent is not None:
        # What an agent may not replace, or what nobody can look at now, it does not hide.
        own = (place, Place(Scope.AGENT, agent), Place(Scope.USER))
        try:
            old = store.get(supersedes)
        except RelayError:
            supersedes = None
        else:
            replaceable = old.place in own and may_replace(old, agent, fields.get(ORIGIN))
            supersedes = old.id if replaceable else None
    return Memory(id_, text, place, agent, session, now_ms, now_ms, supersedes, fields)
