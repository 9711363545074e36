"""A pager or an editor in any wrapped program shows text: it says nothing, and takes no message."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_programs import installed
from tests.e2e.wrapped import ECHO, python, relay_json, send_in_vain, wait_registered, wrapped

#: Says what it is told to say, shows what it is told to show, and takes everything else for words.
TALKER = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, lambda *_: None)
for line in sys.stdin:
    kind, _, rest = line.strip().partition(" ")
    if kind == "show":
        print("ended", subprocess.call(rest.split("|")), flush=True)
    else:
        print(f"\\n{rest}\\n" if kind == "say" else f"GOT {line.strip()}", flush=True)
"""
#: How each is started on a file, and the keys that lead to its end.
PAGERS = {
    "git-log": (["git", "-c", "core.pager=less -X", "log"], " ", "q"),
    "watch": (["watch", "-n", "1", "cat", "page"], "", "\x03"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a page, and a commit, that speak as whoever shows them."""
    words = [f"@relay:Bob row {number} of the page\n" for number in range(30)]
    (tmp_path / "page").write_text("\n".join(words))
    git = ["git", "-c", "user.name=E", "-c", "user.email=e@x"]
    subprocess.run([*git, "init", "-q"], cwd=tmp_path, check=True)
    message = "\n".join(["many words", *words])
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", message], cwd=tmp_path, check=True)
    return tmp_path


def to_bob() -> list[str]:
    return [row["body"] for row in relay_json("history") if row["to"] == "Bob"]


@pytest.mark.parametrize("which", PAGERS)
def test_what_a_pager_shows_is_not_said(which: str, folder: Path) -> None:
    command, on, end = PAGERS[which]
    installed(command[0])
    with (
        wrapped(python(ECHO), name="Bob") as bob,
        wrapped(python(TALKER), name="Ann", cwd=folder) as ann,
    ):
        wait_registered("Bob", "Ann")
        ann.type("say @relay:Bob said before\n")
        bob.wait_for("GOT Relay message .*said before")
        ann.type(f"show {'|'.join(command)}\n")
        ann.wait_for("row 4 of the page")
        send_in_vain("Ann", "not for the pager", "a pager or an editor is in front of the agent")
        ann.type(on)
        if on:
            ann.wait_for("row 1[2-9] of the page")
        ann.type(end)
        ann.wait_for(r"ended -?\d")
        ann.wait_for("GOT Relay message .*not for the pager")
        ann.type("say @relay:Bob said after\n")
        bob.wait_for("GOT Relay message .*said after")
        assert to_bob() == ["said before", "said after"]


def test_a_pager_that_is_wrapped_itself_says_nothing(folder: Path) -> None:
    with (
        wrapped(python(ECHO), name="Bob"),
        wrapped(["less", "page"], name="Ann", cwd=folder) as less,
    ):
        wait_registered("Bob", "Ann")
        less.wait_for("row 4 of the page")
        less.type(" ")
        less.wait_for("row 15 of the page")
        less.type("q")
        assert less.wait() == 0
        assert to_bob() == []
