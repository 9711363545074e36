"""A state directory whose broker ends with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.core.paths import Home
from tests.broker.support import stop_broker


@pytest.fixture
def home(isolated_home: Path) -> Iterator[Home]:
    home = Home(str(isolated_home))
    yield home
    stop_broker(home)
