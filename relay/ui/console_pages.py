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
    keys = [f"{visible(one['key'])}  {visible(one['label'])}" for one in choices]
    texts = [part for key in keys for part in wrapped(f"  {key}", width, indent="     ")]
    texts += wrapped(f"(type {how}, then Enter{left}; Esc: later)", width)
    return wrapped(visible_lines(item["what"]), width), texts


def wrapped(text: str, width: int, *, indent: str = "", most: int | None = None) -> list[str]:
    """``text`` in rows of at most ``width`` columns, broken between words where there are some;
    ``indent`` stands before each but the first, and at most ``most`` rows are made."""
    rows: list[str] = []
    for line in text.expandtabs(4).split("\n"):
        rest = line if not rows else indent + line
        while columns_of(rest) > width:
            end = len(cut(rest, width, ""))
            at = rest.rfind(" ", len(indent) + 1, end + 1)
            end = at if at > end // 2 else max(1, end)
            rows.append(rest[:end].rstrip())
            rest = indent + rest[end:].lstrip()
            if most is not None and len(rows) > most:
                break
        rows.append(rest)
        if most is not None and len(rows) > most:
            return [*rows[: most - 1], f"{indent}… (^X: whole)"]
    return rows
