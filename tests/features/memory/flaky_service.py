"""A memory service whose stores are tests.features.memory.flaky's, each in ``flaky/HOST`` of its
home.

The host is that of the index's url. In the environment, in seconds: ``LAST_MOMENTS``, how long the
service goes on without a broker; ``APPLY_EVERY``, how often it looks for something to do;
``HANG_MAX``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from relay.core.paths import Home
from relay.features.memory import service
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.records import Place
from relay.features.memory.spec import StoreSpec
from relay.features.memory.store_access import StoreAccess
from tests.features.memory.flaky import Flaky

ROOT = str(Path(__file__).resolve().parents[3])
COMMAND = [
    *(sys.executable, "-u", "-c"),
    f"import sys; sys.path.append({ROOT!r});"
    " from tests.features.memory.flaky_service import main; main()",
]


def folder(home: Home, host: str = "main") -> Path:
    """Where the store is, and what says how it behaves."""
    return Path(home.memory) / "flaky" / host


class FlakyAccess(StoreAccess):
    """Opens a flaky store where an index is named."""

    def __init__(self, spec: StoreSpec, home: Home) -> None:
        super().__init__(spec if spec.backend == "local" else StoreSpec(), home)
        store: Any = spec.config.get("vector_store")
        self._where = store and folder(home, str(urlsplit(str(store["url"])).hostname))
        self._flaky: Flaky | None = None

    def opened(self, places: Sequence[Place] | None = None) -> LocalStore:
        if not self._where:
            return super().opened(places)
        if self._flaky is None:
            self._where.mkdir(parents=True, exist_ok=True)
            self._flaky = Flaky(self._where)
        return self._flaky

    def caught_up(self) -> bool:
        if self._flaky is not None and self._flaky.hangs_idle():
            self._flaky.reach()
        return super().caught_up()

    def close(self) -> None:
        if self._flaky is not None:
            self._flaky.close()
        super().close()


def main() -> None:
    for name in ("LAST_MOMENTS", "APPLY_EVERY", "HANG_MAX"):
        if name in os.environ:
            setattr(service, name, float(os.environ[name]))
    setattr(service, "StoreAccess", FlakyAccess)  # noqa: B010
    service.main()
