"""How a row of the broker's stream looks: one line, in pieces that each have a tone. Pure.

``relay watch`` prints the pieces in the colours of their tones; the console and the web page show
their words. Only messages look different in the console, which shows how far each one is.

How the rows of a feature look stands in ``ROWS`` of its module ``view``: {kind: function}, each
takes a row and returns its pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from relay.core.features import modules
from relay.core.visible import NEEDY, tone, visible

Json = dict[str, Any]
#: A text, and its tone: "" (plain), "bold", "faint", "name", "choice", or that of a state.
Piece = tuple[str, str]

#: What every row has, or every row of a feature.
_HEAD = {"seq", "at_ms", "what", "names"}
#: Characters of a text that are shown.
_TEXT_MAX = 1000
_ASKS = {"question": "asks", "approval": "wants", "held": "is held", "persona": "needs you"}


def words(row: Json) -> str:
    return "".join(text for text, _ in pieces(row)).rstrip()


def matters(row: Json) -> bool:
    """Whether a person wants to know it: messages, what does not go on, who comes and goes, and
    what waits for them. The rest is how far things are."""
    match row["what"]:
        case "message" | "obligation" | "gap":
            return True
        case "delivery":
            return tone(row["state"]) == "need"
        case "agent":
            comes = row["was"] in (None, "gone") or row["state"] == "gone"
            return row["was"] != row["state"] and (comes or row["state"] in NEEDY)
        case "turn":
            return bool(row["state"] != "completed")
        case "item":
            return not row.get("again")
    return any(how == "need" for _, how in pieces(row))


def pieces(row: Json) -> list[Piece]:
    """A row as one line: who, then what. The texts are as they came: controls are in them."""
    view = _PIECES.get(row["what"])
    return _of_feature(row) if view is None else view(row)


def _of_feature(row: Json) -> list[Piece]:
    """Where its feature is not installed here, or fails: what is in the row."""
    try:
        made = _views()[row["what"]](row)
        return [(" ".join(str(text)[:_TEXT_MAX].splitlines()), str(tone)) for text, tone in made]
    except Exception:
        rest = ", ".join(f"{key} {row[key]}" for key in row if key not in _HEAD)
        return [(f"{row['what']}: ", "name"), (_short(rest), "")]


@cache
def _views() -> dict[str, Callable[[Json], list[Piece]]]:
    table: dict[str, Callable[[Json], list[Piece]]] = {}
    for one in modules("view"):
        for kind, view in getattr(one.module, "ROWS", {}).items():
            table.setdefault(kind, view)
    return table


def _message(row: Json) -> list[Piece]:
    where = f" {row['channel']}" if row["channel"] else f" [{row['thread']}]" * bool(row["thread"])
    to = ",".join(row["to"])
    head: list[Piece] = [(row["from"], "bold"), (" → ", "faint"), (to, "bold"), (where, "name")]
    return [*head, (f"  {_short(row['body'])}  ", ""), (row["id"][-8:], "faint")]


def _delivery(row: Json) -> list[Piece]:
    why = row["reason"] or row["proof"]
    rest = (f" ({why})" if why else "") + f"  {row['id'][-8:]}"
    return [(f"{row['to']}: ", ""), (row["state"], tone(row["state"])), (rest, "faint")]


def _agent(row: Json) -> list[Piece]:
    was = f": {row['was']} → "
    if row["was"] is None:
        was = " joined, "
    elif row["was"] == row["state"]:
        was = ": "
    why = f" ({row['reason']})" if row["reason"] else ""
    state = (row["state"], tone(row["state"]))
    return [(row["name"], "name"), (was, "faint"), state, (why, "")]


def _turn(row: Json) -> list[Piece]:
    seconds = max(0, row["ended_ms"] - row["started_ms"]) / 1000
    usage = row["usage"]
    tokens = f", {usage['input'] or 0} → {usage['output'] or 0} tokens" if usage else ""
    state = (row["state"], tone(row["state"]) or "need")
    head: list[Piece] = [(f"{row['agent']}: ", "name"), ("turn ", ""), state]
    return [*head, (f" after {seconds:.1f} s{tokens}  ", "faint"), (_short(row["text"]), "")]


def _item(row: Json) -> list[Piece]:
    item = row["item"]
    what = _short(item.get("what"))
    if row["open"]:
        return [(f"{who_asks(item)}: ", "need"), (what, ""), (f"  [{choices_of(item)}]", "choice")]
    if not row.get("answer"):
        return [(f"{item['agent']}: {item['kind']} is over", "name"), (f"  {what}", "faint")]
    by = str(row.get("by") or "").partition(",")[0]  # without the terminal: relay history has it
    who = f"{by} answered {item['agent']}" if by else f"{item['agent']} got"
    return [(f"{who}: ", "name"), (row["answer"], ""), (f" ({what})", "faint")]


def _obligation(row: Json) -> list[Piece]:
    why = "has gone" if row["why"] == "gone" else "ended its turn"
    text = f" without an answer to {row['from']}  "
    return [(f"{row['to']} {why}", "need"), (text, ""), (row["id"][-8:], "faint")]


def _gap(row: Json) -> list[Piece]:
    text = f"{row['lost']} rows are missing here: too much came at once"
    if row["lost"] < 0:
        text = "the broker was started again: earlier rows may be missing here"
    return [(text, "need"), ("; relay history has the messages", "")]


_PIECES: dict[str, Callable[[Json], list[Piece]]] = {
    "message": _message,
    "delivery": _delivery,
    "agent": _agent,
    "turn": _turn,
    "item": _item,
    "obligation": _obligation,
    "gap": _gap,
}


def who_asks(item: Json) -> str:
    count = (item.get("details") or {}).get("count", 1)
    if item["kind"] == "held" and count > 1:
        to = ", ".join(item["details"]["to"])
        return visible(f"{item['agent']} → {to}: {count:,} held")
    return visible(f"{item['agent']} {_ASKS.get(item['kind'], item['kind'])}")


def choices_of(item: Json) -> str:
    """The choices of an item on one line, as they are answered."""
    choices = [(str(one["key"]), str(one["label"])) for one in item.get("choices") or ()]
    shown = (key if key == label.lower() else f"{key} {label}" for key, label in choices)
    return visible(" · ".join(shown) or "yes · no")


def _short(text: object) -> str:
    return " ".join(str(text or "").split())[:_TEXT_MAX]
