"""The intent map ``intent_map.md``: which intent changed which file last, for people to read.

A file of its own because it is written for people; the trace is what counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.core.visible import visible
from relay.features.governance.intents import MAP_FILE
from relay.features.governance.mutation import FileMutation, LineRange, MutationClass
from relay.features.governance.orchestration_files import edit_text
from relay.features.governance.trace_records import timestamp

#: Bytes of the file, and rows: those that were changed longest ago make room.
_FILE_MAX = 1024 * 1024
_ROWS_MAX = 1000
_NAME_MAX = 200
#: Ranges of a file that are shown.
_RANGES_SHOWN = 8
_HEAD = f"""\
# Intent map

Which intent changed which file last. relay keeps this file up to date, with
{_ROWS_MAX} rows at most; `relay intent log` tells all.
"""
_TABLE = (
    "| File | Content hash | Lines | Mutation | Git SHA | Last updated |",
    "|---|---|---|---|---|---|",
)


def update_map(
    root: str,
    intent_id: str,
    name: str,
    files: Sequence[FileMutation],
    now_ms: int,
    revision: str,
) -> None:
    """Note what a call changed for an intent: a row for each file, the newest in place of the last.
    Raises StorageError, also where the map is full."""
    rows: dict[str, str] = {}
    for file in files:
        if file.mutation_class is MutationClass.SAFE_READ:
            continue
        if file.moved_from:
            moved = FileMutation(file.moved_from, file.before, "", file.mutation_class)
            rows[_cell(file.moved_from)] = _row(moved, now_ms, revision)
        rows[_cell(file.path)] = _row(file, now_ms, revision)
    if rows:
        shown = visible(name)[:_NAME_MAX].replace("<", "&lt;")
        heading = f"## {visible(intent_id)}: {shown}"
        # What it says can be read in the trace too, so no disk is waited for.
        edit_text(
            root, MAP_FILE, lambda text: upsert(text, heading, rows), _FILE_MAX, durable=False
        )


def upsert(text: str, heading: str, rows: dict[str, str]) -> str:
    """``text`` with these rows, by their first cells, below ``heading``; all else is as it was."""
    lines = (text or _HEAD).splitlines()
    mark = heading.split(": ", 1)[0]
    start = next((i for i, line in enumerate(lines) if _is_heading(line, mark)), len(lines))
    if start == len(lines):
        lines += ["", heading, "", *_TABLE]
        start += 1
    lines[start] = heading
    end = start + 1
    while end < len(lines) and not lines[end].startswith("## "):
        end += 1
    left, last = dict(rows), 0
    for number in range(start, end):
        if lines[number].startswith("|"):
            last = number
            if (cell := lines[number].partition(" | ")[0].removeprefix("| ")) in left:
                lines[number] = left.pop(cell)
    if not last:  # the table is gone
        lines[start + 1 : start + 1] = ["", *_TABLE]
        last = start + 3
    lines[last + 1 : last + 1] = left.values()
    dated = [(line[-23:], i) for i, line in enumerate(lines) if line.startswith("| `")]
    old = {number for _, number in sorted(dated)[: max(0, len(dated) - _ROWS_MAX)]}
    return "\n".join(line for number, line in enumerate(lines) if number not in old) + "\n"


def _is_heading(line: str, mark: str) -> bool:
    return line == mark or line.startswith(f"{mark}: ")


def _row(file: FileMutation, now_ms: int, revision: str) -> str:
    hash_ = file.after.removeprefix("sha256:")[:12] or "(gone)"
    cells = (hash_, _lines(file.ranges), file.mutation_class.value, revision[:10] or "-")
    return f"| {_cell(file.path)} | {' | '.join(cells)} | {timestamp(now_ms)[:19]}Z |"


def _cell(path: str) -> str:
    """A path as Markdown that shows it and is nothing else."""
    text = visible(path).replace("`", "'").replace("|", "¦")
    return f"`{text}`"


def _lines(ranges: tuple[LineRange, ...]) -> str:
    shown = [
        str(one.start_line)
        if one.start_line == one.end_line
        else f"{one.start_line}-{one.end_line}"
        for one in ranges[:_RANGES_SHOWN]
    ]
    return ", ".join([*shown, "…"] if len(ranges) > _RANGES_SHOWN else shown) or "-"
