"""Stores of vectors keep the contract: embedded, and as if others wrote to them."""

from __future__ import annotations

from pathlib import Path

from relay.memory.backend import Backend
from relay.memory.vectors.mem0_points import open_mem0
from relay.memory.vectors.qdrant_points import QdrantPoints, open_qdrant
from relay.memory.vectors.vector_backend import VectorBackend
from relay.testing.memory_contract import BackendContract
from tests.memory.vectors.cheap import Cheap


class TestQdrant(BackendContract):
    def make(self, folder: Path) -> Backend:
        return open_qdrant({}, str(folder), Cheap())


class TestMem0(BackendContract):
    def make(self, folder: Path) -> Backend:
        return open_mem0({}, str(folder), Cheap())


class TestQdrantThatOthersWriteToo(BackendContract):
    """Nothing is remembered between two calls, as with a server."""

    def make(self, folder: Path) -> Backend:
        backend = open_qdrant({}, str(folder), Cheap())
        assert isinstance(backend, VectorBackend) and isinstance(backend._points, QdrantPoints)
        backend._points.alone = False
        return VectorBackend(backend._points)
