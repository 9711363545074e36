"""What memory adds to the kernel's verbs: see relay.cli.door."""

from __future__ import annotations

import os
from collections.abc import Iterator

from relay.core.paths import Home
from relay.features.memory.memory_checks import memory_lines


def checks(home: Home, cwd: str) -> Iterator[tuple[str, str, str]]:
    """What finds memories here."""
    return memory_lines(home, cwd, os.environ)
