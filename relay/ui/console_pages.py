"""The console's texts: its signs and keys, the page of help, an item in whole. Pure.

It is a file of its own beside the view, which says where they stand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relay.core.visible import columns_of, cut, visible, visible_lines
from relay.ui.console_traffic import age
from relay.ui.console_words import OWN

Json = dict[str, Any]
#: Characters of one item that are shown.
ITEM_SHOWN = 50_000
#: Rows and columns of a screen beyond these are left out.
ROWS_MAX = COLUMNS_MAX = 1000
#: Pieces of one row of the screen: (style, text).
Row = list[tuple[str, str]]

_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "gray")
_BRIGHT = ("brightblack", *(f"bright{name}" for name in _COLOURS[1:7]), "white")

KEYS = (
    ("F1", "help"),
    ("Tab", "complete"),
    ("↑↓", "agent"),
    ("^R", "answer"),
    ("^T", "screen"),
    ("^F", "find"),
    ("^X", "whole"),
    ("^O", "only one"),
    ("PgUp", "older"),
    ("^C", "leave"),
)
_KEYS_HELP = (
    ("Enter", "send what is typed, or do it"),
    ("Tab", "complete names, channels, verbs"),
    ("↑ ↓", "choose the agent that plain text goes to"),
    ("^P ^N", "what you typed before"),
    ("^R", "answer what waits for you; again: the next"),
    ("^T", "the screen of the chosen agent"),
    ("^F", "search all messages"),
    ("^X", "messages whole, or a line of each"),
    ("^O", "only the chosen agent's traffic"),
    ("PgUp PgDn", "older and newer traffic"),
    ("Esc", "back, step by step, to the live traffic"),
    ("^Z", "to the shell; fg comes back"),
    ("^C ^D", "empty the line; leave"),
)


@dataclass(frozen=True)
class Signs:
    """The signs of a terminal's encoding."""

    seen: str = "✓"
    submitted: str = "»"
    delivering: str = "›"
    queued: str = "·"
    held: str = "‖"
    failed: str = "✗"
    to: str = "→"
    chosen: str = "▸"
    across: str = "─"
    down: str = "│"
    more: str = "…"

    def of(self, state: str) -> str:
        """The sign of a delivery's state."""
        if state == "cancelled":
            return self.failed
        return str(getattr(self, "queued" if state == "waiting" else state, self.queued))


UNICODE = Signs()
ASCII = Signs("+", ">", "~", ".", "=", "x", "->", ">", "-", "|", "~")


def help_texts(signs: Signs) -> list[str]:
    """The page of help, a line each."""
    legend = [
        f"{signs.of(one)} {one}"
        for one in ("queued", "delivering", "submitted", "seen", "held", "failed")
    ]
    arrows = "Up Dn" if signs is ASCII else "↑ ↓"
    texts = [f"{arrows if key == '↑ ↓' else key:<10} {said}" for key, said in _KEYS_HELP]
    texts += ["", "@Bob text, #build text, or only text for the chosen agent"]
    texts += [f"/{name} {after}".ljust(26) + said for name, (after, said) in OWN.items()]
    return [*texts, "and every verb of relay: /spawn, /attach, /status", "", "  ".join(legend)]


def item_texts(item: Json, now_ms: int, width: int) -> tuple[list[str], list[str]]:
    """What an item asks, whole, and its choices with what to type; in rows of ``width``."""
    choices = item.get("choices") or []
    how = "a choice" if choices else "yes or no"
    until = item.get("until_ms")
    left = f"; {age(until - now_ms)} left" if until else ""
    texts: list[str] = []
    for n, one in enumerate(choices):
        mark = ">" if n == item.get("chosen") else " "
        key = f"{mark} {visible(one['key'])}  {visible(one['label'])}"
        texts += wrapped(key, width, indent="     ")
    texts += wrapped(f"(type {how}, then Enter{left}; Esc: later)", width)
    what = "\n".join([*(item.get("about") or ()), item["what"]])
    if len(what) > ITEM_SHOWN:
        what = f"{what[:ITEM_SHOWN]}\n… it is longer: look at it with relay items"
    return wrapped(visible_lines(what), width), texts


def styled_rows_shown(spans: object) -> list[Row]:
    """An agent's screen (relay.screen.styled_rows) in the styles of prompt-toolkit, without what is
    blank at its end. Raises ValueError for anything else: who answers for an agent may be one."""
    if not isinstance(spans, list):
        raise ValueError("no rows")
    rows = [[_piece(*one) for one in row[:COLUMNS_MAX]] for row in spans[:ROWS_MAX]]
    while rows and not any(text.strip() for _, text in rows[-1]):
        rows.pop()
    return rows


def _piece(text: str, style: Json) -> tuple[str, str]:
    marks = ("bold", "italic", "underline", "reverse", "strike")
    words = [mark for mark in marks if style.get(mark)] + (["dim"] if style.get("faint") else [])
    for place in ("fg", "bg"):
        if (colour := style.get(place)) is not None:
            words.append(f"{place}:{_colour(colour)}")
    return " ".join(words), visible(text[:COLUMNS_MAX])


def _colour(colour: int | str) -> str:
    """One of the terminal's own sixteen, or #rrggbb; of 256 also the cube and the greys."""
    if isinstance(colour, str):
        return f"#{int(colour.removeprefix('#'), 16) & 0xFFFFFF:06x}"
    if not 0 <= colour < 256:
        raise ValueError("no colour")
    if colour < 16:
        return f"ansi{(_COLOURS + _BRIGHT)[colour]}"
    if colour >= 232:
        return "#" + f"{8 + 10 * (colour - 232):02x}" * 3
    parts = (colour - 16) // 36, (colour - 16) // 6 % 6, (colour - 16) % 6
    return "#" + "".join(f"{part and 55 + 40 * part:02x}" for part in parts)


def row_cut(row: Row, width: int) -> Row:
    """As much of a row as goes into so many columns."""
    found: Row = []
    for style, text in row:
        found.append((style, cut(text, width, "")))
        width -= columns_of(text)
        if width <= 0:
            break
    return found


def wrapped(text: str, width: int, *, indent: str = "", most: int | None = None) -> list[str]:
    """``text`` in rows of at most ``width`` columns, broken between words where there are some;
    ``indent`` stands before each but the first, and at most ``most`` rows are made."""
    rows: list[str] = []
    indent = indent if width > 2 * len(indent) else ""
    for line in text.expandtabs(4).split("\n"):
        rest = line if not rows else indent + line
        # A row never has more characters than this, so that the work grows with the text alone.
        while len(head := cut(rest[: width * 4], width, "")) < len(rest):
            at = head.rfind(" ", len(indent) + 1) if rest[len(head)] != " " else len(head)
            end = at if at > len(head) // 2 else max(1, len(head))
            rows.append(rest[:end].rstrip())
            rest = indent + rest[end:].lstrip()
            if most is not None and len(rows) > most:
                break
        rows.append(rest)
        if most is not None and len(rows) > most:
            return [*rows[: most - 1], f"{indent}… (^X: whole)"]
    return rows
