"""Searching several databases at once, by words and, where an embedder answers, by vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from relay.memory.embedding import Embedder, EmbedderUnavailable
from relay.memory.embedding.numeric import load_numpy
from relay.memory.local import query as queries
from relay.memory.local import ranking
from relay.memory.local.database import PlaceDatabase
from relay.memory.records import Hit, Place, Tier

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from relay.memory.local.vectors import Vectors

#: Memories of each way to search that are fused; others have no score of that way.
CANDIDATES = 1000
#: A place's best memories that are asked how well they answer; the best of them speaks for it.
_JUDGED = 3
#: Missing vectors that a search makes before it begins; the rest waits for ``catch_up``.
_FRESH = 16
#: Matrices of vectors in memory, in bytes; beyond that the least recently searched goes.
MATRICES_MAX = 512 * 1024 * 1024
#: Texts for one call of the embedder.
_BATCH = 32


class Searcher:
    """The ways to search, and what is in memory for them."""

    def __init__(self, embedder: Embedder | None) -> None:
        self._embedder = embedder
        self._vectors: dict[str, Vectors] = {}  # by path, the most recently used last
        self._away = False  # it did not answer the last query
        self.problem = ""

    @property
    def name(self) -> str | None:
        """The embedder's name."""
        return self._embedder.name if self._embedder else None

    @property
    def tier(self) -> Tier:
        """What a search would do now, as far as is known."""
        return Tier.WORDS if self._embedder is None or self._away else Tier.HYBRID

    def search(
        self,
        text: str,
        places: Sequence[Place],
        open_database: Callable[[Place], PlaceDatabase | None],
        limit: int,
    ) -> list[Hit]:
        """The best of ``places`` (the most specific first): see relay.memory.local.ranking.

        The score of a hit is its fused score times the fit of its place, from 0 to 1; those in one
        step (see ranking.STEP) are in the order of ``places``. ``open_database`` is asked each
        time: to open one may close another.
        """
        found = queries.words(text)
        vector = self._embed_query(text)
        if vector is not None:
            self._freshen(places, open_database)
        hidden: set[str] = set()
        for place in places:
            if database := open_database(place):
                hidden |= database.superseded()
        tier = Tier.WORDS if vector is None else Tier.HYBRID
        hits: list[tuple[int, Hit]] = []
        for rank, place in enumerate(places):
            if (database := open_database(place)) is None:
                continue
            scores = self._rank(database, found, vector, hidden, limit)
            for row, memory in database.rows(list(scores)).items():
                hits.append((rank, Hit(memory, scores[row], tier)))
        return ranking.ordered(hits)[:limit]

    def _rank(
        self,
        database: PlaceDatabase,
        found: list[str],
        vector: NDArray[np.float32] | None,
        hidden: set[str],
        limit: int,
    ) -> dict[int, float]:
        """Row -> score of the best of one database."""
        out = database.rows_of(hidden) if hidden else set()
        count = max(CANDIDATES, limit) + len(out)
        words = database.match(queries.expression(found), count) if found else {}
        cosines: dict[int, float] | None = None
        if vector is not None:
            assert self._embedder is not None
            vectors = self._matrix(database)
            vectors.adopt(self._embedder)
            cosines = vectors.nearest(vector, count)
            cosines |= vectors.cosines(vector, [row for row in words if row not in cosines])
        for row in out:
            words.pop(row, None)
            if cosines:
                cosines.pop(row, None)
        scores = ranking.fuse(words, cosines)
        best = ranking.best(scores, limit)
        fit = max((self._fit(database, row, found, cosines) for row in best[:_JUDGED]), default=0.0)
        return {row: min(1.0, scores[row] * fit) for row in best if scores[row] > 0}

    def _fit(
        self, database: PlaceDatabase, row: int, found: list[str], cosines: dict[int, float] | None
    ) -> float:
        held = database.holds(row, [queries.expression([word]) for word in found])
        return ranking.fit(held, len(found), None if cosines is None else cosines.get(row, 0.0))

    # -- vectors

    def catch_up(self, database: PlaceDatabase, limit: int) -> int:
        """Make at most ``limit`` of the database's missing vectors; how many were made."""
        if limit < 1 or self._embedder is None:
            return 0
        try:
            return self._catch_up(self._embedder, database, limit)
        except EmbedderUnavailable as error:
            self.problem = error.message
            return 0

    def pending(self, database: PlaceDatabase) -> int:
        """How many of the database's memories have no vector of this embedder."""
        if self._embedder is None:
            return 0
        return database.without_vector(self._embedder.name, self._embedder.dims)

    def drop(self, database: PlaceDatabase) -> None:
        """The database is closed."""
        self._vectors.pop(database.path, None)

    def close(self) -> None:
        """Free the matrices, close the embedder."""
        self._vectors.clear()
        if self._embedder is not None:
            self._embedder.close()

    def _embed_query(self, text: str) -> NDArray[np.float32] | None:
        if self._embedder is None:
            return None
        try:
            vector: NDArray[np.float32] = embed_texts(self._embedder, [text])[0]
        except EmbedderUnavailable as error:
            self._away, self.problem = True, error.message
            return None
        self._away, self.problem = False, ""
        return vector

    def _freshen(
        self,
        places: Sequence[Place],
        open_database: Callable[[Place], PlaceDatabase | None],
    ) -> None:
        """Make some of the missing vectors."""
        for place in places:
            if database := open_database(place):
                self.catch_up(database, _FRESH)

    def _catch_up(self, embedder: Embedder, database: PlaceDatabase, limit: int) -> int:
        if embedder.dims == 0:
            embed_texts(embedder, ["a"])  # one that learns its dimensions from its first answer
        load_numpy()
        vectors = self._matrix(database)
        made = 0
        vectors.adopt(embedder)
        while made < limit:
            missing = vectors.missing(min(_BATCH, limit - made))
            if not missing:
                break
            vectors.write(embedder, missing, embed_texts(embedder, [text for _, text in missing]))
            made += len(missing)
        return made

    def _matrix(self, database: PlaceDatabase) -> Vectors:
        from relay.memory.local.vectors import Vectors

        found = self._vectors.pop(database.path, None) or Vectors(database)
        while self._vectors and sum(one.size for one in self._vectors.values()) > MATRICES_MAX:
            self._vectors.pop(next(iter(self._vectors)))
        self._vectors[database.path] = found
        return found


def embed_texts(embedder: Embedder, texts: list[str]) -> NDArray[np.float32]:
    """The vectors of ``texts``; whatever goes wrong is EmbedderUnavailable: it costs the vectors
    and nothing else, also where the embedder is somebody else's."""
    load_numpy()  # before anybody imports it with as many threads as there are cores
    try:
        made = embedder.embed(texts)
        shape, kind = made.shape, made.dtype
    except EmbedderUnavailable:
        raise
    except Exception as error:
        raise EmbedderUnavailable(
            f"the embedder {embedder.name} failed: {type(error).__name__}: {error}",
            hint="what has no vector yet gets one when it works again",
        ) from error
    if shape != (len(texts), embedder.dims) or kind != "float32":
        raise EmbedderUnavailable(
            f"the embedder {embedder.name} gave {kind} of the shape {shape}, not float32 of"
            f" {(len(texts), embedder.dims)}",
            hint="mend the embedder, or choose another",
        )
    return made
