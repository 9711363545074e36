"""The local backend keeps the contract: alone, and behind the policy for secrets."""

from __future__ import annotations

from pathlib import Path

from relay.memory.backend import Backend
from relay.memory.contract import BackendContract
from relay.memory.local.store import LocalStore
from relay.memory.policy import Guarded, Secrets


class TestLocal(BackendContract):
    def make(self, folder: Path) -> Backend:
        return LocalStore(str(folder))


class TestGuarded(BackendContract):
    def make(self, folder: Path) -> Backend:
        return Guarded(LocalStore(str(folder)), Secrets.REDACT)
