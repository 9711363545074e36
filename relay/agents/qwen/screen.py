"""What Qwen Code's screen adds to what it reports: that the person stopped the turn. Pure.

A file of its own: it is tested by itself, on captured screens.
"""

from __future__ import annotations

import re

from relay.agents.profile import Profile

#: In English whatever the language.
_CANCELLED = re.compile(r"● Request cancelled\.\s*$")
_SCROLL_BAR = re.compile(r"\s*[│█]?\s*$")


def was_cancelled(rows: list[str], profile: Profile) -> bool:
    """Whether the last thing that the screen shows is that the person stopped the turn."""
    above = profile.input.above_it(rows) if profile.input else rows
    last = next((bare for row in reversed(above) if (bare := _SCROLL_BAR.sub("", row))), "")
    return bool(_CANCELLED.search(last))
