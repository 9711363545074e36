"""Search by meaning with the real model: the probes of bench/, asked of indexes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

from relay.features.memory.embedding.minilm import MiniLM
from tests.features.memory.indexes.opening import opened

NOW = 1_795_000_000_000


class Once:
    """Each text goes through the model once for all tests."""

    def __init__(self, model: MiniLM) -> None:
        self.name, self.dims, self._model = model.name, model.dims, model
        self._known: dict[str, NDArray[np.float32]] = {}

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        for text in texts:
            if text not in self._known:
                self._known[text] = self._model.embed([text])[0]
        return np.stack([self._known[text] for text in texts])

    def close(self) -> None:
        """The model is the fixture's."""


@pytest.fixture(scope="module")
def once(minilm: MiniLM) -> Once:
    return Once(minilm)


@pytest.mark.parametrize("kind", ["qdrant", "mem0"])
def test_other_words_find_it(kind: str, once: Once, tmp_path: Path, quality: ModuleType) -> None:
    (corpus,) = quality.probes()
    with closing(opened(kind, tmp_path, once)) as store:
        store.database(quality.PLACE).enrol(kind)
        store.restore(corpus.memories)
        while store.catch_up(100):
            pass
        found = 0
        for question in corpus.questions:
            hits = store.search(question.text, [quality.PLACE], 5)
            found += bool(question.evidence & {hit.memory.id for hit in hits})
    assert found / len(corpus.questions) >= 0.85
