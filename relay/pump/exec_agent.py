"""The last steps before the agent's program runs, in a forked child. Never returns."""

from __future__ import annotations

import errno
import os

from relay.core import signals


class Program:
    """What to run: the file, its argv and environment (bytes, verbatim)."""

    __slots__ = ("path", "argv", "env")

    def __init__(self, path: str, argv: list[str], env: dict[bytes, bytes]) -> None:
        self.path = os.fsencode(path)
        self.argv = [os.fsencode(arg) for arg in argv]
        self.env = env


def execute(program: Program) -> OSError:
    """Replace this process by ``program``; returns why that is impossible.

    A script without an interpreter line goes to /bin/sh, as execvp(3) and every shell do.
    """
    signals.default_for_exec()
    try:
        os.execve(program.path, program.argv, program.env)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            return error
    try:
        argv = [b"/bin/sh", program.path, *program.argv[1:]]
        os.execve(b"/bin/sh", argv, program.env)
    except OSError as error:
        return error
