"""End-to-end tests leave no broker behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.wrapped import relay


@pytest.fixture(autouse=True)
def stop_broker(isolated_home: Path) -> Iterator[None]:
    """Stop the broker that the test has started on demand."""
    yield
    relay("broker", "stop", status=None)
