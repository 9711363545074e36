"""A guard says whether an HTTP request on a loopback port comes from the person's own client.

Four things could be behind such a request that are not: a page of another origin in the person's
browser, a name of somebody else's that was rebound to 127.0.0.1, another user of the machine, and
an agent, which runs as the same user and may have read the key from a file of the browser's.

``check_origin`` keeps the first two out: the host is a loopback address as a literal, which no DNS
answer can change, and the page that asks is this server's own. The key is a header that no other
page can send. It is never a cookie: browsers send those to every port of 127.0.0.1, so also to what
an agent serves there.

``client_of`` keeps the last two out, where the kernel says who holds the client's end of the
connection (Linux): a process of the person's must. A client that nobody is seen to hold is unknown:
it may be an agent's that hides, or come through a tunnel, which only the person can allow.
Elsewhere whoever shows the key is believed.

A file of its own because every server of relay's for people needs it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum

from relay.core.descriptors import loopback_client
from relay.core.errors import RelayError
from relay.core.http import Refused
from relay.core.processes import AGENT, MARKS, PERSON, UNKNOWN, ancestry, side_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

#: Names of this machine that no DNS server is asked about. ``ssh -L`` brings ports of its own.
_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
#: What a browser says of a request that no other site has caused.
_SITES = frozenset({b"", b"same-origin", b"none"})
#: A process may hand its socket to a child and end while we look: we look that often.
_LOOKS = 3
#: What the option says that lets tunnels in.
TUNNEL_HELP = "also serve clients that come through a tunnel (ssh -L) or from a container"


def loopback_listener(port: int) -> socket.socket:
    """A socket that listens on 127.0.0.1, at ``port`` or (0) a free one. Raises RelayError."""
    import socket

    try:
        return socket.create_server(("127.0.0.1", port), backlog=64)
    except OSError as error:
        raise RelayError(
            f"port {port} of 127.0.0.1 cannot be used: {os.strerror(error.errno or 0)}",
            hint="leave out --port: any free one does",
        ) from error


class ClientKind(Enum):
    """Who holds the other end of a connection."""

    PERSON = PERSON
    AGENT = AGENT
    STRANGER = "another user's"
    UNKNOWN = UNKNOWN  # nobody is seen to hold it: it has gone, it hides, or it is a tunnel's


def admitted(allow_tunnel: bool) -> frozenset[ClientKind]:
    """Who is served. ``allow_tunnel``: the person lets in who comes from elsewhere, and with that
    whoever is not seen to be an agent's."""
    return frozenset(ClientKind) - {ClientKind.AGENT} if allow_tunnel else _PERSONS


_PERSONS = frozenset({ClientKind.PERSON})


def check_host(headers: Mapping[bytes, bytes]) -> str:
    """The host that a request is for; enough for what anybody may have. Raises Refused unless it is
    a loopback address as a literal."""
    host = headers.get(b"host", b"").decode("latin-1").lower()
    name, _, port = host.rpartition(":") if host[-1:].isdigit() and ":" in host else (host, "", "")
    if name not in _HOSTS or not (port or "80").isdigit():
        raise Refused(403, "this server is for 127.0.0.1 and localhost only")
    return host


def check_origin(headers: Mapping[bytes, bytes]) -> None:
    """Raises Refused unless a request with these ``headers`` can only be this server's own page's,
    or no browser's."""
    host = check_host(headers)
    origin = headers.get(b"origin")
    if origin is not None and origin.decode("latin-1").lower() != f"http://{host}":
        raise Refused(403, "another page has asked for that")
    if headers.get(b"sec-fetch-site", b"") not in _SITES:
        raise Refused(403, "another site has asked for that")


def client_of(port: int, address: str, client: int) -> ClientKind:
    """Who is connected from ``address`` and its port ``client`` to our ``port`` of 127.0.0.1.
    Looks through the processes, which takes some milliseconds."""
    if not MARKS:
        return ClientKind.PERSON  # who has shown the key; nobody can tell more
    found = loopback_client(port, address, client)
    if found is None:
        return ClientKind.UNKNOWN
    user, inode = found
    if user not in (os.geteuid(), 0):
        return ClientKind.STRANGER
    link = f"socket:[{inode}]"
    for _ in range(_LOOKS):
        sides = {side_of(ancestry(pid)) for pid in _holders(link)}
        if AGENT in sides:
            return ClientKind.AGENT
        if sides:
            return ClientKind.PERSON if sides == {PERSON} else ClientKind.UNKNOWN
    return ClientKind.UNKNOWN


def _holders(link: str) -> list[int]:
    """The processes that are seen to have ``link`` open."""
    holders = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        folder = f"/proc/{name}/fd"
        try:
            if any(_target(f"{folder}/{fd}") == link for fd in os.listdir(folder)):
                holders.append(int(name))
        except OSError:
            continue  # it has ended, or lets nobody look
    return holders


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""  # closed meanwhile
