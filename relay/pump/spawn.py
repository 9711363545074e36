"""Starts the processes of one run: the session, and the one that writes the session's last bytes.

Neither holds anything of the agent's: no terminal but the one it is given, no pipe, no lock. The
sockets on which the session answers its agent's hooks are bound here, before the agent starts.
``_socket`` is the C module: ``socket`` imports enum and selectors (5 ms).
"""

from __future__ import annotations

import _socket
import os
import select
import time

from relay.core import descriptors, signals
from relay.core.errors import RelayError
from relay.core.files import open_private
from relay.core.json_text import dumps
from relay.pump.output_buffer import Spool
from relay.pump.session_link import SessionLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Connections of hooks that wait to be taken.
BACKLOG = 64
#: How long a session that takes nothing is offered the rest after the agent's end, and one that
#: takes it slowly.
LEFTOVER_PATIENCE = 10.0
LEFTOVER_DEADLINE = 300.0
#: Asked of the kernel for what is on its way to the session; it may give less.
SOCKET_BUFFER = 512 * 1024


class Listeners:
    """A unix socket at ``path`` (mode 0600) and, if asked for, one on 127.0.0.1. Listening.

    Raises RelayError when the unix socket cannot be bound; ``port`` and ``tcp`` are None where TCP
    was not wanted or not to be had.
    """

    __slots__ = ("path", "unix", "tcp", "port")

    def __init__(self, path: str, want_tcp: bool) -> None:
        self.path = path
        self.unix = _bind_unix(path)
        self.tcp: int | None = None
        self.port: int | None = None
        if want_tcp:
            try:
                server = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
                server.bind(("127.0.0.1", 0))
                server.listen(BACKLOG)
            except OSError:
                return  # no loopback here: hooks that speak HTTP do without
            self.port = server.getsockname()[1]
            self.tcp = _released(server)


def _bind_unix(path: str) -> int:
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        server.bind(path)
        server.listen(BACKLOG)
    except OSError as error:
        server.close()
        raise RelayError(
            f"cannot listen on {path}: {error.strerror}",
            hint="set RELAY_HOME to a short path on a local file system",
            code="state_dir",
        ) from error
    finally:
        os.umask(mask)
    return _released(server)


def _released(server: _socket.socket) -> int:
    fd = server.detach()
    os.set_blocking(fd, False)
    return fd


class SessionStarter:
    """How sessions of this run are started: each call is one process.

    ``fds`` (unix, tcp, of a recording; None where there is none) and ``args`` reach it as JSON in
    RELAY_SESSION_FDS and RELAY_SESSION_ARGS, beside the environment ``env``. With ``entry`` the
    session is a copy of this process that calls it with both instead. It serves the agent's hooks
    at ``listeners``, and writes what goes wrong into the file ``log``.
    """

    def __init__(
        self,
        command: list[str],
        env: dict[bytes, bytes],
        args: dict[str, object],
        listeners: Listeners,
        log: str,
        entry: Callable[[dict[str, int | None], dict[str, object]], object] | None = None,
    ) -> None:
        self.command = [os.fsencode(word) for word in command]
        self.env = env
        self.args = args
        self.fds: dict[str, int | None] = {"unix": listeners.unix, "tcp": listeners.tcp}
        self.log = log
        self.socket = listeners.path
        self.entry = entry

    def tell_terminal(self, name: str | None) -> None:
        """Let the sessions know the path of the person's terminal."""
        self.args["terminal"] = name

    def start(self) -> tuple[int, int]:
        """(our non-blocking end of the socketpair, the session's pid). Raises OSError."""
        ours_socket, theirs_socket = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        # Room for a whole frame of a flood: in small pieces it costs the session far more to read.
        ours_socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, SOCKET_BUFFER)
        ours, theirs = ours_socket.detach(), theirs_socket.detach()
        try:
            pid = os.fork()
        except OSError:
            descriptors.close([ours, theirs])
            raise
        if pid == 0:
            try:
                self._become(theirs)
            finally:
                os._exit(127)
        os.close(theirs)
        os.set_blocking(ours, False)
        return ours, pid

    def _become(self, socket: int) -> None:
        os.setsid()
        signals.default_for_exec()
        descriptors.release_stdio((0, 1, 2))
        try:
            log = open_private(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 2)
        except OSError:
            pass  # its messages are lost, the run is not
        fds: dict[str, int | None] = {"pump": socket, **self.fds}
        if self.entry is not None:
            descriptors.close_all_but(tuple(fd for fd in fds.values() if fd is not None))
            signals.forget()
            self.entry(fds, self.args)
            os._exit(0)
        for fd in fds.values():
            if fd is not None:
                os.set_inheritable(fd, True)
        env = dict(self.env)
        env[b"RELAY_SESSION_FDS"] = dumps(fds).encode()
        env[b"RELAY_SESSION_ARGS"] = dumps(self.args).encode()
        os.execve(self.command[0], self.command, env)

    def close(self) -> None:
        """Close what only further sessions would need."""
        descriptors.close([fd for fd in self.fds.values() if fd is not None])
        self.fds = dict.fromkeys(self.fds)

    def store(self, offset: int) -> Spool:
        """Return where output from ``offset`` on waits for the session. Raises OSError."""
        return Spool(os.path.dirname(self.log), offset)

    def give_up(self) -> None:
        """Nobody will answer any more: the agent's hooks find that out at once, not by waiting."""
        self.close()
        try:
            os.unlink(self.socket)
        except OSError:
            return


def leave_behind(link: SessionLink) -> None:
    """Fork a process that takes leave of the session, so that our exit does not wait for it.

    It writes the rest, says with the end of the stream that nothing follows, and reads until the
    session has closed its side: an ACK that met a closed socket would be an error over there, and
    cost what is still unread.
    """
    try:
        if os.fork():
            return
    except OSError:
        return
    try:
        needed = link.orphan()
        os.setsid()
        descriptors.release_stdio((0, 1, 2))
        descriptors.close_all_but(tuple(needed))
        _take_leave(link, time.monotonic() + LEFTOVER_DEADLINE)
    finally:
        os._exit(0)


def _take_leave(link: SessionLink, end: float) -> None:
    """Returns when the session has closed its side, or takes nothing any more."""
    poll = select.poll()
    poll.register(link.fd, select.POLLIN | select.POLLOUT)
    said = False
    while link.fd >= 0:
        if not said and not link.unsent:
            said = True
            end_of_stream = _socket.socket(fileno=os.dup(link.fd))
            end_of_stream.shutdown(_socket.SHUT_WR)
            end_of_stream.close()
            poll.modify(link.fd, select.POLLIN)
        left = min(end - time.monotonic(), LEFTOVER_PATIENCE)
        if left <= 0 or not poll.poll(left * 1000):
            return
        link.receive(time.monotonic())
        link.flush(time.monotonic())
