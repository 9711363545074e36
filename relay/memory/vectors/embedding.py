"""Texts to vectors, for a store that must have one for each memory."""

from __future__ import annotations

from collections.abc import Sequence

from relay.core.errors import ConfigError
from relay.memory.embedding import Embedder, EmbedderUnavailable
from relay.memory.embedding.numeric import load_numpy
from relay.memory.local.search import embed_texts
from relay.memory.vectors.faults import no_vectors

_BATCH = 32


class Embedding:
    """An embedder of relay's. Where that cannot answer StoreUnavailable is raised: a save waits."""

    def __init__(self, embedder: Embedder) -> None:
        """Asks for a vector when the embedder does not know yet how long it is."""
        load_numpy()  # before qdrant or mem0 import it with as many threads as there are cores
        self._embedder = embedder
        self._last: tuple[str, list[float]] | None = None
        if embedder.dims == 0:
            self.vectors(["a"])

    @property
    def name(self) -> str:
        """Which model it is."""
        return self._embedder.name

    @property
    def dims(self) -> int:
        """How long its vectors are."""
        return self._embedder.dims

    def vectors(self, texts: Sequence[str]) -> list[list[float]]:
        """One for each text, of length 1."""
        made: list[list[float]] = []
        try:
            for start in range(0, len(texts), _BATCH):
                made += embed_texts(self._embedder, list(texts[start : start + _BATCH])).tolist()
        except EmbedderUnavailable as error:
            raise no_vectors(error) from error
        return made

    def of_query(self, query: str) -> list[float]:
        """The vector of a query, which is asked for place after place."""
        if self._last is None or self._last[0] != query:
            self._last = (query, self.vectors([query])[0])
        return self._last[1]

    def close(self) -> None:
        """Close the embedder."""
        self._embedder.close()


def needed(embedder: Embedder | None) -> Embedder:
    """The embedder. Raises ConfigError where there is none."""
    if embedder is None:
        raise ConfigError(
            "this store of memories needs an embedder, and none is set up",
            hint="run: relay memory setup; or name one in memory.config.embedder; or use the"
            " backend 'local', which needs none",
        )
    return embedder
