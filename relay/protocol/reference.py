"""Makes docs/ops.md, the page of all ops, from their descriptions: see relay.protocol.op."""

from __future__ import annotations

import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module, util
from typing import Any, NamedTuple

from relay.protocol import op as described
from relay.protocol.op import Op, Request

#: The modules that describe the kernel's ops; a feature's is its ``ops``.
KERNEL = ("agent_ops", "message_ops", "item_ops", "broker_ops")
_FIELD = re.compile(r" {4}(\w+): (.*?)(?: +# (.*))?")
_NAMES = re.compile(r"[A-Z]\w+")
_RECORD: Any = described.Record
_HEAD = """\
# Ops

What a client can ask of the broker. A request is one JSON object a line, `{"n": 1, "op": "inbox",
…}`; the answer is `{"n": 1, "ok": true, …}`, or `{"n": 1, "ok": false, "error": {"code", "message",
"hint", "status"}}`. A field with `?` may be left out. Times (`…_ms`) are milliseconds since the
epoch, durations are seconds. A field that the op does not have is refused.

Each request may have `auth?`: `{"run", "token"}` of a registered agent, whose request it then is.
"""


class Field(NamedTuple):
    """One field of a record: its name, its type as it is written, and what it means."""

    name: str
    type: str
    optional: bool
    meaning: str


def all_ops() -> list[Op[..., Any, Any]]:
    modules = [f"relay.protocol.{name}" for name in KERNEL]
    folder = import_module("relay.features").__path__
    for feature in pkgutil.iter_modules(folder, "relay.features."):
        if util.find_spec(f"{feature.name}.ops"):
            modules.append(f"{feature.name}.ops")
    return [
        value
        for module in modules
        for value in vars(import_module(module)).values()
        if isinstance(value, Op)
    ]


def fields_of(record: Any) -> list[Field]:
    """The fields of a record, without those that every request has."""
    fields: dict[str, Field] = {}
    for part in reversed(record.__mro__):
        if part in Request.__mro__ or not issubclass(part, _RECORD):
            continue
        meanings = _meanings(part)
        for name, annotation in inspect.get_annotations(part).items():
            optional = annotation.startswith("NotRequired[")
            type_ = annotation[len("NotRequired[") : -1] if optional else annotation
            fields[name] = Field(name, type_, optional, meanings.get(name, ""))
    return list(fields.values())


def pushes() -> list[Any]:
    """The records of what the broker sends unasked."""
    modules = [import_module(f"relay.protocol.{name}") for name in KERNEL]
    classes = [value for module in modules for value in vars(module).values()]
    return [one for one in classes if isinstance(one, type) and one.__name__.endswith("Push")]


def page(ops: Sequence[Op[..., Any, Any]]) -> str:
    parts = [_HEAD]
    for op in ops:
        asked, answer = _list(op.request), _list(op.answer)
        parts += [f"## `{op}`", _words(op.request), *asked, f"**Answer.** {_words(op.answer)}"]
        parts += answer
    parts += ["## Pushes", "What the broker sends unasked."]
    for record in pushes():
        parts += [f"### `{record.__name__}`", _words(record), *_list(record)]
    parts += ["## Records", "What the fields above hold."]
    for record in _held([*(part for op in ops for part in (op.request, op.answer)), *pushes()]):
        parts += [f"### `{record.__name__}`", _words(record), *_list(record)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _meanings(part: Any) -> dict[str, str]:
    """The comments behind the fields of a record."""
    if part.__module__ == described.__name__:
        return {}
    matches = map(_FIELD.fullmatch, inspect.getsource(part).splitlines())
    return {match[1]: match[3] or "" for match in matches if match}


def _words(record: Any) -> str:
    text = record.__doc__ if record is not Request else ""
    return inspect.cleandoc(text or "").replace("``", "`")


def _list(record: Any) -> list[str]:
    lines = [
        f"- `{field.name}{'?' if field.optional else ''}`: `{field.type}`"
        + (f" – {field.meaning}" if field.meaning else "")
        for field in fields_of(record)
    ]
    return ["\n".join(lines)] if lines else []


def _held(records: Sequence[Any]) -> Iterator[Any]:
    """The records that stand in fields of these, each once, in the order of their first use."""
    known: set[Any] = set()
    left = list(reversed(records))
    while left:
        record = left.pop()
        names = vars(sys.modules[record.__module__])
        inner = [
            names[name]
            for field in fields_of(record)
            for name in _NAMES.findall(field.type)
            if isinstance(names.get(name), type) and issubclass(names[name], _RECORD)
        ]
        for one in inner:
            if one not in known:
                known.add(one)
                left.append(one)
                yield one


if __name__ == "__main__":
    sys.stdout.write(page(all_ops()))
