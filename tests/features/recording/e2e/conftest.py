"""Each test ends the broker that it started."""

from __future__ import annotations

from tests.e2e.conftest import stop_broker

__all__ = ["stop_broker"]
