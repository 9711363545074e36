"""The reports of the verbs that list: a table for people, whole in pipes, and rows for programs."""

from __future__ import annotations

import os
import sys
import time

from relay.cli import output
from relay.core.visible import age, columns_of, cut, tone, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from relay.cli.output import Json
    from relay.protocol.message_ops import HistoryRow, HistoryRows, MessageRow, SentRows

#: The fields of one message in ``inbox``, ``sent`` and ``history``. Scripts rely on them.
MESSAGE_FIELDS = (
    *("id", "from", "to", "body", "state", "reason", "mode", "thread"),
    *("created_at", "updated_at"),
)
#: And those of what a search found: which of the two ledgers has it, and the place in the body.
SEARCH_FIELDS = ("ledger", "snippet")
_MESSAGES = ("TIME", "ID", "FROM", "TO", "STATE", "TEXT")
#: A table's last column keeps this many characters, however narrow the terminal is.
_LAST_MIN = 12


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    width: int | None = None,
    remarks: Sequence[str | None] = (),
    bold: str | None = None,
) -> None:
    """A plain table; the last column is not padded, and cut where ``width`` columns end.

    ``remarks[i]`` stands below ``rows[i]``, broken into lines that fit. Where the columns cannot
    stand side by side, each row is a block of lines, without the head. ``bold`` is what stands out
    in the last column.
    """
    bold = visible(bold) if bold else None
    cells = [["-" if cell is None else visible(str(cell)) for cell in row] for row in rows]
    lines = [list(head), *cells]
    widths = [max(columns_of(line[i]) for line in lines) for i in range(len(head))]
    room = None if width is None else width - sum(widths[:-1]) - 2 * len(head) + 2
    narrow = room is not None and room < min(_LAST_MIN, widths[-1])
    for number, line in enumerate(lines):
        if not narrow:
            padded = [
                cell + " " * (widths[i] - columns_of(cell)) for i, cell in enumerate(line[:-1])
            ]
            last = line[-1] if room is None else cut(line[-1], room)
            while padded and not last.rstrip():
                last = padded.pop()
            pieces = list(_pieces([*padded, last.rstrip()], head))
            if bold and number and len(padded) == len(head) - 1:
                pieces[-1:] = _with_bold(pieces[-1][0], bold)
            output.toned(pieces)
        elif number:
            assert width is not None
            _block(line, width, bold)
        remark = remarks[number - 1] if number and remarks else None
        if remark:
            _remark(visible(remark), 2 if narrow else widths[0] + 2, width)


def _pieces(cells: list[str], head: Sequence[str]) -> Iterable[tuple[str, str]]:
    """The cells of a line with their tones: those of states, and of the head."""
    for at, (cell, name) in enumerate(zip(cells, head, strict=False)):
        text = cell.strip()
        how = tone(text.partition(" ")[0]) if name == "STATE" else ""
        yield "  " * (at > 0) + cell, "bold" if text == name else how


def _place_of(words: str, text: str) -> int:
    return text.lower().find(words.lower())


def _with_bold(text: str, words: str) -> list[tuple[str, str]]:
    """The pieces of ``text`` with the first ``words`` in it in bold."""
    at = _place_of(words, text)
    if at < 0:
        return [(text, "")]
    end = at + len(words)
    return [(text[:at], ""), (text[at:end], "bold"), (text[end:], "")]


def fields(lines: Iterable[tuple[str, object]]) -> None:
    """What one thing is: a name and a value on each line, but for values that are None."""
    shown = [(f"{name}:" if name else "", value) for name, value in lines if value is not None]
    width = max(11, *(len(name) for name, _ in shown)) + 1
    for name, value in shown:
        output.data(f"{name:<{width}}{value}")


def _block(line: list[str], width: int, bold: str | None) -> None:
    """One row where the columns cannot stand side by side: as many cells on a line as fit."""
    shown = cut(line[0], width)
    for cell in line[1:]:
        if columns_of(shown) + 2 + columns_of(cell) > width:
            output.data(shown)
            shown = "  " + cut(cell, max(1, width - 2))
        else:
            shown += "  " + cell
    output.toned(_with_bold(shown, bold) if bold else [(shown, "")])


def _remark(text: str, indent: int, width: int | None) -> None:
    if width is None or indent + columns_of(text) <= width:
        output.data(" " * indent + text)
        return
    import textwrap

    room = max(_LAST_MIN, width - indent)
    for part in textwrap.wrap(text, room):
        output.data(" " * indent + part)


def because(row: Mapping[str, object]) -> str | None:
    """The remark on a row that is in its state for a reason."""
    return f"({row['reason']})" if row["reason"] else None


