"""Checkpoints: a dataclass as plain JSON and back, by its fields and their types.

A state's class gives each field a default; a container with a limit (deque, BoundedDict, RecentSet)
comes from its ``default_factory`` and keeps that limit. What an older checkpoint lacks stays as by
default, what it has beside is passed over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from relay.core.bounded import RecentSet

T = TypeVar("T")


def to_json(state: Any) -> Any:
    """Return ``state`` as dicts, lists and scalars of its own; a tuple or a RecentSet is a list."""
    if isinstance(state, Enum):
        return state.value
    if is_dataclass(state):
        return {field.name: to_json(getattr(state, field.name)) for field in fields(state)}
    if isinstance(state, Mapping):
        return {k: v if type(v) is str else to_json(v) for k, v in state.items()}
    if isinstance(state, list | tuple | deque | RecentSet):
        return [one if type(one) is str else to_json(one) for one in state]
    return state


def from_json(kind: type[T], data: Any) -> T:
    """Make a ``kind`` (a dataclass) of what :func:`to_json` gave for one.

    Raises TypeError, ValueError or AttributeError where ``data`` is something else.
    """
    types = _types(kind)  # type: ignore[arg-type]
    known = [field for field in fields(kind) if field.name in data]  # type: ignore[arg-type]
    return kind(**{f.name: _value(types[f.name], data[f.name], _empty(f)) for f in known})


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _empty(field: Field[Any]) -> Any:
    return None if field.default_factory is MISSING else field.default_factory()


def _value(kind: Any, data: Any, empty: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        chosen = next(one for one in inner if one is not NoneType)
        return None if data is None else _value(chosen, data, empty)
    if is_dataclass(kind):
        return from_json(kind, data)  # type: ignore[arg-type]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        made: Any = {} if empty is None else empty
        for key, one in dict(data).items():
            made[inner[0](key)] = _value(inner[1], one, None)
        return made
    if origin in (list, tuple, deque, RecentSet):
        items = [_value(inner[0], one, None) for one in data]
        if origin is RecentSet:
            empty.update(items)
        elif origin is deque:
            empty.extend(items)
        return empty if origin in (deque, RecentSet) else origin(items)
    return data
