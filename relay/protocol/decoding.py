"""Decodes what travels, strictly, by its description: see relay.protocol.op.

For processes that stay: ``typing`` and ``msgspec`` are imported here.
"""

from __future__ import annotations

import inspect
import re
import sys
import typing
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec

from relay.core.errors import UsageError, did_you_mean
from relay.protocol import op as described
from relay.protocol.op import Op

#: What does not travel, and what is around the fields of every request.
_CLIENTS = frozenset({"deadline"})
_ENVELOPE = frozenset({"n", "op"})
#: To a type checker it is a special form, not a class.
_RECORD: Any = described.Record
#: How msgspec says where: `$.question.id`.
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
_EXPECTED = re.compile(r"Expected `(.*)`, got `(.*)`$")
_MISSING = re.compile(r"Object missing required field `(.*)`$")


def decode(op: Op[..., Any, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a request, as its op describes them. ``n`` and ``op`` may be among them.

    Raises UsageError with the path of the first field that is wrong, and what was expected.
    """
    return exactly(op, fields, op.request, _ENVELOPE)


def exactly(
    where: str, fields: Mapping[str, Any], record: Any, beside: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """``fields`` as ``record`` describes them; an unknown one that is not ``beside`` is refused.

    Raises UsageError: see check.
    """
    taken = _taken(record, beside)
    if not taken.issuperset(fields):
        name = min(fields.keys() - taken)[:100]
        hint = did_you_mean(name, taken - beside)
        raise UsageError(f"{where}: there is no field {name!r}", hint=hint)
    decoded: dict[str, Any] = check(where, fields, record)
    return decoded


def resolve(op: Op[..., Any, Any]) -> None:
    """Raises whatever a description that cannot be decoded by raises: before a client asks."""
    record: Any = op.request
    with suppress(msgspec.ValidationError):
        msgspec.convert({}, typed_dict(record))


def check(where: str, value: object, record: Any) -> Any:
    """``value`` as ``record`` describes it; unknown fields are left out.

    Raises UsageError that begins with ``where`` and has the path of the first field that is wrong.
    """
    try:
        return msgspec.convert(value, typed_dict(record))
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_in_words(str(error))}") from None


def schema(record: Any) -> dict[str, Any]:
    """The JSON schema of a record; records in its fields are under ``$defs``."""
    _, parts = msgspec.json.schema_components((typed_dict(record),))
    made: dict[str, Any] = parts.pop(record.__name__)
    return {**made, "$defs": parts} if parts else made


def _in_words(text: str) -> str:
    """msgspec's message as relay says it: ``limit: expected int, not str``."""
    place = ""
    if at := _PLACE.search(text):
        place, text = at[1], text[: at.start()]
    if missing := _MISSING.match(text):
        place, text = f"{place}.{missing[1]}".lstrip("."), "is missing"
        return f"{place} {text}"
    if expected := _EXPECTED.match(text):
        text = f"expected {expected[1]}, not {expected[2]}"
    text = text[:1].lower() + text[1:].replace("`", "")
    return f"{place}: {text}" if place else text


@cache
def _taken(record: Any, beside: frozenset[str]) -> frozenset[str]:
    return frozenset(typed_dict(record).__annotations__) | beside


@cache
def typed_dict(record: Any) -> Any:
    """The TypedDict that a record is to a type checker."""
    hints: dict[str, Any] = {}
    for part in reversed(record.__mro__):
        for name, annotation in inspect.get_annotations(part).items():
            hint = eval(annotation, {}, _Names(part.__module__))
            hints[name] = hint if getattr(part, "__total__", True) else typing.NotRequired[hint]
    for name in _CLIENTS:
        hints.pop(name, None)
    return typing.TypedDict(record.__name__, hints)  # type: ignore[operator]


class _Names(dict[str, Any]):
    """What a name in an annotation stands for: in its module, with records as TypedDicts."""

    def __init__(self, module: str) -> None:
        self._module = vars(sys.modules[module])

    def __missing__(self, name: str) -> Any:
        if name in ("Any", "NotRequired"):
            return getattr(typing, name)
        value = self._module[name]
        is_record = isinstance(value, type) and issubclass(value, _RECORD)
        return typed_dict(value) if is_record else value
