"""What Qwen Code's real screens say, as they were captured from version 0.24.4."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.agents.profile import find_profile
from relay.agents.qwen.source import was_cancelled

PROFILE = find_profile("qwen")[0]
SCREENS = Path(__file__).parent / "screens"
COMPOSERS = {
    "idle": "empty",
    "draft": "draft",
    "slash-menu": "draft",
    "shell-mode": "draft",
    "dialog-shell": "dialog",
    "dialog-model": "dialog",
    "dialog-model-after": "dialog",
    "after-turn": "empty",
    "after-menu": "empty",
    "busy": "empty",
    "busy-draft": "draft",
    "busy-tool": "empty",
    "busy-queued": "empty",
    "cancelled": "draft",
    "error": "empty",
}
BUSY = {"busy", "busy-draft", "busy-tool", "busy-queued"}
ALL = sorted(SCREENS.glob("*.txt"))


def is_busy(rows: list[str]) -> bool:
    return PROFILE.shows_turn(rows, "")


def name_of(path: Path) -> str:
    return path.stem.rpartition("-")[0]


def rows_of(path: Path) -> list[str]:
    return path.read_text().split("\n")


def test_each_screen_is_there() -> None:
    assert {name_of(path) for path in ALL} == set(COMPOSERS)


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_the_input_line_and_the_turn(path: Path) -> None:
    rows, name = rows_of(path), name_of(path)
    assert PROFILE.composer(rows) == COMPOSERS[name]
    assert is_busy(rows) is (name in BUSY)
    assert was_cancelled(rows, PROFILE) is (name == "cancelled")


def test_a_turn_is_seen_where_the_spinner_wraps() -> None:
    box = ["─" * 40, ">", "─" * 40]
    assert is_busy(["  ⠏ Of course (3s · ↓ 7 tokens · esc to", "              cancel)", *box])
    assert is_busy(["  ⠏ Einen Moment (1m 3s · Esc zum Abbrechen)", *box])
    assert not is_busy(["  It took a while (3s, all in all).", *box])


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([], "unknown"),
        (["─" * 40, ">", "─" * 40], "empty"),
        (["─" * 40, "* ", "─" * 40, "  YOLO mode"], "empty"),
        (["─" * 40, ">   输入您的消息或 @ 文件路径", "─" * 40], "empty"),
        (["─" * 40, "> one", "  two", "─" * 40], "draft"),
        (["─" * 40, "! ls", "─" * 40], "draft"),
        (["─" * 40, "some text", "─" * 40], "unknown"),
        (["1. one", "2. two"], "dialog"),
    ],
)
def test_the_input_line_of_other_screens(rows: list[str], state: str) -> None:
    assert PROFILE.composer(rows) == state
