"""Runs one external program as a hook: input on stdin, output captured, everything bounded.

The program leads a session of its own: it has no terminal, and it and what it starts can be ended
together. It is waited for, not for its output: a process that it left behind and that still holds
its pipes is ended with it. One that has let go of them may stay, and one that has left the group
(setsid) cannot be reached; its pipes are closed, so it is not waited for either.

Belongs to the loop that awaits it, in any thread; starting a program blocks it for as long as an
exec takes. No signal handlers, and no thread but for what cannot be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from relay.core.files import changed_files
from relay.hooks.hook_types import Command

#: Seconds from SIGTERM to SIGKILL.
GRACE = 5.0
#: Seconds for what a program left behind to let go of its output.
LINGER = 0.5
#: Bytes of each stream that are kept; what follows is read and thrown away.
KEPT_MAX = 1024 * 1024
#: Bytes of both streams together beyond which a program is ended.
FLOOD_MAX = 64 * 1024 * 1024
#: Seconds for the kernel to end what was killed. Longer, and it hangs in a system call.
_KILL_WAIT = 2.0
#: Seconds between two looks at something that the kernel does not report.
_POLL_FIRST, _POLL_LAST = 0.001, 0.02
_SHELL = "/bin/sh"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended."""

    #: Its exit status, the negative number of the signal that ended it, or None: it never ran.
    status: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    #: It did not end within its time, which ``error`` says too.
    timed_out: bool = False
    #: Why there is no proper end, in one line; "" when there is one.
    error: str = ""
    #: ``stdout`` is not all that it printed there.
    cut: bool = False


async def run_command(
    command: Command,
    payload: bytes,
    *,
    cwd: str,
    env: Mapping[str, str],
    timeout: float,
    grace: float = GRACE,
    linger: float = LINGER,
    kept_max: int = KEPT_MAX,
    flood_max: int = FLOOD_MAX,
) -> Ended:
    """Run ``command`` with ``payload`` on its stdin, for at most ``timeout`` seconds.

    ``env`` is its whole environment and ``cwd`` where it starts, unless it says another place.
    Whatever is wrong with it is in the result; only CancelledError is raised, and then the program
    has been killed.
    """
    where = working_directory(command, cwd)
    try:
        started = _start(command, where, env)
    except (OSError, ValueError) as error:
        return Ended(None, error=_not_started(command, where, error))
    program = _Program(started, kept_max, flood_max)
    try:
        await program.begin(payload)
        return await program.to_end(timeout, grace, linger)
    except OSError as error:  # the loop takes no more descriptors
        return Ended(None, error=f"it cannot be listened to: {error.strerror}")
    except asyncio.CancelledError:
        await program.kill()
        raise
    finally:
        program.close()


def working_directory(command: Command, cwd: str) -> str:
    """Where ``command`` starts, when the agent works in ``cwd``."""
    return os.path.join(cwd, command.cwd) if command.cwd else cwd


def refused(command: Command) -> str:
    """Why ``command`` may not run as things are now, "" when it may. Reads its programs."""
    if command.refusal:
        return command.refusal
    if changed := changed_files(dict(command.programs)):
        by = command.trusted_by
        return (
            f"{changed[0]} is not as it was when {by} was trusted. Read it, then:"
            f" relay trust {shlex.quote(by)}, and start this agent again"
        )
    return ""


def _start(command: Command, cwd: str, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        _argv(command),
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,
    )


def _argv(command: Command) -> list[str]:
    return list(command.argv) or [_SHELL, "-c", command.shell]


def _not_started(command: Command, cwd: str, error: OSError | ValueError) -> str:
    program = _argv(command)[0]
    if not isinstance(error, OSError):
        return f"{program!r} cannot be started: {error}"
    if not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):
        return f"{program!r} cannot be started: there is no working directory {cwd!r}"
    path = os.path.join(cwd, program) if "/" in program else ""
    why = error.strerror
    if path and os.path.isdir(path):
        why = "it is a directory"
    elif error.errno == errno.ENOENT:
        there = path and os.path.exists(path)
        why = "the program in its #! line is missing" if there else "there is no such program"
    elif error.errno == errno.EACCES:
        why = "it is not executable"
    elif error.errno == errno.ENOEXEC:
        why = "it is neither a binary nor a script with a #! line"
    return f"{program!r} cannot be started: {why}"


class _Output(asyncio.Protocol):
    """Reads one of a program's pipes to its end, and keeps the first ``kept_max`` bytes of it."""

    def __init__(self, program: _Program, kept_max: int) -> None:
        self._program = program
        self._kept_max = kept_max
        self.kept = bytearray()
        self.cut = False
        self.at_end = False

    def data_received(self, data: bytes) -> None:
        room = self._kept_max - len(self.kept)
        self.kept += data[:room]
        self.cut = self.cut or len(data) > room
        self._program.printed(len(data))

    def connection_lost(self, _error: Exception | None) -> None:
        self.at_end = True
        self._program.printed(0)


class _Input(asyncio.BaseProtocol):
    """Tells when a program's input is closed."""

    def __init__(self, program: _Program) -> None:
        self._program = program

    def connection_lost(self, _error: Exception | None) -> None:
        self._program.input_closed()


