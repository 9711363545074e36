"""A terminal to run the pump in, and the session that only notes what the pump tells it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pump.outer import Fake, Outer, stop_sessions


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    fake = Fake(tmp_path / "fake")
    yield fake
    stop_sessions(fake)


@pytest.fixture
def outer(fake: Fake) -> Iterator[Outer]:
    with Outer({**os.environ, "FAKE": str(fake.folder)}) as terminal:
        yield terminal
