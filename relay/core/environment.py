"""The environment that relay was started with, as the agent is to have it."""

from __future__ import annotations

import os

# Python coerces the C locale by setting LC_CTYPE to one of these in its own environment (PEP 538).
_COERCED = (b"C.UTF-8", b"C.utf8", b"UTF-8")


def original() -> dict[bytes, bytes]:
    """A copy of the environment without what the interpreter itself has added."""
    env = dict(os.environb)
    if env.get(b"LC_CTYPE") in _COERCED and not env.get(b"LC_ALL"):
        try:
            with open("/proc/self/environ", "rb") as block:
                given = block.read().split(b"\0")
        except OSError:
            return env  # no way to tell on this system: a UTF-8 locale does no harm
        if not any(entry.startswith(b"LC_CTYPE=") for entry in given):
            del env[b"LC_CTYPE"]
    return env
