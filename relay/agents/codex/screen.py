"""Reads from Codex's screen how its input line is, and whether a dialog or a turn shows. Pure.

The input line is headed by a mark, with a footer below it; both renderers draw it alike::

    › what the person types

      gpt-5 default · /srv/demo
      ← for agents · ? for shortcuts

A dialog takes its place: the mark then stands before a choice, and the last row says which keys
answer it.
"""

from __future__ import annotations

import re

from relay.agents.base import ComposerState

_CHOICE = re.compile(r"^\s*(?:[›>❯]\s*)?\d+[.)]\s+\S")
_ANSWER = re.compile(
    r"\b(?:enter|return) (?:to )?(?:confirm|select|continue|submit|resume)"
    r"|\besc (?:to )?(?:cancel|back|skip|go back|close|dismiss|exit)",
    re.IGNORECASE,
)
#: What stands in grey in an input line that is empty.
_PLACEHOLDERS = frozenset({"Ask Codex to do anything", "Ask a follow-up question"})
_SHORTCUTS = "? for shortcuts"
_RUNS = re.compile(r"\(\d[^)]*\besc to interrupt\)")
_LOADING = re.compile(r"^\s*loading\s*$")
_SPINNER = re.compile(r"[\u2801-\u28ff]")


def composer_state(rows: list[str]) -> ComposerState:
    """Tell whether the input line is empty, holds a draft, or a dialog stands in its place.

    ``rows`` are the screen's rows from top to bottom. ``unknown`` when this is not a screen that
    is known here.
    """
    at = _input_line(rows)
    written = _written(rows, at) if at is not None else []
    footer = [row for row in rows[(at or 0) + len(written) :] if row.strip()]
    if any(_ANSWER.search(row) for row in footer[-2:]):
        return "dialog"
    if at is None:
        return "unknown"
    if _CHOICE.match(rows[at]) and any(_CHOICE.match(row) for row in rows[at + 1 :]):
        return "dialog"
    if rows[at].startswith("!"):
        return "draft"  # what follows is for the shell
    if len(written) == 1 and any(_SHORTCUTS in row for row in footer):
        return "empty"
    text = rows[at][1:].strip()
    return "empty" if not text or text in _PLACEHOLDERS else "draft"


def loading(rows: list[str]) -> bool:
    """Whether Codex draws its input line already but has not read its settings yet."""
    at = _input_line(rows)
    footer = [row.strip() for row in rows[at + 1 :] if row.strip()] if at is not None else []
    return footer == [_SHORTCUTS] or any(_LOADING.match(row) for row in rows)


def runs(rows: list[str], title: str) -> bool:
    """Whether a turn runs, as far as can be seen."""
    return bool(_SPINNER.match(title)) or any(_RUNS.search(row) for row in rows)


def asks(rows: list[str], title: str) -> bool:
    """Whether a dialog waits for the person."""
    return "Action Required" in title or composer_state(rows) == "dialog"


def _input_line(rows: list[str]) -> int | None:
    """The number of the last row that is headed by a mark."""
    marked = (n for n, row in enumerate(rows) if row[:1] == "›" or row[:2].rstrip() == "!")
    return max(marked, default=None)


def _written(rows: list[str], at: int) -> list[str]:
    """The rows of the input line: up to the blank one before the footer."""
    written = []
    for row in rows[at:]:
        if not row.strip():
            break
        written.append(row)
    return written
