"""The vectors of one place: float16 in the file, one float32 matrix in memory while it is open.

Only imported where there is an embedder: it needs numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from relay.memory.local.place_files import SCHEMA

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relay.memory.embedding import Embedder
    from relay.memory.local.database import PlaceDatabase

_PAGE = 4096


class Vectors:
    """The matrix of a database, and what has to be made for it. It follows what others write."""

    def __init__(self, database: PlaceDatabase) -> None:
        self._database = database
        self._forget_all()

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return int(self._data.nbytes)

    def adopt(self, embedder: Embedder) -> None:
        """The file's vectors are this embedder's from now on; others' are dropped."""
        if self._known() != (embedder.name, embedder.dims):
            with self._database.writing() as db:
                db.execute("DELETE FROM vectors")
                db.execute("INSERT OR IGNORE INTO pending SELECT row FROM memories")
                db.execute(
                    "UPDATE state SET embedder=?, dims=?, removed=removed+1",
                    (embedder.name, embedder.dims),
                )

    def _known(self) -> tuple[str, int]:
        with SCHEMA.errors(self._database.path):
            name, dims = self._database.db.execute("SELECT embedder, dims FROM state").fetchone()
        return name, dims

    def missing(self, limit: int) -> list[tuple[int, str]]:
        """(row, text) of those without a vector, the newest first."""
        with SCHEMA.errors(self._database.path):
            return self._database.db.execute(
                "SELECT m.row, m.text FROM pending p CROSS JOIN memories m ON m.row=p.row"
                " ORDER BY p.row DESC LIMIT ?",
                (limit,),
            ).fetchall()

    def write(
        self, embedder: Embedder, done: Sequence[tuple[int, str]], made: NDArray[np.float32]
    ) -> None:
        """Store the vectors ``made`` of ``done``, (row, text) each.

        Not where the text is another by now, and none if the file has another embedder by now.
        """
        halves = made.astype(np.float16)
        with self._database.writing() as db:
            if self._known() != (embedder.name, embedder.dims):
                return
            stamp = db.execute("SELECT ifnull(max(stamp),0) FROM vectors").fetchone()[0]
            db.executemany(
                "DELETE FROM pending WHERE row IN"
                " (SELECT row FROM memories WHERE row=? AND text=?)",
                done,
            )
            db.executemany(
                "INSERT OR REPLACE INTO vectors (row, stamp, data)"
                " SELECT row, ?, ? FROM memories WHERE row=? AND text=?",
                [
                    (stamp + 1, half.tobytes(), row, text)
                    for half, (row, text) in zip(halves, done, strict=True)
                ],
            )

    def nearest(self, query: NDArray[np.float32], count: int) -> dict[int, float]:
        """Row -> cosine of the ``count`` nearest."""
        self._refresh(len(query))
        cosines = self._data[: self._used] @ query
        if len(cosines) > count:
            picked = np.argpartition(cosines, -count)[-count:]
        else:
            picked = np.arange(len(cosines))
        return dict(
            zip(self._rows[picked].tolist(), cosines[picked].astype(float).tolist(), strict=True)
        )

    def cosines(self, query: NDArray[np.float32], rows: Sequence[int]) -> dict[int, float]:
        """Row -> cosine, for those of ``rows`` that have a vector; after ``nearest``."""
        known = [row for row in rows if row in self._at]
        found = self._data[[self._at[row] for row in known]] @ query if known else ()
        return {row: float(one) for row, one in zip(known, found, strict=True)}

    def _forget_all(self) -> None:
        self._rows: NDArray[np.int64] = np.empty(0, np.int64)
        self._data: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self._at: dict[int, int] = {}
        self._used = 0
        self._stamp = 0
        self._removed = -1

    def _refresh(self, dims: int) -> None:
        """Read what any process wrote since; all of it when something was removed."""
        with self._database.reading() as db:
            removed = db.execute("SELECT removed FROM state").fetchone()[0]
            if removed != self._removed or self._data.shape[1] != dims:
                self._forget_all()
                self._removed = removed
                self._make_room(db.execute("SELECT count(*) FROM vectors").fetchone()[0], dims)
            cursor = db.execute(
                "SELECT row, stamp, data FROM vectors WHERE stamp>? AND length(data)=?"
                " ORDER BY stamp",
                (self._stamp, 2 * dims),
            )
            while page := cursor.fetchmany(_PAGE):
                self._take(page, dims)

    def _take(self, page: list[tuple[int, int, bytes]], dims: int) -> None:
        self._make_room(self._used + len(page), dims)
        halves = np.frombuffer(b"".join(data for _, _, data in page), np.float16)
        slots = []
        for row, _, _ in page:
            slot = self._at.setdefault(row, self._used)
            if slot == self._used:
                self._used += 1
            slots.append(slot)
        self._data[slots] = halves.reshape(len(page), dims)
        self._rows[slots] = [row for row, _, _ in page]
        self._stamp = page[-1][1]

    def _make_room(self, count: int, dims: int) -> None:
        if count <= len(self._rows) and self._data.shape[1] == dims:
            return
        room = max(64, count + count // 4)
        data = np.empty((room, dims), np.float32)
        rows = np.empty(room, np.int64)
        if self._used:
            data[: self._used] = self._data[: self._used]
            rows[: self._used] = self._rows[: self._used]
        self._data, self._rows = data, rows
