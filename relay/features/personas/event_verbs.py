"""The verb ``event``: your own notes about stored events, which themselves never change.

A file of its own, as each group of verbs has one.
"""

from __future__ import annotations

from typing import Any

from relay.broker.client import request
from relay.cli import output
from relay.cli.parser import Parser
from relay.cli.verbs import verb
from relay.core.errors import UsageError
from relay.protocol.broker import Json

#: What each action notes, and what it says of itself.
_ACTIONS = {
    "tag": ("tag", "put a tag on events"),
    "status": ("status", "give events a status: a word of your own"),
    "flag": ("flagged", "flag events"),
    "archive": ("archived", "archive events"),
    "read": ("read", "mark events as read"),
}

_WITH_WORD = ("tag", "status")


def add(verbs: Parser) -> None:
    """Declare the verb."""
    group = verb(
        verbs,
        "event",
        "relay event tag urgent 4QXK7Z2M 7Z2M4QXK\n"
        "  relay event flag 4QXK7Z2M\n"
        "  relay event tag urgent 4QXK7Z2M --undo",
    ).add_subparsers(metavar="|".join(_ACTIONS))
    for name, (what, text) in _ACTIONS.items():
        action = group.add_parser(name, help=text)
        if name in _WITH_WORD:
            action.add_argument("word", metavar="WORD", help=f"the {name}")
        action.add_argument("ids", nargs="*", metavar="ID", help="events: ids, or ends of ids")
        action.add_argument("--undo", action="store_true", help="take it back")
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(run=event_verb, what=what)


def event_verb(options: Any) -> int:
    """``relay event``: prints what is noted about each event now."""
    if not options.ids:
        raise UsageError("name at least one event", hint="relay history lists the ids")
    fields = {"what": options.what, "undo": options.undo}
    fields["word"] = options.word if options.what in _WITH_WORD else None
    rows: list[Json] = request("event_mark", ids=options.ids, **fields, **output.speaker())["rows"]
    if options.json:
        output.as_json(rows)
        return 0
    for row in rows:
        output.data(f"{row['id']}  {noted(row) or '-'}")
    return 0


def noted(row: Json) -> str:
    """``flagged, tags: urgent``: what is noted about an event; "" for nothing."""
    said = [name for name in ("read", "flagged", "archived") if row[name]]
    said += [f"status: {row['status']}"] if row["status"] else []
    said += [f"tags: {' '.join(row['tags'])}"] if row["tags"] else []
    return ", ".join(said)
