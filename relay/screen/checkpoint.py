"""Parts of a checkpoint: what of a state fits into it, the terminal's picture, and times.

A state is a dictionary of JSON values. A character beyond ASCII takes six bytes in JSON and one
beyond the basic plane twelve, so that only what is encoded can be bounded. Times stand under names
``at`` or that end in ``_at``, and are moved when a session goes on with another clock.
"""

from __future__ import annotations

import base64
import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from relay.screen.emulator import Emulator, EmulatorError

#: The names around the picture, in bytes.
_AROUND = 64

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


def moved_in_time(state: Any, seconds: float) -> Any:
    """Return ``state`` with ``seconds`` added to all times in it."""
    if isinstance(state, list):
        return [moved_in_time(item, seconds) for item in state]
    if not isinstance(state, dict):
        return state
    return {
        key: value + seconds
        if (key == "at" or key.endswith("_at")) and isinstance(value, float)
        else moved_in_time(value, seconds)
        for key, value in state.items()
    }


def with_picture(state: Mapping[str, Any], emulator: Emulator, limit: int) -> bytes:
    """``state`` with the picture as one JSON object, at most ``limit`` bytes.

    Left out are, as far as they do not fit: the scrollback, colours, then all of the picture. Its
    modes, a few hundred bytes, are always there.
    """
    text = json.dumps(state)[:-1]
    room = limit - _AROUND - len(text)
    pictures = _pictures(emulator)
    name, packed = next(pictures)
    while len(packed) > room:
        name, packed = next(pictures)
    return f'{text}, "{name}": "{packed}"}}'.encode()


def picture_of(state: Mapping[str, Any]) -> tuple[bytes | None, bytes]:
    """Of what ``with_picture`` wrote: a snapshot for a new emulator, and what it is fed then.

    Without a snapshot the emulator must have the size that the terminal had. Raises KeyError,
    TypeError or ValueError where there is no picture.
    """
    if "drawn" in state:
        return None, _unpacked(state["drawn"])
    return _unpacked(state["emulator"]), b""


def _pictures(emulator: Emulator) -> Iterator[tuple[str, str]]:
    """What the terminal shows, in ever fewer bytes. The last are the modes: a few hundred."""
    try:
        snapshot = emulator.snapshot()
        yield "emulator", _packed(snapshot, 1)
        smaller = Emulator(1, 1, history=0, snapshot=snapshot)
        smaller.forget_history()
        yield "emulator", _packed(smaller.snapshot())
    except EmulatorError:
        pass  # the library cannot write down every state, such as half of a wide character
    yield "drawn", _packed(emulator.redrawing())
    yield "drawn", _packed(emulator.redrawing(text=False))


def _packed(data: bytes, level: int = -1) -> str:
    return base64.b64encode(zlib.compress(data, level)).decode("ascii")


def _unpacked(text: str) -> bytes:
    try:
        return zlib.decompress(base64.b64decode(text))
    except zlib.error as problem:
        raise ValueError(f"the picture cannot be read: {problem}") from problem
