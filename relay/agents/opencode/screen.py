"""What opencode's screen says about its input line; for typing only. Pure, tested by itself.

The input line stands in a box whose left edge is a bar, closed below by a row that begins with the
foot of the bar; its last row names the agent and the model::

      ┃
      ┃  what the person types
      ┃
      ┃  Build · Mock Model Mock
      ╹▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀

A dialog takes its place, so where the box is missing nothing may be typed.
"""

from __future__ import annotations

import re

from relay.agents.base import ComposerState

_FOOT = re.compile(r"^\s*╹▀{8,}")
_BAR = re.compile(r"^\s*┃(.*)$")
_ASKS = re.compile(
    r"△ Permission required|\benter (?:confirm|submit|select)\b|⇆ select"
    r"|\S {6,}esc(?: {2}|\s*$)"  # the title of a list that lies over the screen
)
#: What the last row of the input line says when words in it are commands.
SHELL = "Shell"
# A suggestion in grey looks like a draft where colours are not known.
_SUGGESTION = re.compile(r'Ask anything… "[^"]*"')


def composer_state(rows: list[str]) -> ComposerState:
    """Whether the input line is empty, holds a draft, or a dialog stands in its place.

    ``rows`` are the screen's rows from top to bottom. ``unknown`` when this is not a screen that
    is known here: then nothing should be typed that is not safe anywhere.
    """
    if any(_ASKS.search(row) for row in rows):
        return "dialog"
    inside = _box(rows)
    if inside is None:
        return "unknown"
    if inside[-1] == SHELL:
        return "draft"  # words would be a command
    text = "\n".join(inside[:-1]).strip()
    if not text:
        return "empty"
    return "unknown" if _SUGGESTION.fullmatch(text) else "draft"


def agent_shown(rows: list[str]) -> str:
    """The agent that the input line names (``Build``, ``Plan``), empty where none is seen."""
    inside = _box(rows)
    return inside[-1].split(" · ")[0].strip() if inside and inside[-1] != SHELL else ""


def _box(rows: list[str]) -> list[str] | None:
    """What stands right of the bar of the input line, its last row with the agent and model."""
    foot = next((at for at in range(len(rows) - 1, -1, -1) if _FOOT.match(rows[at])), None)
    if foot is None:
        return None
    inside: list[str] = []
    for row in reversed(rows[:foot]):
        found = _BAR.match(row)
        if found is None:
            break
        inside.insert(0, found.group(1).strip())
    known = len(inside) > 2 and (" · " in inside[-1] or inside[-1] == SHELL)
    return inside if known else None
