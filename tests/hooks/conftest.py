"""What the tests of hooks share."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a handler hangs on; opened at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()
