"""Settings of agents that are JSON with comments. Reads files, starts nothing."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from typing import Any

#: Bytes of a settings file that are looked at.
FILE_MAX = 1024 * 1024
_COMMENT = r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/'


def read(path: str) -> str:
    """The text of a settings file; nothing where there is no such file, or it is none."""
    try:
        if not os.path.isfile(path):
            return ""  # a pipe has only one reader
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(FILE_MAX)
    except OSError:
        return ""


def parsed(text: str) -> dict[str, Any] | None:
    """What settings say: {} for none at all, None where they are damaged."""
    import json
    import re

    if not text.strip():
        return {}
    bare = re.sub(_COMMENT, lambda found: found[1] or " ", text, flags=re.DOTALL)
    try:
        found = json.loads(bare)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_object(path: str) -> dict[str, Any] | None:
    """What the file says; {} where there is none, None where it is damaged."""
    return parsed(read(path))
