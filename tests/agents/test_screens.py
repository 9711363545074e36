"""What the screens of agents say of their input line: captured ones of the real agents, and made-up
ones.

``screens`` of each agent's folder holds what it showed; a file's name says in which situation, then
in which renderer and at which size.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.agents.codex.source import loading
from relay.agents.gemini.source import doing, prompts, question
from relay.agents.opencode.adapter import agent_shown
from relay.agents.profile import Profile, find_profile
from relay.agents.qwen.source import was_cancelled

HERE = Path(__file__).parent
#: The situations that were captured of each agent, by what the input line holds.
CAPTURED = {
    "claude": {
        "empty": "after-interrupt busy empty idle",
        "draft": "bash-mode busy-draft draft draft-lines slash-menu",
        "dialog": "dialog-bash dialog-model",
    },
    "codex": {
        "empty": "after-interrupt busy busy-queued idle loading refused start",
        "draft": "busy-draft draft draft-lines file-menu interrupted pasted shell shell-draft "
        "slash-menu",
        "dialog": "dialog-exec dialog-model dialog-new dialog-patch dialog-permissions "
        "dialog-question dialog-resume dialog-theme dialog-trust help",
    },
    "gemini": {
        "empty": "after-error after-interrupt after-limit busy empty idle yolo",
        "draft": "busy-draft draft draft-lines draft-pasted shell-mode slash-menu",
        "dialog": "dialog-limit dialog-settings dialog-shell",
    },
    "opencode": {
        "empty": "busy cleared idle",
        "draft": "busy-draft draft-lines draft-pasted home-draft shell-mode slash-menu",
        "dialog": "dialog-bash dialog-question dialog-write palette palette-draft palette-home",
        "unknown": "home",  # a suggestion in grey, which is not to be told from words
    },
    "qwen": {
        "empty": "after-menu after-turn busy busy-queued busy-tool error idle",
        "draft": "busy-draft cancelled draft shell-mode slash-menu",
        "dialog": "dialog-model dialog-model-after dialog-shell",
    },
}
#: The first line of these agents' files is the window's title.
TITLED = ("codex", "gemini")
#: How many words of a file's name say how it was captured, and how many files a situation has.
SHOTS = {"claude": (2, 4), "codex": (2, 0), "gemini": (2, 4), "opencode": (1, 0), "qwen": (1, 0)}
FILES = [path for agent in CAPTURED for path in sorted((HERE / agent / "screens").glob("*.txt"))]
RULE = "─" * 40
#: Rows that were not captured, and what the input line holds.
MADE_UP: dict[str, list[tuple[list[str], str]]] = {
    "claude": [
        ([RULE, '❯ Try "fix typecheck errors"', RULE], "unknown"),
        ([RULE, "❯\xa0", RULE], "empty"),
        ([RULE, "❯", "  a second row", RULE], "draft"),
        ([RULE, "❯ 1. is how a list may begin", RULE], "draft"),
        ([RULE, "❯ 1. Yes", "  2. No", RULE], "dialog"),
        (["Do you trust this folder?", "❯ 1. Yes", "  2. No", "Enter to confirm"], "dialog"),
    ],
    "codex": [
        (["› Ask a follow-up question", "", "  gpt-5"], "empty"),
        (["›", "", "  gpt-5"], "empty"),
        (["› esc to cancel, they said", "", "  gpt-5", "  ? for shortcuts"], "empty"),
        (["› two lines", "  esc to cancel", "", "  gpt-5", ""], "draft"),
        (["› 1. is how a list may begin", "", "  gpt-5"], "draft"),
        (["› 1. Yes", "  2. No"], "dialog"),
        (["› hello", "", "  Sure?", "", "  enter confirm · esc skip"], "dialog"),
    ],
    "gemini": [
        ([" > sent before", "✦ 1. one", "  2. two"], "unknown"),
        ([RULE, " Shift+Tab to accept edits", "", " >"], "empty"),
        ([RULE, " Shift+Tab to accept edits", "", " >", "   a second row"], "draft"),
        ([RULE, "", " >   Press 'Esc' for NORMAL mode."], "empty"),
        ([RULE, "", " > (r:) "], "draft"),
        (
            [
                *(RULE, " YOLO Ctrl+Y", "", "  1 GEMINI.md file", "▄" * 40),
                *(" *   Type your message or @path/to/file", "▀" * 40),
            ],
            "empty",
        ),
        ([RULE, " > said once", "╭" + RULE, "│ ● 1. Yes", "│   2. No"], "dialog"),
        (["Do you trust this folder?", "● 1. Trust folder", "  2. Don't trust"], "dialog"),
    ],
    "opencode": [(["  ┃", "  ┃  > Build · x"], "unknown")],
    "qwen": [
        ([RULE, ">", RULE], "empty"),
        ([RULE, "* ", RULE, "  YOLO mode"], "empty"),
        ([RULE, ">   输入您的消息或 @ 文件路径", RULE], "empty"),
        ([RULE, "> one", "  two", RULE], "draft"),
        ([RULE, "! ls", RULE], "draft"),
        ([RULE, "some text", RULE], "unknown"),
        (["1. one", "2. two"], "dialog"),
    ],
}


def profile_of(agent: str) -> Profile:
    return find_profile(agent)[0]


def situation_of(file: Path) -> tuple[str, str]:
    """The agent of a captured screen, and its situation."""
    agent = file.parents[1].name
    return agent, file.stem.rsplit("-", SHOTS[agent][0])[0]


def shown(file: Path) -> tuple[str, list[str]]:
    """The window's title and the rows."""
    rows = file.read_text(encoding="utf-8").split("\n")
    return (rows[0], rows[1:]) if file.parents[1].name in TITLED else ("", rows)


