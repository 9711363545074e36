"""Starts the agent's process behind its monitor: events come in, signals go out.

Events are pairs of a kind of :mod:`relay.pump.monitor` and a number.
"""

from __future__ import annotations

import errno
import marshal
import os
import select

from relay.core import descriptors
from relay.core.errors import RelayError
from relay.pump import monitor, tty

Event = tuple[bytes, int]
#: How long the monitor may take to end, in seconds.
_QUIT_DEADLINE = 0.5


class Monitored:
    """An agent behind its monitor. ``fd`` is readable on events."""

    def __init__(self, control: int, status: int) -> None:
        self.fd = status
        self.pid = 0
        self._control = control
        self._buffer = b""
        self._exited = False

    def events(self) -> list[Event]:
        """What happened since the last call. A monitor that was killed reports a hang-up."""
        try:
            data = os.read(self.fd, 4096)
        except BlockingIOError:
            return []
        if not data:
            if self._exited:
                return []
            self._exited = True
            return [(monitor.EXITED, 1)]  # as if killed by SIGHUP: its terminal is gone
        self._buffer += data
        found: list[Event] = []
        size = monitor.RECORD.size
        while len(self._buffer) >= size:
            kind, number = monitor.RECORD.unpack_from(self._buffer)
            self._buffer = self._buffer[size:]
            if kind == monitor.STARTED:
                self.pid = number
            elif kind == monitor.EXITED:
                self._exited = True
            found.append((kind, number))
        return found

    def signal(self, number: int) -> None:
        """Send a signal to the agent."""
        self._tell(monitor.SIGNAL_AGENT, number)

    def signal_foreground(self, number: int) -> None:
        """Send a signal to the foreground process group of the agent's terminal."""
        self._tell(monitor.SIGNAL_FOREGROUND, number)

    def resume(self, foreground: bool) -> None:
        """Continue the stopped agent, with or without its terminal."""
        self._tell(monitor.CONTINUE, int(foreground))

    def set_foreground(self, foreground: bool) -> None:
        """Give the agent its terminal, or make it a background process of it."""
        self._tell(monitor.FOREGROUND, int(foreground))

    def going_raw(self, original: tty.Attributes | None, ours: tty.Attributes | None) -> None:
        """Tell the monitor what to restore should we die; ``None`` when nothing is."""
        modes = b"" if original is None or ours is None else marshal.dumps((original, ours))
        self._tell(monitor.RAW, int(bool(modes)), modes)

    def quit(self) -> None:
        """The agent has ended and the terminal is restored."""
        self._tell(monitor.QUIT, 0)
        # Its end comes before our side of the terminal closes: what the agent leaves running would
        # be hung up otherwise.
        waiting = select.poll()
        waiting.register(self.fd, select.POLLIN)
        waiting.poll(_QUIT_DEADLINE * 1000)
        descriptors.close([self._control, self.fd])

    def _tell(self, command: bytes, argument: int, payload: bytes = b"") -> None:
        try:
            os.write(self._control, monitor.COMMAND.pack(command, argument, len(payload)) + payload)
        except OSError:
            return  # the monitor was killed: its status pipe says so


def start_monitored(
    program: monitor.Program,
    mark: str,
    slave: int = -1,
    outer: int = -1,
    slave_fds: tuple[int, ...] = (),
    foreground: bool = False,
) -> Monitored:
    """Fork the monitor, which starts the agent. Raises OSError when there is no process to be had.

    ``mark`` is the monitor's name (see relay.core.processes). ``slave_fds`` are the standard
    descriptors that become the inner terminal ``slave``; the rest are handed on as they are.
    """
    control_read, control_write = os.pipe()
    status_read, status_write = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        descriptors.close([control_read, control_write, status_read, status_write])
        raise
    if pid == 0:
        try:
            os.close(control_write)
            os.close(status_read)
            if slave >= 0:
                os.setsid()
                _control_terminal(slave)
            agent = monitor.Monitor(mark, control_read, status_write, slave, outer)
            agent.run(program, slave_fds, foreground)
        except OSError as error:
            record = monitor.RECORD.pack(monitor.FAILED, error.errno or errno.EIO)
            os.write(status_write, record)
        finally:
            os._exit(0)
    os.close(control_read)
    os.close(status_write)
    os.set_blocking(status_read, False)
    os.set_blocking(control_write, False)
    return Monitored(control_write, status_read)


def _control_terminal(slave: int) -> None:
    import fcntl
    import termios

    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


class CannotRun(RelayError):
    """COMMAND cannot be started; the statuses are the shell's."""

    code = "cannot_run"

    def __init__(self, message: str, status: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.exit_status = status


def find_program(command: str, path: str | None) -> str:
    """The file that ``command`` names, looked for as execvp(3) does. Raises CannotRun."""
    if "/" in command:
        candidates = [command]
    else:
        folders = (os.defpath if path is None else path).split(os.pathsep)
        candidates = [os.path.join(folder or ".", command) for folder in folders]
    refused = ""
    for candidate in candidates:
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            refused = refused or candidate
        elif "/" in command and os.path.isdir(candidate):
            raise CannotRun(f"{command} is a directory", 126, "give a program to run")
    if refused:
        raise CannotRun(f"{refused} is not executable", 126, f"make it so with: chmod +x {refused}")
    hint = "check the spelling"
    if "/" not in command:
        hint += ", or install it; relay doctor says how to install an agent"
    raise CannotRun(f"command not found: {command}", 127, hint)
