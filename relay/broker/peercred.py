"""Which user is at the other end of a unix socket."""

from __future__ import annotations

import os
import socket
import struct
import sys

# From sys/un.h on macOS and the BSDs; Python's socket module does not name them.
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1


def peer_uid(connection: socket.socket) -> int | None:
    """The user id of the peer; None where the system cannot tell. Raises OSError."""
    if sys.platform == "linux":
        size = struct.calcsize("3i")
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return int(struct.unpack("3i", raw)[1])
    if sys.platform == "darwin":
        raw = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76)
        return int(struct.unpack_from("=II", raw)[1])
    return None


def is_own(connection: socket.socket) -> bool:
    """Whether the peer runs as this process's user (or the system cannot tell: then the
    directory's mode 0700 is what protects)."""
    uid = peer_uid(connection)
    return uid is None or uid == os.geteuid()
