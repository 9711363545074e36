"""What the screen says of the input line, on screens of opencode 1.18.33."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.agents.opencode.adapter import agent_shown
from relay.agents.profile import find_profile

PROFILE = find_profile("opencode")[0]
SCREENS = sorted(Path(__file__).with_name("screens").glob("*.txt"))
EXPECTED = {
    "busy": "empty",
    "busy-draft": "draft",
    "cleared": "empty",
    "dialog-bash": "dialog",
    "dialog-question": "dialog",
    "dialog-write": "dialog",
    "draft-lines": "draft",
    "draft-pasted": "draft",
    "home": "unknown",  # a suggestion in grey, which is not to be told from words
    "home-draft": "draft",
    "idle": "empty",
    "palette": "dialog",
    "palette-draft": "dialog",
    "palette-home": "dialog",
    "shell-mode": "draft",  # words would be a command
    "slash-menu": "draft",
}


@pytest.mark.parametrize("path", SCREENS, ids=[path.stem for path in SCREENS])
def test_the_input_line_is_known(path: Path) -> None:
    rows = path.read_text(encoding="utf-8").split("\n")
    assert PROFILE.composer(rows) == EXPECTED[path.stem.rpartition("-")[0]]


@pytest.mark.parametrize("path", SCREENS, ids=[path.stem for path in SCREENS])
def test_the_agent_is_known_where_the_input_line_stands(path: Path) -> None:
    rows = path.read_text(encoding="utf-8").split("\n")
    name = path.stem.rpartition("-")[0]
    hidden = name.startswith("dialog") or name in ("palette-home", "shell-mode")
    assert agent_shown(rows, PROFILE) == ("" if hidden else "Build")


def test_what_is_no_screen_of_opencodes_is_unknown() -> None:
    for rows in ([], [""], ["  ┃", "  ┃  > Build · x"], ["$ ls", "a  b"]):
        assert PROFILE.composer(rows) == "unknown"
        assert agent_shown(rows, PROFILE) == ""
