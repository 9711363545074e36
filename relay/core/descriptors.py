"""File descriptors: which ones a process keeps or closes, and who is behind a socket's."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Iterator

# From sys/un.h on macOS and the BSDs; Python's socket module does not name them.
_SOL_LOCAL = 0
_LOCAL_PEERCRED = 1
# From Linux' net/tcp_states.h, as /proc/net/tcp writes it.
_ESTABLISHED = "01"


def inherited() -> list[int]:
    """The descriptors above 2 that were handed to us and go on to the agent (``<(…)`` in bash)."""
    found = []
    try:
        names = os.listdir("/dev/fd")
    except OSError:
        return []
    for name in names:
        try:
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
        except (OSError, ValueError):
            continue  # the one that listed the directory
    return found


def close(fds: list[int]) -> None:
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            continue


def release_stdio(fds: tuple[int, ...]) -> None:
    """Point the standard descriptors at /dev/null: a pipe we hold would never end for its peer."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        os.dup2(null, fd)
    if null > 2:
        os.close(null)


def close_all_but(keep: tuple[int, ...]) -> None:
    try:
        names = os.listdir("/dev/fd")
    except OSError:
        names = [str(fd) for fd in range(3, 256)]
    close(
        [int(name) for name in names if name.isdigit() and int(name) > 2 and int(name) not in keep]
    )


def open_missing() -> None:
    """Open /dev/null where 0, 1 or 2 was closed, lest one of our own descriptors become it."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
            os.set_inheritable(fd, True)


def loopback_owners(port: int) -> dict[int, int]:
    """The user ids behind the connections to ``port`` of this machine, by the clients' ports.

    Empty where the system does not say: only Linux does.
    """
    return {client: user for _, client, user, _ in _loopback_clients(port)}


def loopback_client(port: int, address: str, client: int) -> tuple[int, int] | None:
    """(the user id, the socket's inode) of who is connected from ``address``, an IPv4 one, and its
    port ``client`` to ``port`` of this machine; None where the system does not tell."""
    packed = bytes(map(int, address.split(".")))
    wanted = f"{int.from_bytes(packed, sys.byteorder):08X}"
    for own, number, user, inode in _loopback_clients(port):
        # One in /proc/net/tcp6 ends with the same digits.
        if number == client and own.endswith(wanted):
            return user, inode
    return None


def _loopback_clients(port: int) -> Iterator[tuple[str, int, int, int]]:
    """(the client's address in hexadecimal, its port, the user id, the socket's inode) of each
    connection to ``port``."""
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name, encoding="ascii") as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for line in lines:
            # sl local_address rem_address st queues timer retransmits uid timeout inode …; ports
            # in hexadecimal.
            part = line.split()
            if part[3] == _ESTABLISHED and int(part[2].rpartition(":")[2], 16) == port:
                address, _, client = part[1].rpartition(":")
                yield address, int(client, 16), int(part[7]), int(part[9])


def is_own_peer(connection: _socket.socket) -> bool:
    """Whether the peer runs as this process's user (or the system cannot tell: then the
    directory's mode 0700 is what protects)."""
    uid = _peer_uid(connection)
    return uid is None or uid == os.geteuid()


def _peer_uid(connection: _socket.socket) -> int | None:
    """The user id of the peer; None where the system cannot tell. Raises OSError."""
    import _socket

    if sys.platform == "linux":
        # struct ucred: the process, the user, the group; an int each.
        raw = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        return int.from_bytes(raw[4:8], sys.byteorder)
    if sys.platform == "darwin":
        raw = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76)
        return int.from_bytes(raw[4:8], sys.byteorder)  # struct xucred: a version, the user
    return None
