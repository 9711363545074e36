"""How large a part of a checkpoint becomes as JSON, and what of it fits. Pure.

A character beyond ASCII takes six bytes in JSON and one beyond the basic plane twelve, so that
only what is encoded can be bounded.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable
from typing import TypeVar

_Item = TypeVar("_Item")


def size_of(value: object) -> int:
    """The bytes of ``value`` as JSON, with what separates it from the next."""
    return len(json.dumps(value)) + 2


def beginning(text: str, most: int) -> str:
    """As much of ``text`` as fits into ``most`` bytes."""
    text = text[:most]
    if size_of(text) <= most:
        return text
    sizes = range(1, len(text))
    return text[: bisect_right(sizes, most, key=lambda size: size_of(text[:size]))]


def fitting(items: Iterable[_Item], most: int) -> list[_Item]:
    """Of ``items`` those that fit into ``most`` bytes together, the first ones first.

    One that does not fit is left out, and those behind it may.
    """
    kept = []
    for item in items:
        size = size_of(item)
        if size <= most:
            kept.append(item)
            most -= size
    return kept
