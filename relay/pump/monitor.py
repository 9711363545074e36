"""The monitor: a small process between pump and agent, leader of the inner terminal's session.

Because the agent's process group has a parent of the same session but of another group, it is
not orphaned, so stop signals work in it. The monitor reports what becomes of the agent, passes
signals on, and puts the outer terminal right when the pump dies. Without an inner terminal it is
a process of the pump's own group and session, as the agent is.

Everything that the agent starts stays below the monitor, which is marked: so the kernel knows who
belongs to an agent (see relay.core.processes). It stays for as long as any of it runs, also after
agent and pump, which wait for nothing of that.

Pump to monitor: a COMMAND header (command, argument, length) and that many bytes, which only RAW
has: the terminal's modes. Monitor to pump: records of RECORD, a kind and a number.
"""

from __future__ import annotations

import errno
import marshal
import os
import select
import struct
import termios

from relay.core import descriptors, signals
from relay.core.processes import become_monitor, stopped_groups
from relay.core.signals import signal
from relay.pump import tty

RECORD = struct.Struct(">ci")
COMMAND = struct.Struct(">cBH")
# Monitor to pump.
STARTED = b"P"  # the agent's pid
FAILED = b"E"  # errno: the agent could not be started
STOPPED = b"S"  # the signal that stopped it
CONTINUED = b"C"
EXITED = b"X"  # its wait status
# Pump to monitor.
SIGNAL_AGENT = b"a"  # argument: signal
SIGNAL_FOREGROUND = b"g"  # argument: signal, to the foreground process group
CONTINUE = b"c"  # argument: 1 with the inner terminal, 0 without
FOREGROUND = b"f"  # argument: 1 give the inner terminal to the agent, 0 take it away
RAW = b"r"  # argument: 1 the outer terminal goes raw (with: original, raw), 0 it is restored
QUIT = b"q"  # the pump ends in good order
#: What a terminal stops those with that use it from the background.
_BY_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)


class Program:
    """What to run: the file, its argv and environment (bytes, verbatim)."""

    __slots__ = ("path", "argv", "env")

    def __init__(self, path: str, argv: list[str], env: dict[bytes, bytes]) -> None:
        self.path = os.fsencode(path)
        self.argv = [os.fsencode(arg) for arg in argv]
        self.env = env


