"""The asciicast file format: recordings of terminals, one JSON value a line. Pure.

Versions 2 and 3 are read, 2 is written. Source: docs.asciinema.org/manual/asciicast. The codes of
relay's own, which players ignore:

    k   the person pressed keys, but not which: ``typed``, ``entered`` or ``cleared``
    w   what relay typed into the program
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

OUTPUT, INPUT, RESIZE, MARKER, KEYS, WORDS = "o", "i", "r", "m", "k", "w"
#: The largest terminal that a recording may claim to have, in columns or rows.
SIZE_MAX = 2000


class CastError(ValueError):
    """Line ``line`` (from 1) is none of a recording that can be played."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Header:
    """What the first line says. ``relay`` is what relay adds to it, else empty."""

    version: int
    cols: int
    rows: int
    title: str
    command: str
    timestamp: float | None
    relay: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CastEvent:
    """``at`` is in seconds since the start of the recording, whatever the version."""

    at: float
    code: str
    data: str

    def size(self) -> tuple[int, int] | None:
        """(columns, rows) of a RESIZE; None when it is none that a terminal can have."""
        cols, x, rows = self.data.partition("x")
        if not x or not (cols.isdecimal() and rows.isdecimal()):
            return None
        return _checked_size(int(cols), int(rows))


def header_line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False)


def event_line(event: CastEvent) -> str:
    return f'[{event.at:.6f}, "{event.code}", {_quoted(event.data)}]'


_quoted = json.JSONEncoder(ensure_ascii=False).encode


def read(lines: Iterable[str]) -> tuple[Header, Iterator[CastEvent]]:
    """The header, and the events as they are read. Both raise CastError.

    A last line that was cut off in the middle, as by a crash of what recorded it, is left out.
    """
    numbered = enumerate(lines, 1)
    header = _header(next(numbered, (1, ""))[1])
    return header, _events(numbered, relative=header.version == 3)


def _header(line: str) -> Header:
    if not line.strip():
        raise CastError(1, "the file is empty")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise CastError(
            1, "this is not an asciicast: the first line is not a JSON object"
        ) from None
    if isinstance(fields, dict) and fields.get("version") == 1:
        raise CastError(1, "this is asciicast version 1; asciinema convert makes version 2 of it")
    if not isinstance(fields, dict) or fields.get("version") not in (2, 3):
        raise CastError(1, "this is not an asciicast of version 2 or 3")
    if fields["version"] == 3:
        term = fields.get("term")
        cols, rows = (term.get("cols"), term.get("rows")) if isinstance(term, dict) else (None,) * 2
    else:
        cols, rows = fields.get("width"), fields.get("height")
    size = _checked_size(cols, rows)
    if size is None:
        raise CastError(1, f"the terminal cannot have {cols!r} columns and {rows!r} rows")
    stamp, relay = fields.get("timestamp"), fields.get("relay")
    return Header(
        version=fields["version"],
        cols=size[0],
        rows=size[1],
        title=str(fields.get("title") or ""),
        command=str(fields.get("command") or ""),
        timestamp=stamp if isinstance(stamp, int | float) else None,
        relay=relay if isinstance(relay, dict) else {},
    )


def _checked_size(cols: object, rows: object) -> tuple[int, int] | None:
    whole = isinstance(cols, int) and isinstance(rows, int)
    if not whole or isinstance(cols, bool) or isinstance(rows, bool):
        return None
    assert isinstance(cols, int) and isinstance(rows, int)
    return (cols, rows) if 0 < cols <= SIZE_MAX and 0 < rows <= SIZE_MAX else None


def _events(numbered: Iterator[tuple[int, str]], relative: bool) -> Iterator[CastEvent]:
    now = 0.0
    for number, line in numbered:
        if not line.strip() or line.startswith("#"):
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            if not line.endswith("\n"):
                return  # cut off, so it is the last
            raise CastError(number, "this is not JSON") from None
        event = _event(number, fields)
        # Times that go back (a file put together from two) would make time stand still.
        now = now + event.at if relative else max(now, event.at)
        yield CastEvent(now, event.code, event.data)


def _event(number: int, fields: object) -> CastEvent:
    if not isinstance(fields, list) or len(fields) != 3:
        raise CastError(number, "an event is a list of a time, a code and a text")
    at, code, data = fields
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < 1e10:
        raise CastError(number, f"{at!r} is not a time in seconds")
    if not isinstance(code, str) or not isinstance(data, str):
        raise CastError(number, "the code and the text of an event are strings")
    return CastEvent(float(at), code, data)
