"""A memory service whose stores are tests.memory.flaky's, each in ``flaky/HOST`` of its home.

The host is that of the store's url. In the environment, in seconds: ``LAST_MOMENTS``, how long the
service goes on without a broker; ``APPLY_EVERY``, how often it tries what is kept; ``HANG_MAX``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from relay.config.memory_spec import StoreSpec
from relay.core.paths import Home
from relay.memory import service
from relay.memory.backend import Backend
from tests.memory.flaky import Flaky

ROOT = str(Path(__file__).resolve().parent.parent.parent)
COMMAND = [
    *(sys.executable, "-u", "-c"),
    f"import sys; sys.path.append({ROOT!r}); from tests.memory.flaky_service import main; main()",
]


def folder(home: Home, host: str = "main") -> Path:
    """Where the store is, and what says how it behaves."""
    return Path(home.memory) / "flaky" / host


def opened(spec: StoreSpec, home: Home) -> Backend:
    store = spec.config["vector_store"]
    assert isinstance(store, dict)
    where = folder(home, str(urlsplit(str(store.get("url"))).hostname))
    where.mkdir(parents=True, exist_ok=True)
    return Flaky(where)


def main() -> None:
    for name in ("LAST_MOMENTS", "APPLY_EVERY", "HANG_MAX"):
        if name in os.environ:
            setattr(service, name, float(os.environ[name]))
    service.run(opened)
