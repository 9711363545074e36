"""Reads from Gemini CLI's screen and title what it does, and which prompts were sent. Pure.

What was sent is drawn like the input line, but without the rule that stands above that.
"""

from __future__ import annotations

import re
from typing import Literal

from relay.agents.profile import Profile

Doing = Literal["idle", "busy", "blocked", "unknown"]

_RULE = re.compile(r"^─{20,}\s*$")
_SENT = re.compile(r"^ > (.+)$")
#: What its title begins with when no turn runs.
_AT_REST = "◇"
#: The dialog that asks whether a tool may be used names it in this row.
_TOOL = re.compile(r"Allow execution of (?:MCP tool )?[\[\"']([^\]\"']+)")
_LIMIT = re.compile(r"Usage limit reached")


def doing(title: str, rows: list[str], profile: Profile) -> Doing:
    """Tell what Gemini CLI does, by its title where that tells, else by its screen.

    The title may be turned off or fixed in the settings; and a dialog about the program itself
    (sign-in, theme, trust) does not show in it.
    """
    if profile.asks(rows, title):
        return "blocked"
    if profile.shows_turn([] if title.startswith(_AT_REST) else rows, title):
        return "busy"
    hidden = profile.input is not None and profile.composer(rows) == "unknown"
    return "unknown" if hidden else "idle"


def question(rows: list[str]) -> str:
    """Say what the dialog on the screen is about, for people to read."""
    for row in reversed(rows):
        if found := _TOOL.search(row):
            return f"asks to use {found[1]}"
        if _LIMIT.search(row):
            return row.strip(" │┃|").rstrip(".")
    return "a dialog waits for the person"


def prompts(rows: list[str]) -> list[str]:
    """Return the first rows of the prompts that are shown as sent, without white space."""
    end = next((at for at in range(len(rows) - 1, -1, -1) if _RULE.match(rows[at])), len(rows))
    found = (_SENT.match(row) for row in rows[:end])
    return [solid(match[1]) for match in found if match]


def solid(text: str) -> str:
    """Return ``text`` without white space: the same however a screen lays it out."""
    return "".join(text.split())
