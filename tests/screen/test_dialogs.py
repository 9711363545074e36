"""What dialogs ask, and their choices, on the screens of real programs and of made-up ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.screen.dialogs import Dialog, Takes, read_dialog
from relay.screen.emulator import Emulator
from relay.screen.styled_rows import styled_rows

SCREENS = Path(__file__).parent.parent / "agents"


def told(dialog: Dialog | None) -> tuple[str, list[str], int | None, str]:
    assert dialog is not None
    choices = [f"{one.key} {one.label}" for one in dialog.choices]
    return dialog.text, choices, dialog.chosen, dialog.takes.value


REAL = {
    "claude/screens/dialog-bash-classic-80x24.txt": (
        "Bash command\nx\ntouch created-file; curl -V\nThis command requires approval\n"
        "Do you want to proceed?",
        [
            "1 Yes",
            "2 Yes, and don't ask again for touch created-file and curl -V commands in"
            " /home/user/project",
            "3 No",
        ],
        0,
        "list",
    ),
    "codex/screens/dialog-exec-alternate-80x24.txt": (
        "Would you like to run the following command?\nEnvironment: local\nReason: I want to\n"
        "$ touch created",
        [
            "1 Yes, proceed (y)",
            "2 Yes, and don't ask again for commands that start with `touch created` (p)",
            "3 No, and tell Codex what to do differently (esc)",
        ],
        0,
        "list",
    ),
    "gemini/screens/dialog-shell-plain-80x24.txt": (
        "? Shell printf '@relay:Tool x\\n'\nprintf '@relay:Tool x\\n'\nAllow execution of [Shell]?",
        ["1 Allow once", "2 Allow for this session", "3 No, suggest changes (esc)"],
        0,
        "list",
    ),
    "qwen/screens/dialog-shell-80x24.txt": (
        "? Shell touch made ←\ntouch made\nAllow execution of: 'touch'?",
        [
            "1 Yes, allow once",
            "2 Always allow run 'touch *' commands in this project",
            "3 Always allow run 'touch *' commands for this user",
            "4 No, suggest changes (esc)",
        ],
        0,
        "list",
    ),
    "opencode/screens/dialog-bash-80x24.txt": (
        "△ Permission required\n# Shell command\n$ echo hi > made",
        ["1 Allow once", "2 Allow always", "3 Reject"],
        None,
        "buttons",
    ),
    "opencode/screens/dialog-question-80x24.txt": (
        "Which colour?",
        ["1 Red warm", "2 Blue cold", "3 Type your own answer"],
        None,
        "list",
    ),
    "aider/screens/question-80x24.txt": (
        "created.txt\nCreate new file? (Y)es/(N)o [Yes]:",
        ["y Yes", "n No"],
        None,
        "words",
    ),
}


@pytest.mark.parametrize(("name", "expected"), REAL.items(), ids=REAL)
def test_a_real_dialog_is_read_as_its_screen_shows_it(name: str, expected: object) -> None:
    assert told(read_dialog((SCREENS / name).read_text().split("\n")[1:])) == expected


MADE = {
    "y-n": ("Overwrite main.py? [y/N] ", ["y Yes", "n No"], None),
    "words": (
        "Really (yes/no/[fingerprint])? ",
        ["yes yes", "no no", "fingerprint fingerprint"],
        None,
    ),
    "marks": ("Trust it?\n\n❯ Yes\n  No\n", ["1 Yes", "2 No"], 0),
    "second": ("Trust it?\n\n  Yes\n❯ No\n", ["1 Yes", "2 No"], 1),
    "buttons": ("Install it?\n   [ Yes ]    No\n", ["1 Yes", "2 No"], 0),
    "said-before": ("1. red\n2. green\n\nGo on?\n❯ 1. Yes\n  2. No\n", ["1 Yes", "2 No"], 0),
    "enter": ("Welcome.\nPress Enter to continue", ["enter go on"], 0),
}


@pytest.mark.parametrize(("screen", "choices", "chosen"), MADE.values(), ids=MADE)
def test_choices_in_other_programs(screen: str, choices: list[str], chosen: int | None) -> None:
    _, found, focus, _ = told(read_dialog(screen.split("\n")))
    assert (found, focus) == (choices, chosen)


def test_a_focus_that_only_a_colour_shows_is_seen() -> None:
    emulator = Emulator(60, 4)
    emulator.feed(b"  \xe2\x96\xb3 Permission required\r\n\r\n   Allow once   ")
    emulator.feed(b"\x1b[30;48;5;214m Allow always \x1b[0m  Reject  ctrl+f fullscreen")
    dialog = read_dialog(emulator.visible(), styled_rows(emulator.visible(styled=True)))
    assert dialog is not None and (dialog.chosen, dialog.takes) == (1, Takes.BUTTONS)
    assert read_dialog(["some text", "", "that asks nothing"]) is None
