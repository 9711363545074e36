"""Lines of JSON that agents write, read without trust: objects, times, texts. Pure."""

from __future__ import annotations

import contextlib
import json
from datetime import datetime
from typing import Any


def object_in(line: str) -> dict[str, Any] | None:
    """Read the JSON object that is ``line``; None where it is damaged or something else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def seconds_of(value: object) -> float:
    """Read an ISO 8601 time as seconds since the epoch; 0.0 for anything else."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(value).timestamp()
    return 0.0


def text_in(value: object, kind: str = "") -> str:
    """Read a text, or the texts of a list of blocks (of the type ``kind``), one below the other."""
    if isinstance(value, str):
        return value
    blocks = value if isinstance(value, list) else []
    texts = [
        block.get("text")
        for block in blocks
        if isinstance(block, dict) and kind in ("", block.get("type"))
    ]
    return "\n".join(text for text in texts if isinstance(text, str))
