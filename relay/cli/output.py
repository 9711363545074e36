"""How the verbs print: data to stdout, chatter to stderr, times as ISO 8601 in UTC."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

from relay.core.errors import RelayError

Json = dict[str, Any]

#: The fields of one message in ``inbox``, ``sent`` and ``history``. Scripts rely on them.
MESSAGE_FIELDS = (
    "id",
    "from",
    "to",
    "body",
    "state",
    "reason",
    "mode",
    "thread",
    "created_at",
    "updated_at",
)
_BODY_SHOWN = 60
#: A table's last column keeps so many characters, however narrow the terminal is.
_LAST_MIN = 12


def iso(ms: int | None) -> str | None:
    """A time in milliseconds since the epoch as ISO 8601 in UTC."""
    if ms is None:
        return None
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def clock(ms: int, now_ms: int) -> str:
    """A time for a person, in local time: with its day unless it is of the last 24 hours."""
    moment = datetime.fromtimestamp(ms / 1000)
    recent = 0 <= now_ms - ms < 86_400_000
    return moment.strftime("%H:%M:%S" if recent else "%Y-%m-%d %H:%M")


def prepare() -> None:
    """Let no character that the terminal's encoding lacks end a verb with an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class OutputFailed(RelayError):
    """stdout cannot be written: the disk is full, or the caller has closed it."""

    code = "output"


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Raises OutputFailed for a stdout that cannot be written; a reader that has gone is none."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(
            f"the output cannot be written: {error.strerror or error}",
            hint="send it somewhere else, or make room there",
        ) from error


def data(text: str) -> None:
    """One line of data on stdout."""
    with writing():
        sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """One line of chatter on stderr, after the data that came before it."""
    with contextlib.suppress(OSError):  # nobody reads it: the end of the verb says so
        sys.stdout.flush()
    sys.stderr.write(text + "\n")


def as_json(value: object) -> None:
    """``value`` as one JSON document on stdout."""
    data(json.dumps(value, ensure_ascii=_ascii_only(), indent=2))


def as_json_line(value: object) -> None:
    """``value`` as one line of JSON on stdout, at once."""
    data(json.dumps(value, ensure_ascii=_ascii_only()))
    with writing():
        sys.stdout.flush()


def _ascii_only() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"


def error(failure: RelayError, *, in_json: bool) -> None:
    """The error, for a person on stderr, or for a program on stdout."""
    if in_json:
        fields: Json = {"code": failure.code, "message": failure.message, "hint": failure.hint}
        fields.update(failure.details)
        as_json({"error": fields})
        return
    note(f"relay: {visible(failure.message)}")
    if failure.hint:
        note(f"  {visible(failure.hint)}")


def message(row: Json) -> Json:
    """A row of the broker in the shape that scripts rely on."""
    times = {"created_at": iso(row["created_ms"]), "updated_at": iso(row["updated_ms"])}
    return {name: times[name] if name in times else row[name] for name in MESSAGE_FIELDS}


def state_text(row: Json) -> str:
    """``state`` or ``state (reason)``."""
    return f"{row['state']} ({row['reason']})" if row.get("reason") else str(row["state"])


def visible(text: str) -> str:
    """``text`` with control characters shown: a message must not steer the terminal."""
    if text.isprintable():
        return text
    return "".join(_shown(char) for char in text)


def visible_lines(text: str) -> str:
    """The same, keeping line ends and tabs."""
    return "\n".join(
        "\t".join(visible(part) for part in line.split("\t")) for line in text.split("\n")
    )


def _shown(char: str) -> str:
    if char.isprintable():
        return char
    if char < " ":
        return "^" + chr(ord(char) + 64)
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def summary(body: str | None) -> str:
    """The body on one line, shortened."""
    text = visible(" ".join((body or "").split()))
    return text if len(text) <= _BODY_SHOWN else text[: _BODY_SHOWN - 1] + "…"


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    width: int | None = None,
    remarks: Sequence[str | None] = (),
) -> None:
    """A plain table; the last column is not padded, and cut where ``width`` columns end.

    ``remarks[i]`` stands on a line of its own below ``rows[i]``, and is not cut.
    """
    lines = [list(head)] + [["-" if cell is None else str(cell) for cell in row] for row in rows]
    widths = [max(_width(line[i]) for line in lines) for i in range(len(head))]
    room = None if width is None else max(_LAST_MIN, width - sum(widths[:-1]) - 2 * len(head) + 2)
    for line, remark in zip_longest(lines, ["", *remarks]):
        padded = [cell + " " * (widths[i] - _width(cell)) for i, cell in enumerate(line[:-1])]
        last = line[-1] if room is None else _cut(line[-1], room)
        data("  ".join([*padded, last]).rstrip())
        if remark:
            data(" " * (widths[0] + 2) + remark)


def columns() -> int | None:
    """How wide the terminal is that reads stdout; None when it is a file or a pipe."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def _cut(text: str, room: int) -> str:
    if _width(text) <= room:
        return text
    kept = ""
    for char in text:
        if _width(kept + char) >= room:
            break
        kept += char
    return kept + "…"


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
