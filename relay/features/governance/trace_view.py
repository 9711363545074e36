"""How a record of a project's trace reads, for ``relay intent log`` and the web page. Pure.

What stands in a trace came from agents and repositories: nothing in it is sure to be of the kind
that relay writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from relay.core.visible import visible
from relay.features.governance.trace_records import BROKEN

Json = dict[str, Any]
#: Characters of one text that are shown.
_TEXT_MAX = 400


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One record of the trace, as it is shown; whatever its line holds, each field is a text."""

    time: str
    kind: str
    intent: str
    agent: str
    what: str
    #: The agent's command, the error, a person's reason.
    words: str


def trace_line(record: Json) -> TraceLine:
    """A record as it is shown."""
    more = _object(record.get("metadata"))
    tool = _text(record.get("tool_name"))
    what = _summary([_object(file) for file in record["files"]], more)
    return TraceLine(
        time=_text(record["timestamp"]),
        kind=_text(record["kind"]),
        intent=_text(record["intent_id"]),
        agent=_text(record["agent"]) or ("relay" if more.get("event") == BROKEN else "the person"),
        what=f"{tool}: {what}" if tool else what,
        words=next((_text(more[key]) for key in ("text", "error", "command") if more.get(key)), ""),
    )


def _summary(files: list[Json], more: Json) -> str:
    """What a record tells, in a line."""
    words = [_text(more[name]) for name in ("event", "decision", "reason") if more.get(name)]
    if "from" in more and "to" in more:
        words.append(f"{_text(more['from'])} -> {_text(more['to'])}")
    paths = more.get("paths")
    if files:
        words.append(", ".join(_text(file.get("path")) for file in files[:3]))
        if len(files) > 3:
            words.append(f"and {len(files) - 3} more")
        words.append(f"({', '.join(sorted({_text(f.get('mutation_class')) for f in files}))})")
    elif isinstance(paths, list) and paths:
        words.append(", ".join(map(_text, paths[:3])))
    if more.get("by"):
        words.append(f"(by {_text(more['by'])})")
    return " ".join(words)


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    text = " ".join(visible(value if isinstance(value, str) else "").split())
    if isinstance(value, int):
        text = str(value)[:20]
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
