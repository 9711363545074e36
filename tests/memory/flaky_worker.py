"""A worker process whose store is tests.memory.flaky's, in the folder ``flaky`` of its home.

In the environment, in seconds: ``LAST_MOMENTS``, how long it goes on without a broker, and
``APPLY_EVERY``, how often it tries what is kept.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from relay.config.memory_spec import StoreSpec
from relay.core.paths import Home
from relay.memory import worker
from relay.memory.backend import Backend
from tests.memory.flaky import Flaky

ROOT = str(Path(__file__).resolve().parent.parent.parent)
COMMAND = [
    *(sys.executable, "-c"),
    f"import sys; sys.path.append({ROOT!r}); from tests.memory.flaky_worker import main; main()",
]


def folder(home: Home) -> Path:
    """Where the store is, and what says how it behaves."""
    return Path(home.memory) / "flaky"


def opened(spec: StoreSpec, home: Home) -> Backend:
    folder(home).mkdir(exist_ok=True)
    return Flaky(folder(home))


def main() -> None:
    worker.LAST_MOMENTS = float(os.environ.get("LAST_MOMENTS") or worker.LAST_MOMENTS)
    worker.APPLY_EVERY = float(os.environ.get("APPLY_EVERY") or worker.APPLY_EVERY)
    worker.run(opened)
