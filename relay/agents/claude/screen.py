"""Reads from Claude Code's screen how its input line is, for typing. Pure.

Both renderers draw the input line between two rules, its first row headed by a mark::

    ────────────────────────────
    ❯ what the person types
    ────────────────────────────

A dialog takes its place, so where the box is missing nothing may be typed.
"""

from __future__ import annotations

import re

from relay.agents.base import ComposerState

#: At least 8 line characters in a row make a rule (a label may stand in it).
_RULE = re.compile(r"^\s{0,2}[─━╌]{8,}")
_CHOICE = re.compile(r"^\s*(?:❯\s*)?(\d)[.)]\s+\S")
_CANCEL = re.compile(r"\b(?:Esc to (?:cancel|exit|go back)|Enter to (?:confirm|select|continue))\b")
# A suggestion in grey looks like a draft where colours are not known.
_SUGGESTION = re.compile(r'Try "[^"]+"|Resend your message to try again')


def composer_state(rows: list[str]) -> ComposerState:
    """Tell whether the input line is empty, holds a draft, or a dialog stands in its place.

    ``rows`` are the screen's rows from top to bottom. ``unknown`` when this is not a screen that
    is known here: then nothing should be typed that is not safe anywhere.
    """
    box = _box(rows)
    if box is None:
        return "dialog" if _shows_choices(rows) else "unknown"
    mark, text = box[0][:1], "\n".join([box[0][1:], *box[1:]]).replace("\xa0", " ").strip()
    if mark != "❯":
        return "draft"  # the mark of another mode, in which words are commands or notes
    if not text:
        return "empty"
    return "unknown" if _SUGGESTION.fullmatch(text) else "draft"


def _box(rows: list[str]) -> list[str] | None:
    """The rows between the last two rules, when an input line stands there."""
    rules = [at for at, row in enumerate(rows) if _RULE.match(row)]
    if len(rules) < 2:
        return None
    inside = rows[rules[-2] + 1 : rules[-1]]
    if not inside or inside[0][:1] not in ("❯", "!", "#", "&", ">"):
        return None
    # A choice that is selected begins with the same mark.
    return None if _CHOICE.match(inside[0]) and _shows_choices(inside) else inside


def _shows_choices(rows: list[str]) -> bool:
    numbers = [found.group(1) for row in rows if (found := _CHOICE.match(row))]
    return "1" in numbers and "2" in numbers or any(_CANCEL.search(row) for row in rows)
