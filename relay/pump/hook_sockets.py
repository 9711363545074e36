"""The sockets on which the session answers its agent's hooks, bound before the agent starts.

``_socket`` is the C module: ``socket`` imports enum and selectors (5 ms).
"""

from __future__ import annotations

import _socket
import os

from relay.core.errors import RelayError

BACKLOG = 64


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
