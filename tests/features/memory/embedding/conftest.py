"""The real model, as a fixture."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relay.features.memory.embedding import have_numpy, load_numpy
from relay.features.memory.embedding.minilm import MiniLM

if have_numpy():
    load_numpy()  # before a test imports it with as many threads as there are cores


@pytest.fixture(scope="session")
def minilm(weights: str) -> Iterator[MiniLM]:
    model = MiniLM(weights)
    yield model
    model.close()