def rows_of(agent: str, name: str) -> list[str]:
    return shown(HERE / agent / "screens" / f"{name}.txt")[1]


@pytest.mark.parametrize("agent", CAPTURED)
def test_every_situation_was_captured(agent: str) -> None:
    of_agent = [name for owner, name in map(situation_of, FILES) if owner == agent]
    known = {name for names in CAPTURED[agent].values() for name in names.split()}
    assert set(of_agent) == known
    assert not SHOTS[agent][1] or len(of_agent) == SHOTS[agent][1] * len(known)


@pytest.mark.parametrize("file", FILES, ids=lambda path: f"{path.parents[1].name}-{path.stem}")
def test_captured_screens(file: Path) -> None:
    (agent, situation), (title, rows) = situation_of(file), shown(file)
    profile = profile_of(agent)
    [state] = [held for held, names in CAPTURED[agent].items() if situation in names.split()]
    assert profile.composer(rows) == state
    busy = situation.startswith("busy")
    match agent:
        case "codex":
            assert profile.asks(rows, title) == (state == "dialog")
            assert profile.shows_turn(rows, title) == busy
            assert loading(rows, profile) == (situation == "loading")
        case "gemini":
            # The title may be turned off or fixed: then the rows alone tell.
            does = "busy" if busy else "blocked" if state == "dialog" else "idle"
            for told in (title, "", "Gemini CLI (project)"):
                assert doing(told, rows, profile) == does
        case "opencode":
            hidden = situation.startswith("dialog") or situation in ("palette-home", "shell-mode")
            assert agent_shown(rows, profile) == ("" if hidden else "Build")
        case "qwen":
            assert profile.shows_turn(rows, "") is busy
            assert was_cancelled(rows, profile) is (situation == "cancelled")


@pytest.mark.parametrize(
    ("agent", "rows", "state"), [(agent, *case) for agent in MADE_UP for case in MADE_UP[agent]]
)
def test_made_up_screens(agent: str, rows: list[str], state: str) -> None:
    assert profile_of(agent).composer(rows) == state


@pytest.mark.parametrize("rows", [[], [""], ["$ ls", "README.md"], ["$ ls", "a  b"]])
@pytest.mark.parametrize("agent", CAPTURED)
def test_what_is_no_screen_of_the_agents_is_unknown(agent: str, rows: list[str]) -> None:
    assert profile_of(agent).composer(rows) == "unknown"
    if agent == "opencode":
        assert agent_shown(rows, profile_of(agent)) == ""


def test_a_turn_is_seen_without_the_title_and_where_the_spinner_wraps() -> None:
    codex, qwen = profile_of("codex"), profile_of("qwen")
    assert codex.shows_turn(["◦ Working (1s • esc to interrupt) · 1 background terminal"], "")
    assert not codex.shows_turn(["It said: esc to interrupt"], "a project")
    box = [RULE, ">", RULE]
    wrapped = ["  ⠏ Of course (3s · ↓ 7 tokens · esc to", "              cancel)", *box]
    assert qwen.shows_turn(wrapped, "")
    assert qwen.shows_turn(["  ⠏ Einen Moment (1m 3s · Esc zum Abbrechen)", *box], "")
    assert not qwen.shows_turn(["  It took a while (3s, all in all).", *box], "")


def test_what_geminis_dialog_is_about_and_which_prompts_were_sent() -> None:
    def shot(situation: str) -> list[str]:
        return rows_of("gemini", f"{situation}-bands-80x24")

    assert question(shot("dialog-shell")) == "asks to use Shell"
    assert question(shot("dialog-limit")) == "Usage limit reached for all Pro models"
    assert question(shot("dialog-settings")) == "a dialog waits for the person"
    assert prompts(shot("busy-draft")) == ["slowone"]
    assert prompts(shot("after-limit"))[-1] == "limitnow"
