"""The state of the input line, read from screens of the real Claude Code 2.1.330.

``screens`` holds what both renderers showed at two sizes; the file's name says what it was.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.agents.profile import find_profile

PROFILE = find_profile("claude")[0]
SCREENS = sorted((Path(__file__).parent / "screens").glob("*.txt"))
EXPECTED = {
    "after-interrupt": "empty",
    "bash-mode": "draft",
    "busy": "empty",
    "busy-draft": "draft",
    "dialog-bash": "dialog",
    "dialog-model": "dialog",
    "draft": "draft",
    "draft-lines": "draft",
    "empty": "empty",
    "idle": "empty",
    "slash-menu": "draft",
}


def test_every_situation_was_captured_with_both_renderers_at_both_sizes() -> None:
    assert len(SCREENS) == 4 * len(EXPECTED)


@pytest.mark.parametrize("screen", SCREENS, ids=lambda path: path.stem)
def test_captured_screens(screen: Path) -> None:
    situation = screen.stem.rsplit("-", 2)[0]
    assert PROFILE.composer(screen.read_text().split("\n")) == EXPECTED[situation]


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([], "unknown"),
        (["$ ls", "README.md"], "unknown"),
        (["─" * 40, '❯ Try "fix typecheck errors"', "─" * 40], "unknown"),
        (["─" * 40, "❯\xa0", "─" * 40], "empty"),
        (["─" * 40, "❯", "  a second row", "─" * 40], "draft"),
        (["─" * 40, "❯ 1. is how a list may begin", "─" * 40], "draft"),
        (["─" * 40, "❯ 1. Yes", "  2. No", "─" * 40], "dialog"),
        (["Do you trust this folder?", "❯ 1. Yes", "  2. No", "Enter to confirm"], "dialog"),
    ],
)
def test_made_up_screens(rows: list[str], state: str) -> None:
    assert PROFILE.composer(rows) == state
