"""The environment that relay was started with, as the agent is to have it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

# Python coerces the C locale by setting LC_CTYPE to one of these in its own environment (PEP 538).
_COERCED = (b"C.UTF-8", b"C.utf8", b"UTF-8")
#: What tells a program for whom it speaks: a worker speaks for the person.
_OF_A_RUN = (b"RELAY_RUN", b"RELAY_TOKEN", b"RELAY_SOCKET", b"RELAY_PORT", b"RELAY_AGENT")


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


def for_own_process(folder: str) -> dict[bytes, bytes]:
    """``original()`` for a process of relay's, whose Python imports nothing from ``folder``, where
    agents write, or from where it happens to run: PYTHONPATH keeps its other entries."""
    env = original()
    found = env.pop(b"PYTHONPATH", None)
    if found is not None:
        kept = [one for one in found.split(b":") if os.path.isabs(one) and not _in(one, folder)]
        if kept:
            env[b"PYTHONPATH"] = b":".join(kept)
    return env


def own_environment(folder: str) -> dict[bytes, bytes]:
    """The environment of a worker, which speaks for the person; nothing is imported from
    ``folder``."""
    env = for_own_process(folder)
    return {name: value for name, value in env.items() if name not in _OF_A_RUN}


def forget_imports_from(folder: str) -> None:
    """Take out of this process what PYTHONPATH has of ``folder``, or names by a relative path."""
    names = os.environb.get(b"PYTHONPATH", b"").split(b":")
    gone = {
        os.fsdecode(os.path.abspath(name))
        for name in names
        if not os.path.isabs(name) or _in(name, folder)
    }
    sys.path[:] = [path for path in sys.path if path and path not in gone]


def _in(path: bytes, folder: str) -> bool:
    real, around = os.path.realpath(path), os.path.realpath(os.fsencode(folder))
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if os.path.realpath(os.fsencode(ours)) == real:
        return False  # relay itself is there
    return real == around or real.startswith(around.rstrip(b"/") + b"/")


def takes_utf8(env: Mapping[str, str]) -> bool:
    """Whether programs with this environment take what is typed as UTF-8."""
    locale = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or ""
    return "utf" in locale.lower() or sys.platform == "darwin"
