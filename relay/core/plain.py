"""Plain values: what JSON can say and nothing else, made of whatever a user's code gave. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

#: How deep a value may be nested, and of how many parts it may consist.
DEPTH_MAX = 100
PARTS_MAX = 500_000
#: Longer whole numbers cannot even be printed by default.
_BITS_MAX = 4096
_SURROGATE = re.compile("[\ud800-\udfff]")


class NotPlain(ValueError):
    """The value has no JSON form. The message says what in it has none."""


def plain(value: object) -> Any:
    """A copy of ``value`` in dicts, lists, strings, numbers, booleans and None. Raises NotPlain.

    Lone surrogates become U+FFFD, so that every text in it can be encoded. Tuples are lists. What
    contains itself, or is nested deeper than DEPTH_MAX, is refused.
    """
    return _Copier().copy(value, 0)


def encodable(text: str) -> str:
    """``text`` with U+FFFD for every lone surrogate."""
    return _SURROGATE.sub("\ufffd", text)


def shown(value: object) -> str:
    """A short description for people; never raises, whatever the value's ``__repr__`` does."""
    kind = type(value).__name__
    try:
        text = repr(value)
    except Exception:
        return kind
    return f"{text if len(text) <= 80 else text[:79] + '…'} ({kind})"


class _Copier:
    def __init__(self) -> None:
        self._parts = 0

    def copy(self, value: object, depth: int) -> Any:
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise NotPlain(f"it has more than {PARTS_MAX} parts")
        if depth > DEPTH_MAX:
            raise NotPlain(f"it is nested more than {DEPTH_MAX} deep")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return encodable(str.__str__(value))
        if isinstance(value, int | float):
            return _number(value)
        if isinstance(value, Mapping):
            return {_key(key): self.copy(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.copy(item, depth + 1) for item in value]
        raise NotPlain(f"{type(value).__name__} has no JSON form")


def _number(value: int | float) -> int | float:
    if isinstance(value, int):
        number = int.__index__(value)
        if number.bit_length() > _BITS_MAX:
            raise NotPlain("a number in it is too long")
        return number
    if not math.isfinite(value):
        raise NotPlain("a number in it is not finite")
    return float.__float__(value)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise NotPlain(f"a key in it is {type(key).__name__}, not a string")
    return encodable(str.__str__(key))
