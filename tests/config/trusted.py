"""A configuration that is trusted and has its manifest, as after ``relay trust``."""

from __future__ import annotations

from pathlib import Path

from relay.config.load import record_here
from relay.config.trust import trust
from relay.core.paths import Home


def trusted(home: Home, path: Path | str) -> None:
    """Trust ``path`` as it is, and keep its manifest."""
    record_here(home.root, str(path), trust(home, str(path)))
