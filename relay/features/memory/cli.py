"""What memory adds to ``relay doctor``."""

from __future__ import annotations

from collections.abc import Iterator

from relay.core.paths import Home


def checks(home: Home, cwd: str) -> Iterator[tuple[str, str, str]]:
    """What finds memories here."""
    import os

    # Imported on use: every verb with parts of features reads this module.
    from relay.features.memory.memory_checks import memory_lines

    return memory_lines(home, cwd, os.environ)
