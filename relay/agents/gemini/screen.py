"""Reads from Gemini CLI's screen and title how its input line is and what it does. Pure.

Below everything else stands, under a rule, how tools are approved and then the
input line, headed by a mark; where the terminal has all colours it lies on a band of its own::

    ────────────────────────────
     Shift+Tab to accept edits
    ▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄
     >   Type your message or @path/to/file
    ▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀

What was sent before is drawn alike, without the rule. A dialog takes the place of all that, so
where it is missing nothing may be typed.
"""

from __future__ import annotations

import re
from typing import Literal

from relay.agents.base import ComposerState

Doing = Literal["idle", "busy", "blocked", "unknown"]

_RULE = re.compile(r"^─{20,}\s*$")
_FRAME = re.compile(r"^╭─{10,}")
#: The mark, and what stands behind it; ``*`` is the mark while tools are approved by themselves.
_INPUT = re.compile(r"^ ([>*!])(?: (.*))?$")
#: What stands in an empty line, behind the cursor's place.
_PLACEHOLDER = re.compile(r"^  (?:Type your message or @path/to/file|Press '.*' for \w+ mode\.)$")
#: Rows under the rule within which the input line stands: how tools are approved, in a narrow
#: terminal the context files, servers and skills in rows of their own, and a band.
_HEAD = 10
_CHOICE = re.compile(r"^[\s│┃|]*(?:[●○❯>]\s*)?(\d)[.)]?\s+\S")
_CHOSEN = re.compile(r"^[\s│┃|]*●\s*\S")
_ASKS = re.compile(
    r"Allow execution|Action Required|Apply this change\?|Do you want to proceed|Do you trust"
    r"|How would you like to|Enter to select|\(Use Enter to select|Esc to (?:cancel|close|go back)"
)
_BUSY = re.compile(r"\besc to cancel\b")
#: The dialog that asks whether a tool may be used names it in this row.
_TOOL = re.compile(r"Allow execution of (?:MCP tool )?[\[\"']([^\]\"']+)")
_LIMIT = re.compile(r"Usage limit reached")


def composer_state(rows: list[str]) -> ComposerState:
    """Tell whether the input line is empty, holds a draft, or a dialog stands in its place.

    ``rows`` are the screen's rows from top to bottom. ``unknown`` when this is not a screen that
    is known here.
    """
    line = _input_line(rows)
    if line is None:
        return "dialog" if _shows_choices(rows) else "unknown"
    mark, text, below = line
    if mark == "!":
        return "draft"  # of a shell command: what is typed here would run
    if _PLACEHOLDER.match(text) or not (text.strip() or below):
        return "empty"
    return "draft"


def doing(title: str, rows: list[str]) -> Doing:
    """Tell what Gemini CLI does, by its title where that tells, else by its screen.

    The title may be turned off or fixed in the settings; and a dialog about the program itself
    (sign-in, theme, trust) does not show in it.
    """
    if title.startswith("✋"):
        return "blocked"
    composer = composer_state(rows)
    if composer == "dialog":
        return "blocked"
    if title.startswith(("✦", "⏲")):
        return "busy"
    if composer == "unknown":
        return "unknown"
    if title.startswith("◇"):
        return "idle"
    return "busy" if any(_BUSY.search(row) for row in rows) else "idle"


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
    found = (_INPUT.match(row) for row in rows[:end])
    return [solid(match[2]) for match in found if match and match[1] == ">" and match[2]]


def solid(text: str) -> str:
    """Return ``text`` without white space: the same however a screen lays it out."""
    return "".join(text.split())


def _input_line(rows: list[str]) -> tuple[str, str, bool] | None:
    """The mark, the text behind it, and whether more text stands below; None without a line."""
    for at in range(len(rows) - 1, -1, -1):
        if _FRAME.match(rows[at]):
            return None
        if not _RULE.match(rows[at]):
            continue
        for number in range(at + 1, min(at + 1 + _HEAD, len(rows))):
            if match := _INPUT.match(rows[number]):
                below = number + 1 < len(rows) and bool(rows[number + 1].strip(" ─▀▄"))
                return match[1], match[2] or "", below
    return None


def _shows_choices(rows: list[str]) -> bool:
    numbers = [found[1] for row in rows if (found := _CHOICE.match(row))]
    chosen = any(_CHOSEN.match(row) for row in rows)
    return (chosen and "1" in numbers) or any(_ASKS.search(row) for row in rows)
