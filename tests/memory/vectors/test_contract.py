"""Stores of vectors keep the contract: embedded, as if others wrote to them, behind the policy."""

from __future__ import annotations

from pathlib import Path

from relay.memory.backend import Backend
from relay.memory.contract import BackendContract
from relay.memory.policy import Guarded, Secrets
from relay.memory.vectors.qdrant_points import open_qdrant
from tests.memory.vectors.cheap import Cheap


class TestQdrant(BackendContract):
    def make(self, folder: Path) -> Backend:
        return open_qdrant({}, str(folder), Cheap())


class TestQdrantGuarded(BackendContract):
    def make(self, folder: Path) -> Backend:
        return Guarded(open_qdrant({}, str(folder), Cheap()), Secrets.REDACT)
