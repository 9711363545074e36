"""The agent's own side of its terminal."""

from __future__ import annotations

import os
import sys
import termios
import tty
from collections.abc import Iterator

import pytest
from ptyprocess import PtyProcess

from relay.session.agent_terminal import InnerTerminal, NoTerminal
from tests.support import wait_until


@pytest.fixture
def terminal() -> Iterator[tuple[int, int, InnerTerminal]]:
    master, slave = os.openpty()
    inner = InnerTerminal(os.ttyname(slave))
    yield master, slave, inner
    inner.close()
    inner.close()
    for fd in (master, slave):
        os.close(fd)


def test_unread_counts_what_a_line_program_can_read(
    terminal: tuple[int, int, InnerTerminal],
) -> None:
    master, slave, inner = terminal
    assert inner.unread() == 0
    os.write(master, b"one\ntwo\n")
    wait_until(lambda: inner.unread() == 8)
    assert os.read(slave, 100) == b"one\n"
    assert inner.unread() == 4
    assert os.read(slave, 100) == b"two\n"
    assert inner.unread() == 0


def test_the_discipline_is_seen_as_the_program_sets_it(
    terminal: tuple[int, int, InnerTerminal],
) -> None:
    _, slave, inner = terminal
    assert inner.cooked() and not inner.secret()
    modes = termios.tcgetattr(slave)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    assert inner.cooked() and inner.secret()
    tty.setraw(slave)
    assert not inner.cooked() and not inner.secret()


@pytest.mark.skipif(sys.platform != "linux", reason="nobody tells of reads here")
def test_what_was_read_is_told_from_what_was_thrown_away(
    terminal: tuple[int, int, InnerTerminal],
) -> None:
    master, slave, inner = terminal
    before = inner.reads()
    os.write(master, b"one\n")
    wait_until(lambda: inner.unread() == 4)
    termios.tcflush(slave, termios.TCIFLUSH)
    assert inner.unread() == 0 and inner.reads() == before
    os.write(master, b"two\n")
    wait_until(lambda: inner.unread() == 4)
    assert os.read(slave, 100) == b"two\n"
    assert inner.reads() != before


#: What a program does, and whether it waits for its terminal: nobody can look into select().
DOES = {
    "input()": True,
    "import threading; threading.Thread(target=input).start()": True,
    "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])": True,
    "import select; e = select.epoll(); e.register(0, 1); e.poll()": True,
    "import os, select; e = select.epoll(); e.register(os.pipe()[0], 1); e.poll()": False,
    "import select; select.select([0], [], [])": None,
    "import socket; socket.socketpair()[0].recv(1)": False,
    "import time; time.sleep(600)": False,
}


@pytest.mark.skipif(sys.platform != "linux", reason="nobody tells of reads here")
@pytest.mark.parametrize(("source", "waits"), DOES.items())
def test_who_waits_for_the_terminal_is_told_from_who_waits_for_something_else(
    source: str, waits: bool | None
) -> None:
    words = [sys.executable, "-c", f"print('ready', flush=True); {source}"]
    program = PtyProcess.spawn(words)
    try:
        while b"ready" not in program.read():
            pass
        inner = InnerTerminal(path_of(program), program.pid)
        wait_until(lambda: inner.waits() is waits)
        inner.close()
    finally:
        program.close(force=True)


def path_of(program: PtyProcess) -> str:
    return os.readlink(f"/proc/{program.pid}/fd/0")


def test_an_agent_without_a_terminal_can_be_asked_too() -> None:
    none = NoTerminal()
    assert not none.cooked() and not none.secret()
    none.close()
