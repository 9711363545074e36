"""What screens and titles of the real Gemini CLI 0.61.0 say.

``screens`` holds what it showed at two sizes, in a terminal with all colours (``bands``) and in one
without (``plain``): the title, then the rows. The file's name says what it was.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.agents.gemini.source import doing, prompts, question
from relay.agents.profile import find_profile

PROFILE = find_profile("gemini")[0]
SCREENS = sorted((Path(__file__).parent / "screens").glob("*.txt"))
EXPECTED = {
    "after-error": ("empty", "idle"),
    "after-interrupt": ("empty", "idle"),
    "after-limit": ("empty", "idle"),
    "busy": ("empty", "busy"),
    "busy-draft": ("draft", "busy"),
    "dialog-limit": ("dialog", "blocked"),
    "dialog-settings": ("dialog", "blocked"),
    "dialog-shell": ("dialog", "blocked"),
    "draft": ("draft", "idle"),
    "draft-lines": ("draft", "idle"),
    "draft-pasted": ("draft", "idle"),
    "empty": ("empty", "idle"),
    "idle": ("empty", "idle"),
    "shell-mode": ("draft", "idle"),
    "slash-menu": ("draft", "idle"),
    "yolo": ("empty", "idle"),
}
RULE = "─" * 40


def shot(situation: str) -> list[str]:
    return next(p for p in SCREENS if p.stem == f"{situation}-bands-80x24").read_text().split("\n")


def test_every_situation_was_captured_in_both_kinds_of_terminal_at_both_sizes() -> None:
    assert len(SCREENS) == 4 * len(EXPECTED)


@pytest.mark.parametrize("screen", SCREENS, ids=lambda path: path.stem)
def test_captured_screens(screen: Path) -> None:
    title, *rows = screen.read_text().split("\n")
    composer, does = EXPECTED[screen.stem.rsplit("-", 2)[0]]
    assert PROFILE.composer(rows) == composer
    # The title may be turned off or fixed: then the rows alone tell.
    assert [doing(told, rows, PROFILE) for told in (title, "", "Gemini CLI (project)")] == [
        does
    ] * 3


@pytest.mark.parametrize(
    ("rows", "composer"),
    [
        ([], "unknown"),
        (["$ ls", "README.md"], "unknown"),
        ([" > sent before", "✦ 1. one", "  2. two"], "unknown"),
        ([RULE, " Shift+Tab to accept edits", "", " >"], "empty"),
        ([RULE, " Shift+Tab to accept edits", "", " >", "   a second row"], "draft"),
        ([RULE, "", " >   Press 'Esc' for NORMAL mode."], "empty"),
        ([RULE, "", " > (r:) "], "draft"),
        (
            [
                RULE,
                " YOLO Ctrl+Y",
                "",
                "  1 GEMINI.md file",
                "▄" * 40,
                " *   Type your message or @path/to/file",
                "▀" * 40,
            ],
            "empty",
        ),
        ([RULE, " > said once", "╭" + RULE, "│ ● 1. Yes", "│   2. No"], "dialog"),
        (["Do you trust this folder?", "● 1. Trust folder", "  2. Don't trust"], "dialog"),
    ],
)
def test_made_up_screens(rows: list[str], composer: str) -> None:
    assert PROFILE.composer(rows) == composer


def test_what_a_dialog_is_about() -> None:
    assert question(shot("dialog-shell")) == "asks to use Shell"
    assert question(shot("dialog-limit")) == "Usage limit reached for all Pro models"
    assert question(shot("dialog-settings")) == "a dialog waits for the person"


def test_prompts_that_were_sent_are_told_from_a_draft() -> None:
    assert prompts(shot("busy-draft")) == ["slowone"]
    assert prompts(shot("after-limit"))[-1] == "limitnow"
