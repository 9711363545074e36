"""The reports of the verbs that list: a table for people, whole in pipes, and rows for programs."""

from __future__ import annotations

import os
import sys
import time

from relay.cli import output
from relay.core.visible import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from relay.cli.output import Json

#: The fields of one message in ``inbox``, ``sent`` and ``history``. Scripts rely on them.
MESSAGE_FIELDS = (
    *("id", "from", "to", "body", "state", "reason", "mode", "thread"),
    *("created_at", "updated_at"),
)
_MESSAGES = ("TIME", "ID", "FROM", "TO", "STATE", "TEXT")
#: A table's last column keeps this many characters, however narrow the terminal is.
_LAST_MIN = 12


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
    cells = [["-" if cell is None else visible(str(cell)) for cell in row] for row in rows]
    lines = [list(head), *cells]
    widths = [max(_width(line[i]) for line in lines) for i in range(len(head))]
    room = None if width is None else max(_LAST_MIN, width - sum(widths[:-1]) - 2 * len(head) + 2)
    for number, line in enumerate(lines):
        padded = [cell + " " * (widths[i] - _width(cell)) for i, cell in enumerate(line[:-1])]
        last = line[-1] if room is None else _cut(line[-1], room)
        output.data("  ".join([*padded, last]).rstrip())
        if number and remarks and remarks[number - 1]:
            output.data(f"{'':<{widths[0] + 2}}{remarks[number - 1]}")


def columns() -> int | None:
    """How wide the terminal is that reads stdout; None when it is a file or a pipe."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def when(ms: int) -> str | None:
    """A time for a table: short on a terminal, whole elsewhere."""
    return output.iso(ms) if columns() is None else output.clock(ms, time.time_ns() // 1_000_000)


def message(row: Json) -> Json:
    """A row of the broker in the shape that scripts rely on."""
    times = {
        "created_at": output.iso(row["created_ms"]),
        "updated_at": output.iso(row["updated_ms"]),
    }
    return {name: times[name] if name in times else row[name] for name in MESSAGE_FIELDS}


def messages(answer: Json, in_json: bool, nothing: str) -> None:
    """The broker's ``rows``; ``nothing`` is said when there are none."""
    rows = answer["rows"]
    width = columns()
    if in_json:
        output.as_json([message(row) for row in rows])
    elif not rows:
        output.note(nothing)
    elif width is None:
        table(_MESSAGES, [_whole(row) for row in rows])
    else:
        remarks = [f"({row['reason']})" if row["reason"] else None for row in rows]
        table(_MESSAGES, [_short(row) for row in rows], width=width, remarks=remarks)
    if answer["more"]:
        output.note("older ones are left out: --limit N shows more, --since narrows it down")


def _whole(row: Json) -> tuple[object, ...]:
    state, text = output.state_text(row), output.summary(row["body"])
    return when(row["created_ms"]), row["id"], row["from"], row["to"], state, text


def _short(row: Json) -> tuple[object, ...]:
    """The end of an id is what the receiver is shown, and enough for ``relay show``."""
    text = " ".join((row["body"] or "").split())
    people = row["from"], row["to"]
    return when(row["created_ms"]), row["id"][-8:], *people, row["state"], text


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
    import unicodedata

    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
