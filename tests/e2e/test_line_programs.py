"""Programs that never turn bracketed paste on: each message is one line, typed where it shows."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from relay.session.typist import STARTING
from tests.directive.envelope_reader import read
from tests.e2e import tui
from tests.e2e.wrapped import (
    ECHO,
    python,
    relay,
    relay_json,
    send_in_vain,
    states,
    wait_registered,
    wrapped,
)
from tests.support import wait_until

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
#: A menu without a line: each key means something.
KEYS = """
import sys, tty
tty.setraw(0)
sys.stdout.write("q quits> "); sys.stdout.flush()
while True:
    open(sys.argv[1], "a").write(repr(sys.stdin.read(1)) + "\\n")
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
    return [*python({"readline": CHAT, "keys": KEYS}[which]), str(got)]


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


def test_what_shows_no_key_gets_one_and_no_enter(tmp_path: Path) -> None:
    got = tmp_path / "got"
    with wrapped(command("keys", got), name="Bob"):
        wait_registered("Bob")
        send_in_vain("Bob", "hello", "it does not show what is typed")
        assert got.read_text() == "'R'\n"


def test_a_person_can_say_that_a_program_takes_lines(tmp_path: Path) -> None:
    got = tmp_path / "got"
    with wrapped(command("keys", got), name="Bob", options=["--type", "line"]):
        wait_registered("Bob")
        relay("send", "Bob", "hello")
        # What such a program does with it nobody can see, so it is submitted and no more.
        wait_until(lambda: states() == ["submitted"], 20, "the line")
        assert got.read_text().endswith("'\\r'\n")


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
