"""Vectors in the files: float16 on disk, one float32 matrix for each open file.

Imported only where there is an embedder: it needs numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from relay.features.memory.embedding import Embedder, EmbedderUnavailable, embed_texts, load_numpy
from relay.features.memory.local.database import SCHEMA

load_numpy()  # before anybody imports it with as many threads as there are cores
import numpy as np  # noqa: E402

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from relay.features.memory.local.database import PlaceDatabase

_PAGE = 4096
#: Matrices of vectors in memory, in bytes; beyond that the least recently searched goes.
MATRICES_MAX = 512 * 1024 * 1024
#: Texts for one call of the embedder.
_BATCH = 32


class VectorMeaning:
    """The Meaning (see relay.features.memory.local.search) of ``embedder``, which is closed with
    it."""

    def __init__(self, embedder: Embedder) -> None:
        self.name: str | None = embedder.name
        self.problem = ""
        self.away = False
        self._embedder = embedder
        self._vectors: dict[str, Vectors] = {}  # by path, the most recently used last
        self._query: NDArray[np.float32] | None = None

    def enrol(self, database: PlaceDatabase) -> None:
        """Every database has vectors."""

    def begin(self, query: str) -> bool:
        """Embed the query."""
        try:
            self._query = embed_texts(self._embedder, [query])[0]
        except EmbedderUnavailable as error:
            self.away, self.problem = True, error.message
            return False
        self.away, self.problem = False, ""
        return True

    def near(self, database: PlaceDatabase, count: int, rows: Sequence[int]) -> dict[int, float]:
        """Cosines."""
        assert self._query is not None
        vectors = self._matrix(database)
        vectors.adopt(self._embedder)
        cosines = vectors.nearest(self._query, count)
        return cosines | vectors.cosines(self._query, [row for row in rows if row not in cosines])

    def catch_up(self, database: PlaceDatabase, limit: int) -> int:
        """Make vectors that are missing."""
        try:
            if self._embedder.dims == 0:
                embed_texts(self._embedder, ["a"])  # its first answer shows the dimensions
            vectors = self._matrix(database)
            vectors.adopt(self._embedder)
            made = 0
            while made < limit and (missing := vectors.missing(min(_BATCH, limit - made))):
                texts = [text for _, text in missing]
                vectors.write(self._embedder, missing, embed_texts(self._embedder, texts))
                made += len(missing)
            return made
        except EmbedderUnavailable as error:
            self.problem = error.message
            return 0

    def pending(self, database: PlaceDatabase) -> int:
        """How many have no vector of this embedder."""
        return database.without_vector(self._embedder.name, self._embedder.dims)

    def drop(self, database: PlaceDatabase) -> None:
        """Free its matrix."""
        self._vectors.pop(database.path, None)

    def close(self) -> None:
        """Free the matrices, close the embedder."""
        self._vectors.clear()
        self._embedder.close()

    def _matrix(self, database: PlaceDatabase) -> Vectors:
        vectors = self._vectors.pop(database.path, None) or Vectors(database)
        while self._vectors and sum(one.size for one in self._vectors.values()) > MATRICES_MAX:
            self._vectors.pop(next(iter(self._vectors)))
        self._vectors[database.path] = vectors
        return vectors


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
