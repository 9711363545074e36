"""How ``sent`` and ``history`` list messages: whole for pipes, within its width on a terminal."""

from __future__ import annotations

import time
from typing import Any

from relay.cli import output

Json = dict[str, Any]

_HEAD = ("TIME", "ID", "FROM", "TO", "STATE", "TEXT")


def print_rows(answer: Json, in_json: bool, nothing: str) -> None:
    """The broker's ``rows``; ``nothing`` is said when there are none."""
    rows = answer["rows"]
    width = output.columns()
    if in_json:
        output.as_json([output.message(row) for row in rows])
    elif not rows:
        output.note(nothing)
    elif width is None:
        output.table(_HEAD, [_whole(row) for row in rows])
    else:
        now_ms = time.time_ns() // 1_000_000
        remarks = [f"({row['reason']})" if row["reason"] else None for row in rows]
        cells = [_short(row, now_ms) for row in rows]
        output.table(_HEAD, cells, width=width, remarks=remarks)
    if answer["more"]:
        output.note("older ones are left out: --limit N shows more, --since narrows it down")


def _whole(row: Json) -> tuple[object, ...]:
    when = output.iso(row["created_ms"])
    state, text = output.state_text(row), output.summary(row["body"])
    return when, row["id"], row["from"], row["to"], state, text


def _short(row: Json, now_ms: int) -> tuple[object, ...]:
    """The end of an id is what the receiver is shown, and enough for ``relay show``."""
    when = output.clock(row["created_ms"], now_ms)
    text = output.visible(" ".join((row["body"] or "").split()))
    return when, row["id"][-8:], row["from"], row["to"], row["state"], text
