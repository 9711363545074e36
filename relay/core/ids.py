"""Message ids: ULIDs (26 characters, Crockford base 32; 48 bits of time, 80 of randomness)."""

from __future__ import annotations

import os

#: What the token of a run begins with, so that it is known, and masked, wherever it is printed.
RUN_TOKEN = "relay_run_"
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def new_ulid(now_ms: int, randomness: bytes | None = None) -> str:
    """A new id for the time ``now_ms`` (milliseconds since the epoch)."""
    tail = os.urandom(10) if randomness is None else randomness
    return _encode((now_ms & ((1 << 48) - 1)) << 80 | int.from_bytes(tail, "big"))


def derived_ulid(now_ms: int, *key: str) -> str:
    """The same id for the same time and key: what is heard twice is sent once."""
    import hashlib

    digest = hashlib.sha256("\x00".join(key).encode("utf-8", "surrogatepass")).digest()
    return new_ulid(now_ms, digest[:10])


def nonce(key: bytes, *parts: str) -> str:
    """Six characters for ``parts`` that nobody can tell who does not have ``key``."""
    import hmac

    digest = hmac.digest(key, "\x00".join(parts).encode("utf-8", "surrogatepass"), "sha256")
    return "".join(_ALPHABET[byte & 31] for byte in digest[:6])


def _encode(value: int) -> str:
    out = []
    for _ in range(26):
        out.append(_ALPHABET[value & 31])
        value >>= 5
    return "".join(reversed(out))
