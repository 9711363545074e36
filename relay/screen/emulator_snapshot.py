"""What a terminal shows, as part of a checkpoint: as much of it as there is room for."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from relay.screen.emulator import Emulator, EmulatorError

#: The names around the picture, in bytes.
_AROUND = 64


def added(state: Mapping[str, Any], emulator: Emulator, limit: int) -> bytes:
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


def found(state: Mapping[str, Any]) -> tuple[bytes | None, bytes]:
    """Of what ``added`` wrote: a snapshot for a new emulator, and what it is fed then.

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
