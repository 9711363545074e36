"""Where one opencode's server is, and how it lets us in. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Server:
    """An address on this machine; no password, no authentication."""

    host: str
    port: int
    username: str = "opencode"
    password: str = ""


def server_from(data: dict[str, Any]) -> Server | None:
    """What the launch plan noted of the server; None where there is none."""
    port = data.get("port")
    if not isinstance(port, int) or not port:
        return None
    return Server(
        str(data.get("host") or "127.0.0.1"),
        port,
        str(data.get("username") or "opencode"),
        str(data.get("password") or ""),
    )
