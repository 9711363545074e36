"""The state of the input line, read from screens of the real Codex 0.169.0.

``screens`` holds what it showed, in each renderer, in a file that is named after the situation;
the first line is the window's title.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.agents.codex.source import loading
from relay.agents.profile import find_profile

PROFILE = find_profile("codex")[0]
SCREENS = sorted((Path(__file__).parent / "screens").glob("*.txt"))
EXPECTED = {
    "after-interrupt": "empty",
    "busy": "empty",
    "busy-draft": "draft",
    "busy-queued": "empty",
    "dialog-exec": "dialog",
    "dialog-model": "dialog",
    "dialog-new": "dialog",
    "dialog-patch": "dialog",
    "dialog-permissions": "dialog",
    "dialog-question": "dialog",
    "dialog-resume": "dialog",
    "dialog-theme": "dialog",
    "dialog-trust": "dialog",
    "draft": "draft",
    "draft-lines": "draft",
    "file-menu": "draft",
    "help": "dialog",
    "idle": "empty",
    "interrupted": "draft",
    "loading": "empty",
    "pasted": "draft",
    "refused": "empty",
    "shell": "draft",
    "shell-draft": "draft",
    "slash-menu": "draft",
    "start": "empty",
}


def captured(screen: Path) -> tuple[str, str, list[str]]:
    """The situation, the title and the rows."""
    title, *rows = screen.read_text().split("\n")
    return screen.stem.rsplit("-", 2)[0], title, rows


def test_every_situation_was_captured() -> None:
    assert {captured(screen)[0] for screen in SCREENS} == set(EXPECTED)


@pytest.mark.parametrize("screen", SCREENS, ids=lambda path: path.stem)
def test_captured_screens(screen: Path) -> None:
    situation, title, rows = captured(screen)
    assert PROFILE.composer(rows) == EXPECTED[situation]
    assert PROFILE.asks(rows, title) == (EXPECTED[situation] == "dialog")
    assert PROFILE.shows_turn(rows, title) == situation.startswith("busy")
    assert loading(rows, PROFILE) == (situation == "loading")


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([], "unknown"),
        (["$ ls", "README.md"], "unknown"),
        (["› Ask a follow-up question", "", "  gpt-5"], "empty"),
        (["›", "", "  gpt-5"], "empty"),
        (["› esc to cancel, they said", "", "  gpt-5", "  ? for shortcuts"], "empty"),
        (["› two lines", "  esc to cancel", "", "  gpt-5", ""], "draft"),
        (["› 1. is how a list may begin", "", "  gpt-5"], "draft"),
        (["› 1. Yes", "  2. No"], "dialog"),
        (["› hello", "", "  Sure?", "", "  enter confirm · esc skip"], "dialog"),
    ],
)
def test_made_up_screens(rows: list[str], state: str) -> None:
    assert PROFILE.composer(rows) == state


def test_a_turn_that_runs_is_seen_without_the_title() -> None:
    assert PROFILE.shows_turn(["◦ Working (1s • esc to interrupt) · 1 background terminal"], "")
    assert not PROFILE.shows_turn(["It said: esc to interrupt"], "a project")