class _Program:
    """A running program with its pipes."""

    def __init__(self, process: subprocess.Popen[bytes], kept_max: int, flood_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = process
        self._flood_max = flood_max
        self._printed = 0
        self._out, self._err = _Output(self, kept_max), _Output(self, kept_max)
        self._outputs: list[asyncio.ReadTransport] = []
        self._input: asyncio.WriteTransport | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()  # the program itself
        self._silent: asyncio.Future[None] = self._loop.create_future()  # nobody has its output
        self._flooded: asyncio.Future[None] = self._loop.create_future()
        self._pidfd: int | None = None
        self._watcher: asyncio.TimerHandle | None = None
        self._reaped = False
        self._status: int | None = None

    async def begin(self, payload: bytes) -> None:
        """Watch for its end, listen to it and feed it."""
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):  # no Linux, an old one, or one that does not let us
            self._look(_POLL_FIRST)
        else:
            self._loop.add_reader(self._pidfd, self._has_ended)
        process, connect = self._process, self._loop.connect_read_pipe
        self._outputs.append((await connect(lambda: self._out, process.stdout))[0])
        self._outputs.append((await connect(lambda: self._err, process.stderr))[0])
        connected = await self._loop.connect_write_pipe(lambda: _Input(self), process.stdin)
        self._input = connected[0]
        self._input.write(payload)  # what it does not read is lost
        self._input.close()

    async def to_end(self, timeout: float, grace: float, linger: float) -> Ended:
        """Wait for its end, see to it that it comes, and say how it was."""
        await _first(timeout, self._ended, self._flooded)
        timed_out = not self._ended.done() and not self._flooded.done()
        if self._ended.done():
            await _first(linger, self._silent, self._flooded)
        if not self._ended.done() or not self._silent.done():
            await self._end(grace)
        self._reap()
        error = "nobody knows its exit status" if self._status is None else ""
        if timed_out:
            error = f"it did not end within {timeout:g} s"
        elif self._flooded.done():
            error = f"it printed more than {self._flood_max} bytes"
        kept = bytes(self._out.kept), bytes(self._err.kept)
        return Ended(self._status, *kept, timed_out, error, self._out.cut)

    def printed(self, size: int) -> None:
        """It has printed ``size`` bytes, or closed one of its pipes (0)."""
        self._printed += size
        if self._printed > self._flood_max and not self._flooded.done():
            self._flooded.set_result(None)
            for output in self._outputs:
                if not output.is_closing():
                    output.pause_reading()
        if self._out.at_end and self._err.at_end and not self._silent.done():
            self._silent.set_result(None)

    def input_closed(self) -> None:
        """It has read its input, or never will."""
        self._input = None

    async def _end(self, grace: float) -> None:
        """End the program, if it still runs, and what is left of its group."""
        # Of what a program that has ended left behind, only those matter who hold its output.
        left_behind = self._ended.done()
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # one that is stopped would not hear the first
        end = self._loop.time() + grace
        await _first(grace, self._ended)
        pause = _POLL_FIRST
        while not self._ended.done() or self._has_group():
            if left_behind and self._silent.done():
                return
            if self._loop.time() >= end:
                await self.kill()
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _POLL_LAST)

    async def kill(self) -> None:
        """End the program and its group at once. Only one that hangs in the kernel is left."""
        self._signal(signal.SIGKILL)
        await _first(_KILL_WAIT, self._ended)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _has_group(self) -> bool:
        self._reap()  # a zombie is a member, too
        try:
            os.killpg(self._process.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _look(self, pause: float) -> None:
        """The end of what has no descriptor can only be looked for, again and again."""
        self._reap()
        if self._reaped:
            self._has_ended()
        else:
            self._watcher = self._loop.call_later(pause, self._look, min(2 * pause, _POLL_LAST))

    def _has_ended(self) -> None:
        self._unwatch()
        if not self._ended.done():
            self._ended.set_result(None)

    def _unwatch(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        if self._pidfd is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _reap(self) -> None:
        """Take its exit status, if it has ended and nobody has taken it yet."""
        if self._reaped:
            return
        try:
            pid, status = os.waitpid(self._process.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else has: this process ignores SIGCHLD, say
            self._reaped = True
        else:
            if pid == 0:
                return
            self._reaped = True
            self._status = os.waitstatus_to_exitcode(status)
        self._process.returncode = self._status or 0  # Popen has nothing left to do

    def close(self) -> None:
        """Let go of everything. What still runs, although it was killed, is reaped by a thread."""
        self._unwatch()
        if self._input is not None:
            self._input.abort()
        for output in self._outputs:
            output.close()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._reap()
        if not self._reaped:
            self._signal(signal.SIGKILL)
            threading.Thread(
                target=self._process.wait, name="relay-hook-reaper", daemon=True
            ).start()


async def _first(within: float, *futures: asyncio.Future[None]) -> None:
    """Wait until one of them is done, at most ``within`` seconds."""
    await asyncio.wait(futures, timeout=within, return_when=asyncio.FIRST_COMPLETED)
