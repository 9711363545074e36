"""The store keeps its contract, by words alone, with vectors and with an index behind it."""

from __future__ import annotations

from pathlib import Path

from relay.features.memory.local.local_store import LocalStore
from tests.features.memory.indexes.opening import opened
from tests.features.memory.store_contract import StoreContract


class TestWords(StoreContract):
    def make(self, folder: Path) -> LocalStore:
        return LocalStore(str(folder))


class TestVectors(StoreContract):
    def make(self, folder: Path) -> LocalStore:
        return opened("sqlite", folder)


class TestQdrant(StoreContract):
    def make(self, folder: Path) -> LocalStore:
        return opened("qdrant", folder)
