"""Which relay this process runs, told apart from every other that was ever installed here.

A number that somebody has to raise says nothing between two commits. What the newest file of the
package says is raised by each update, also by one to an older commit: newer is what the person has
installed last.
"""

from __future__ import annotations

import os
import sys
import time

from relay import __version__

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_build = ""


def build() -> str:
    """``VERSION+TIME``: the time, in UTC, of the newest file when this was asked first. That must
    be early in a process that lives on: its files may be replaced beneath it."""
    global _build
    if not _build:
        newest, folders = 0.0, [_PACKAGE]
        while folders:  # os.walk takes twice as long
            try:
                found = list(os.scandir(folders.pop()))
            except OSError:  # just replaced
                continue
            for one in found:
                try:
                    if one.name.endswith(".py"):
                        newest = max(newest, one.stat().st_mtime)
                    elif one.name != "__pycache__" and one.is_dir(follow_symlinks=False):
                        folders.append(one.path)
                except OSError:  # an editor's link to nowhere, or just replaced
                    pass
        _build = f"{__version__}+{time.strftime('%Y%m%d%H%M%S', time.gmtime(newest))}"
    return _build


def is_older(one: object, other: str) -> bool:
    """Whether a process of the build ``one`` is of a relay that was installed before ``other``;
    one that says none is."""
    return not isinstance(one, str) or one.partition("+")[2] < other.partition("+")[2]


def program() -> list[str]:
    """What starts this relay: the interpreter, and the folder that holds the package."""
    return [sys.executable, os.path.dirname(_PACKAGE)]


def newer_program(told: object, version: object) -> list[str] | None:
    """The ``program`` of another relay, where it is newer than this one and still there."""
    if not isinstance(told, list) or not isinstance(version, str) or len(told) != 2:
        return None
    if not all(isinstance(one, str) and os.path.isabs(one) for one in told):
        return None
    is_there = os.path.isfile(os.path.join(told[1], "relay", "broker", "main.py"))
    return told if is_older(build(), version) and os.access(told[0], os.X_OK) and is_there else None
