"""Reads from Codex's screen whether it is still starting. Pure.

A file of its own: it is tested by itself, on captured screens.
"""

from __future__ import annotations

import re

from relay.agents.profile import Profile

_SHORTCUTS = "? for shortcuts"
_LOADING = re.compile(r"^\s*loading\s*$")


def loading(rows: list[str], profile: Profile) -> bool:
    """Whether Codex draws its input line already but has not read its settings yet."""
    place = profile.input.find(rows) if profile.input else None
    footer = [row.strip() for row in rows[place[0] + 1 :] if row.strip()] if place else []
    return footer == [_SHORTCUTS] or any(_LOADING.match(row) for row in rows)
