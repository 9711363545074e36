"""The local backend keeps the contract."""

from __future__ import annotations

from pathlib import Path

from relay.memory.backend import Backend
from relay.memory.contract import BackendContract
from relay.memory.local.store import LocalStore


class TestLocal(BackendContract):
    def make(self, folder: Path) -> Backend:
        return LocalStore(str(folder))
