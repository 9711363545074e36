"""What memory adds to the kernel's verbs: see relay.cli.door."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from relay.core.paths import Home


def checks(home: Home, cwd: str) -> Iterator[tuple[str, str, str]]:
    """What finds memories here."""
    from relay.features.memory.doctor_lines import memory_lines  # which imports much

    return memory_lines(home, cwd, os.environ)
