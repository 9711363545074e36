"""The real model, as a fixture."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from relay.errors import RelayError
from relay.memory.embedding.minilm import MiniLM
from relay.memory.embedding.numeric import have_numpy, load_numpy
from tests.memory.embedding import models

if have_numpy():
    load_numpy()  # before a test imports it with as many threads as there are cores


@pytest.fixture(scope="session")
def weights() -> str:
    """The folder of the real weights; where they cannot be had the test is skipped, in CI it fails.

    Parallel workers share the folder: one fetches, the others wait for it.
    """
    try:
        return models.minilm()
    except RelayError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have the weights of MiniLM: {error}")
        pytest.skip(f"{error} ({error.hint})")


@pytest.fixture(scope="session")
def minilm(weights: str) -> Iterator[MiniLM]:
    model = MiniLM(weights)
    yield model
    model.close()
