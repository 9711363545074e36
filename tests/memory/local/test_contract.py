"""The local backend keeps the contract."""

from __future__ import annotations

from pathlib import Path

from relay.memory.backend import Backend
from relay.memory.local.local_store import LocalStore
from relay.testing.memory_contract import BackendContract


class TestLocal(BackendContract):
    def make(self, folder: Path) -> Backend:
        return LocalStore(str(folder))