def prose(text: str, under: int = 0, *, titles: bool = False) -> None:
    """Print lines of words; those that are wider than the terminal go on below, indented: by two
    columns more than they are, or at the column ``under``. ``titles``: it is a help, whose titles
    stand out."""
    put = output.headed if titles else output.data
    width = columns()
    for line in text.splitlines():
        if width is None or columns_of(line) <= width:
            put(line)
            continue
        import textwrap

        below = " " * (min(under, width // 2) or len(line) - len(line.lstrip()) + 2)
        words = textwrap.TextWrapper(width, subsequent_indent=below, break_long_words=False)
        words.break_on_hyphens = False
        for part in words.wrap(line):
            put(part)


def columns() -> int | None:
    """How wide the terminal is that reads stdout; None when it is a file or a pipe."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    except (OSError, ValueError):
        return None


def when(ms: int) -> str | None:
    """A time for a table: short on a terminal, whole elsewhere."""
    return output.iso(ms) if columns() is None else output.clock(ms, time.time_ns() // 1_000_000)


def since(ms: int) -> str | None:
    """A time as its age on a terminal, whole in pipes."""
    return output.iso(ms) if columns() is None else age(time.time_ns() // 1_000_000 - ms)


def message(row: MessageRow | HistoryRow) -> Json:
    """A row of the broker in the shape that scripts rely on."""
    return output.shaped(row, (*MESSAGE_FIELDS, *(one for one in SEARCH_FIELDS if one in row)))


def messages(
    answer: SentRows | HistoryRows, in_json: bool, nothing: str, found: str | None = None
) -> None:
    """The broker's ``rows``; ``nothing`` is said when there are none. On a terminal ``found``, the
    text that was searched for, stands out: in colour, else in brackets."""
    rows: Sequence[MessageRow | HistoryRow] = answer["rows"]
    width = columns()
    if in_json:
        output.as_json([message(row) for row in rows])
    elif not rows:
        output.note(nothing)
    elif width is None:
        table(_MESSAGES, [_whole(row) for row in rows])
    else:
        bold = found if output.coloured() else None
        shown = [_short(row, bold) for row in rows]
        table(_MESSAGES, shown, width=width, remarks=_once_each(rows), bold=bold)
    if answer["more"]:
        output.note("older ones are left out: --limit N shows more, --since narrows it down")


def _once_each(rows: Sequence[MessageRow | HistoryRow]) -> list[str | None]:
    """The remark on each row; on rows that follow each other with the same one, on the last."""
    remarks = [because(row) for row in rows]
    return [
        one if one != after else None
        for one, after in zip(remarks, [*remarks[1:], ""], strict=True)
    ]


def conversation(answer: HistoryRows, in_json: bool, nothing: str) -> None:
    """The broker's ``rows``, each message once with its whole text and how many have seen it."""
    found: dict[str, list[HistoryRow]] = {}
    for row in answer["rows"]:
        found.setdefault(row["id"], []).append(row)
    if in_json:
        output.as_json([_once(rows) for rows in found.values()])
        return
    for rows in found.values():
        first, seen = rows[0], sum(row["state"] == "seen" for row in rows)
        channel = (first.get("attributes") or {}).get("channel")
        to = channel or ", ".join(str(row["to"]) for row in rows)
        how = f"seen by {seen} of {len(rows)}" if rows[1:] else output.state_text(first)
        output.data(f"{when(first['created_ms'])}  {first['from']} -> {to}  {how}  {first['id']}")
        output.lines("\n".join(f"  {line}" for line in (first["body"] or "").split("\n")) + "\n")
    if not found:
        output.note(nothing)
    if answer["more"]:
        output.note("older ones are left out: --limit N shows more")


def _once(rows: list[HistoryRow]) -> Json:
    names = ("id", "from", "body", "thread", "created_at")
    to = [output.shaped(row, ("to", "state", "reason")) for row in rows]
    return output.shaped(rows[0], names) | {"cause": rows[0].get("cause"), "deliveries": to}


def _whole(row: MessageRow | HistoryRow) -> tuple[object, ...]:
    """All of it on one line: a line end is ⏎, as in a program that reads lines."""
    state, text = output.state_text(row), (row["body"] or "").replace("\n", " ⏎ ")
    return when(row["created_ms"]), row["id"], row["from"], row["to"], state, text


def _short(row: MessageRow | HistoryRow, bold: str | None) -> tuple[object, ...]:
    """The end of an id is what the receiver is shown, and enough for ``relay show``. What is shown
    in bold needs no brackets."""
    text = str(row.get("snippet") or " ".join((row["body"] or "").split()))
    if bold and (at := _place_of(bold, text)) > 0:
        end = at + len(bold)
        if (text[at - 1], text[end : end + 1]) == ("[", "]"):
            text = text[: at - 1] + text[at:end] + text[end + 1 :]
    people = row["from"], row["to"]
    return when(row["created_ms"]), row["id"][-8:], *people, row["state"], text
