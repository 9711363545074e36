"""A state directory whose broker ends with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.broker import client
from relay.core.paths import Home
from tests.broker.support import broker_thread, stop_broker


@pytest.fixture
def home(isolated_home: Path) -> Iterator[Home]:
    """Its broker is a process that the first client starts."""
    home = Home(str(isolated_home))
    yield home
    stop_broker(home)


@pytest.fixture
def served(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A broker serves ``home`` in a thread of this process, and forgets agents sooner.

    A test that wants a process after all begins with ``stop_broker(home)``.
    """
    monkeypatch.setattr(client, "KNOWN", 0.2)
    with broker_thread(home, grace=0.2):
        yield
