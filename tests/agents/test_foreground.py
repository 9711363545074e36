"""Whether a shell is in front in its terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ptyprocess import PtyProcess

from relay.agents.foreground import shell_in_front
from tests.support import wait_until


@contextmanager
def shell(cwd: Path) -> Iterator[PtyProcess]:
    program = PtyProcess.spawn(["bash", "--norc", "-i"], cwd=str(cwd))
    try:
        yield program
    finally:
        program.close(force=True)


def test_a_command_takes_the_shells_place_for_its_time(tmp_path: Path) -> None:
    with shell(tmp_path) as program:
        wait_until(lambda: shell_in_front(program.pid) is True, 20, "the prompt")
        os.write(program.fd, b"cat > out\n")
        wait_until(lambda: shell_in_front(program.pid) is False, 20, "cat in front")
        os.write(program.fd, b"\x04")
        wait_until(lambda: shell_in_front(program.pid) is True, 20, "the prompt again")


def test_what_replaces_a_shell_is_no_shell(tmp_path: Path) -> None:
    with shell(tmp_path) as program:
        wait_until(lambda: shell_in_front(program.pid) is True, 20, "the prompt")
        os.write(program.fd, b"exec cat\n")
        wait_until(lambda: shell_in_front(program.pid) is None, 20, "cat in the shell's place")


def test_nobody_knows_of_a_process_that_is_gone() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    assert shell_in_front(pid) is None
