"""A server of NATS that a team has already: how a machine connects, and what it needs there."""

from __future__ import annotations

import base64
import os
import re
import ssl
from typing import Any
from urllib.parse import urlsplit

from relay.core.errors import UsageError
from relay.features.link.link_files import STREAM, rights_on_server

_PORT = 4222
#: The parts of a file of credentials: the user's JWT and its seed.
_PART = re.compile(rb"-----BEGIN [A-Z ]+-----\s+(\S+)\s+-+END ")


def read_urls(text: str) -> list[str]:
    """The addresses of a server, or of several of one cluster. Raises UsageError."""
    return [_read_url(one) for one in text.split(",")]


def _read_url(text: str) -> str:
    try:
        found = urlsplit(text.strip())
        port = found.port or _PORT
    except ValueError:
        found, port = urlsplit(""), 0
    if found.username or found.password:
        raise UsageError("an address has no user or password", hint="--creds FILE has them")
    rest = found.path.strip("/") + found.query + found.fragment
    if found.scheme not in ("nats", "tls") or not found.hostname or rest:
        raise UsageError(
            f"{text!r} is not an address of NATS", hint="tls://HOST:4222, or nats:// without TLS"
        )
    host = f"[{found.hostname}]" if ":" in found.hostname else found.hostname
    return f"{found.scheme}://{host}:{port}"


def needs(name: str) -> dict[str, Any]:
    """What a server must allow the user of the machine ``name``, as its configuration has it."""
    rights = rights_on_server(name)
    rights["publish"]["allow"] += [
        f"$JS.API.STREAM.INFO.{STREAM}",
        f"$JS.API.STREAM.CREATE.{STREAM}",
        f"$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.{name}",
    ]
    return rights


class Login:
    """Options with which one connection to such a server is made."""

    def __init__(self, url: str, creds: str) -> None:
        """``creds``: the file that has them; "": the server asks for none. Raises UsageError."""
        # Only what this connection does counts in its statistics.
        self._tls = ssl.create_default_context() if url.startswith("tls:") else None
        self._jwt, self._seed = _read_creds(creds) if creds else (b"", b"")

    def options(self) -> dict[str, Any]:
        """Options of nats.connect."""
        options: dict[str, Any] = {"tls": self._tls}
        if self._jwt:
            options |= {"user_jwt_cb": lambda: self._jwt, "signature_cb": self._sign}
        return options

    def _sign(self, nonce: str) -> bytes:
        import nkeys  # type: ignore[import-untyped]

        self.check_tls()
        return base64.b64encode(nkeys.from_seed(bytearray(self._seed)).sign(nonce.encode()))

    def check_tls(self) -> None:
        """Raise UsageError where TLS was asked for and there is none: whoever stands in for a
        server can say that it has none, and NATS' client would believe that."""
        if self._tls is not None and not self._tls.session_stats()["connect_good"]:
            raise UsageError(
                "the server speaks no TLS", hint="nats:// connects without, if you want that"
            )


def _read_creds(path: str) -> tuple[bytes, bytes]:
    try:
        with open(os.path.expanduser(path), "rb") as file:
            parts = _PART.findall(file.read(1024 * 1024))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    if len(parts) != 2:
        raise UsageError(
            f"{path} is not a file of credentials", hint="nsc generate creds writes one"
        )
    return parts[0], parts[1]
