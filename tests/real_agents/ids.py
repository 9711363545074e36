"""Ids for what the scripted model says."""

from __future__ import annotations

import itertools

_COUNT = itertools.count(1)


def new_id(prefix: str) -> str:
    """A new id; ``next`` on a count is one step, so threads may share it."""
    return f"{prefix}_scripted{next(_COUNT):06d}"