class Monitor:
    """The loop of the monitor process, called ``mark``.

    ``slave`` is the inner terminal, -1 for none; ``outer`` -1 when there are no modes to restore.
    """

    def __init__(self, mark: str, control: int, status: int, slave: int, outer: int) -> None:
        self.mark = mark
        self.control = control
        self.status = status
        self.slave = slave
        self.outer = outer
        self.modes: tuple[tty.Attributes, tty.Attributes] | None = None
        self.agent = 0
        self.pump = os.getppid()
        self.stopped = False
        self.kept_group = 0
        self.commands = b""

    def run(self, program: Program, slave_fds: tuple[int, ...], foreground: bool) -> None:
        """Start the agent and stay until the pump says so, or dies, and nothing of it is left.

        What the pump catches we catch too (and do nothing): the kernel hangs this session up when
        the pump's side closes, and the agent has to hear it first.
        """
        become_monitor(self.mark)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signals.catch((signal.SIGCHLD,), wake_write)
        # Only blocked or ignored does it let a background process give the terminal away.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTOU,))
        self.agent = self._start(program, slave_fds, foreground, mask)
        self._report(STARTED, self.agent)
        descriptors.release_stdio((0, 1, 2))
        descriptors.close_all_but(
            (self.control, self.status, self.slave, self.outer, wake_read, wake_write)
        )
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == wake_read:
                    os.read(wake_read, 4096)
                    self._reap()
                elif not self._obey():
                    self._outlast((wake_read, wake_write))
                    return

    def _start(
        self,
        program: Program,
        slave_fds: tuple[int, ...],
        foreground: bool,
        mask: object,
    ) -> int:
        pid = os.fork()
        if pid:
            if self.slave >= 0:
                _lead_group(pid)
            return pid
        try:
            if self.slave >= 0:
                os.setpgid(0, 0)
            if foreground:
                os.tcsetpgrp(self.slave, os.getpid())
            for fd in slave_fds:
                os.dup2(self.slave, fd)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            error = execute(program)
            self._report(FAILED, error.errno or 0)
        finally:
            os._exit(126)

    def _report(self, kind: bytes, number: int) -> None:
        try:
            os.write(self.status, RECORD.pack(kind, number))
        except OSError:
            return  # the pump died; the control pipe's end is the next event

    def _reap(self) -> None:
        """Report what became of the agent; of orphans that became our children, nothing."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid != self.agent:
                continue
            if os.WIFSTOPPED(status):
                self.stopped = True
                self._report(STOPPED, os.WSTOPSIG(status))
                continue
            if os.WIFCONTINUED(status):
                self._report(CONTINUED, 0)
            else:
                self.agent = 0
                self._report(EXITED, status)
            if self.stopped:
                self._wake_pump()

    def _outlast(self, wake: tuple[int, int]) -> None:
        """Wait for what the agent leaves running, so that it remains the agent's; hold nothing.

        For it and for the pump it is as if this process had ended.
        """
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if self.slave >= 0:
            tty.leave_session(self.slave)
            for group in stopped_groups():
                self._let_go(group)
        os.chdir("/")
        descriptors.close_all_but(wake)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WUNTRACED)
            except ChildProcessError:
                return
            # One that touched the terminal just before it went is stopped only now.
            late = os.WIFSTOPPED(status) and os.WSTOPSIG(status) in _BY_TERMINAL
            if late and self.slave >= 0:
                self._let_go(os.getpgid(pid))

    def _let_go(self, group: int) -> None:
        """Hang up stopped processes that nobody could continue any more.

        Without relay their parent would have ended, and the kernel would do so.
        """
        if group != os.getpgrp():
            self._kill(-group, signal.SIGHUP)
            self._kill(-group, signal.SIGCONT)

    def _wake_pump(self) -> None:
        """Somebody else continued or killed the agent: the pump, which stopped with it, must run.

        As the agent itself would without relay, it runs in the background then.
        """
        self.stopped = False
        if os.getppid() == self.pump:
            self._kill(self.pump, signal.SIGCONT)

    def _obey(self) -> bool:
        """Carry out what the pump wrote. False when this process is to end."""
        data = os.read(self.control, 512)
        if not data:
            self._pump_died()
            return False
        self.commands += data
        while len(self.commands) >= COMMAND.size:
            command, argument, length = COMMAND.unpack_from(self.commands)
            end = COMMAND.size + length
            if len(self.commands) < end:
                break
            payload = self.commands[COMMAND.size : end]
            self.commands = self.commands[end:]
            if command == QUIT:
                # What the agent leaves running must not be hung up as the foreground group.
                self._take()
                return False
            if command == RAW:
                self.modes = marshal.loads(payload) if argument else None
            else:
                self._command(command, argument)
        return True

    def _command(self, command: bytes, argument: int) -> None:
        if command == SIGNAL_AGENT and self.agent:
            self._kill(self.agent, argument)
        elif command == SIGNAL_FOREGROUND:
            self._kill(self._foreground(), argument)
        elif command == CONTINUE and self.agent:
            self._set_foreground(self.agent if argument else os.getpgrp())
            if self.stopped:  # nobody else has continued it: once is enough
                self.stopped = False
                self._kill(-self.agent if self.slave >= 0 else self.agent, signal.SIGCONT)
        elif command == FOREGROUND and argument:
            self._set_foreground(self.kept_group or self.agent)
        elif command == FOREGROUND:
            self.kept_group = self._foreground_group()
            self._take()

    def _pump_died(self) -> None:
        if self.modes is not None:
            tty.leave_for(self.outer, *self.modes)
        if self.slave < 0:
            return  # it runs on with what it was given, as any program whose parent dies
        groups = {self._foreground_group(), self.agent} - {0, os.getpgrp()}
        for group in groups:
            self._kill(-group, signal.SIGHUP)
            self._kill(-group, signal.SIGCONT)

    def _foreground(self) -> int:
        """What kill(2) takes for the foreground: a group, or the agent that has no terminal."""
        return -self._foreground_group() if self.slave >= 0 else self.agent

    def _foreground_group(self) -> int:
        try:
            return os.tcgetpgrp(self.slave)
        except OSError:
            return self.agent

    def _take(self) -> None:
        self._set_foreground(os.getpgrp())

    def _set_foreground(self, group: int) -> None:
        try:
            os.tcsetpgrp(self.slave, group)
        except (OSError, termios.error):
            return  # the group or the terminal has gone

    def _kill(self, target: int, number: int) -> None:
        if target not in (0, -1):
            signals.kill(target, number)


def _lead_group(pid: int) -> None:
    try:
        os.setpgid(pid, pid)
    except OSError:
        return  # it has done so itself, and may run already


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
