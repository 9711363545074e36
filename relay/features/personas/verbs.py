"""The verbs ``ingest``, ``event`` and ``person``: events of other channels, the person's
notes about them, and who is behind their addresses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from relay.broker.client import BrokerClient, connect, request
from relay.cli import output, table
from relay.cli.parser import Parser
from relay.cli.verbs import verb
from relay.core.errors import EXIT_FAILED, BrokerUnavailable, RelayError, Timeout, UsageError
from relay.core.paths import Home
from relay.features.personas.ops import EVENT_MARK, PERSON_ADD, PERSON_MERGE, PERSONS, PersonRow
from relay.protocol.broker import Json
from relay.protocol.message_ops import EVENT, EventMarks, EventStored

#: Bytes of one event's JSON: one whose every byte is escaped fits.
EVENT_MAX = 7 * 1024 * 1024
_EXAMPLES = (
    'relay ingest event --json \'{"channel": "mail", "source_id": "m-1", "from": "mom@example.org",'
    ' "content": "hello"}\'\n'
    "  my-bridge | relay ingest event --json     (one event a line)"
)
#: What each action notes, and what it says of itself.
_ACTIONS = {
    "tag": ("tag", "put a tag on events"),
    "status": ("status", "give events a status: a word of your own"),
    "flag": ("flagged", "flag events"),
    "archive": ("archived", "archive events"),
    "read": ("read", "mark events as read"),
}
_WITH_WORD = ("tag", "status")
_TYPES = ("known", "owner", "webhook", "system", "unknown")


def add(verbs: Parser) -> None:
    """Declare the verbs."""
    _add_ingest(verbs)
    _add_event(verbs)
    _add_person(verbs)


def _add_ingest(verbs: Parser) -> None:
    group = verb(verbs, "ingest").add_subparsers()
    event = group.add_parser(
        "event",
        help="events of another channel, as JSON",
        description="Store events from a channel other than relay's.",
        examples=_EXAMPLES,
    )
    event.add_argument("event", nargs="?", metavar="EVENT", help="an event; - reads stdin")
    event.add_argument(
        "--file", metavar="PATH", help="a file with content that is not text, for one event"
    )
    event.add_argument("--json", action="store_true", help="print the result as JSON")
    event.set_defaults(run=ingest_event_verb)


def ingest_event_verb(options: Any) -> int:
    """``relay ingest event``: 0 when all of them are on the disk."""
    files = [] if options.file is None else [_stored(options.file)]
    if options.event not in (None, "-"):
        with connect(Home.from_env()) as client:
            text = options.event.encode(errors="surrogateescape")
            _print_event(_ingest(client, text, files), options.json)
        return 0
    if options.event is None and sys.stdin.isatty():
        raise UsageError("an event is given as JSON", hint=f"for example:\n  {_EXAMPLES}")
    failed = False
    with connect(Home.from_env()) as client:
        for number, line in enumerate(_lines(), 1):
            try:
                if number > 1 and files:
                    raise UsageError("--file goes with one event, not with several")
                _print_event(_ingest(client, line, files), options.json)
            except (BrokerUnavailable, Timeout):
                raise
            except RelayError as error:
                failed = True
                _print_refused(number, error, options.json)
    return EXIT_FAILED if failed else 0


def _lines() -> Iterator[bytes]:
    """What stdin holds: an event a line, or one over many lines, whose first is not an event."""
    stdin = sys.stdin.buffer
    line = b"\n"
    while line.isspace():
        line = stdin.readline(EVENT_MAX + 1)
    if not line.strip().endswith(b"}"):
        line += stdin.read(EVENT_MAX + 1 - len(line))
    while line:
        if len(line) > EVENT_MAX:
            raise UsageError(f"an event of more than {EVENT_MAX} bytes", code="too_large")
        if not line.isspace():
            yield line
        line = stdin.readline(EVENT_MAX + 1)


def _ingest(client: BrokerClient, text: bytes, files: list[Json]) -> EventStored:
    from relay.core import json_text

    try:
        event = json_text.loads(text.decode())
    except ValueError as error:
        raise UsageError(f"the event is not JSON: {error}") from error
    if files:
        if not isinstance(event, dict):
            raise UsageError("an event is a JSON object")
        event["files"] = files
    elif isinstance(event, dict) and event.get("files"):
        # What comes from outside must not name a file of this machine.
        raise UsageError("files are given by --file PATH, not by the event itself")
    return client.request(EVENT, outside=event)


def _stored(path: str) -> Json:
    """The file, stored beside the ledger."""
    import os

    from relay.ledger import content_files

    data = content_files.read(path)
    home = Home.from_env()
    home.create()
    return content_files.stored(home, os.path.basename(path), data)


def _print_event(answer: EventStored, in_json: bool) -> None:
    if in_json:
        output.as_json_line({"id": answer["id"], "duplicate": answer["duplicate"]})
        return
    output.data(answer["id"])
    output.flush()
    if answer["duplicate"]:
        output.note("duplicate: its channel has reported it before; nothing was stored")


def _print_refused(number: int, error: RelayError, in_json: bool) -> None:
    if in_json:
        fields = {"code": error.code, "message": error.message, "hint": error.hint}
        output.as_json_line({"error": fields, "number": number})
    else:
        output.note(f"relay: event {number}: {error.line}")


def _add_event(verbs: Parser) -> None:
    group = verb(
        verbs,
        "event",
        "relay event tag urgent 4QXK7Z2M 7Z2M4QXK\n"
        "  relay event flag 4QXK7Z2M\n"
        "  relay event tag urgent 4QXK7Z2M --undo",
    ).add_subparsers()
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
    word = options.word if options.what in _WITH_WORD else None
    rows = request(
        EVENT_MARK,
        what=options.what,
        ids=options.ids,
        word=word,
        undo=options.undo,
        **output.speaker(),
    )["rows"]
    if options.json:
        output.as_json(rows)
        return 0
    for row in rows:
        output.data(f"{row['id']}  {noted(row) or '-'}")
    return 0


def noted(row: EventMarks) -> str:
    """``flagged, tags: urgent``: what is noted about an event; "" for nothing."""
    flags = (("read", row["read"]), ("flagged", row["flagged"]), ("archived", row["archived"]))
    said = [name for name, is_set in flags if is_set]
    said += [f"status: {row['status']}"] if row["status"] else []
    said += [f"tags: {' '.join(row['tags'])}"] if row["tags"] else []
    return ", ".join(said)


def _add_person(verbs: Parser) -> None:
    group = verb(
        verbs,
        "person",
        "relay person list\n"
        "  relay person add Mom --relationship family --address imessage:+15559876543\n"
        "  relay person merge 4QXK7Z2M Mom",
    ).add_subparsers(alone="list")
    person = group.add_parser("add", help="name a person, or add one of their addresses")
    person.add_argument("name", metavar="NAME", help="what you call them")
    person.add_argument(
        "--address",
        metavar="CHANNEL:ADDRESS",
        help="where they write from; several with spaces between them",
    )
    person.add_argument("--relationship", metavar="R", help="what they are to you: family, work")
    person.add_argument("--type", choices=_TYPES, metavar="TYPE", help=", ".join(_TYPES))
    person.set_defaults(run=add_verb)
    merged = group.add_parser("merge", help="merge two that are the same person")
    merged.add_argument("one", metavar="PERSON", help="a name, an id, or CHANNEL:ADDRESS")
    merged.add_argument("into", metavar="INTO", help="the one that stays")
    merged.set_defaults(run=merge_verb)
    listed = group.add_parser("list", help="list everyone by name")
    listed.set_defaults(run=list_verb)
    shown = group.add_parser("show", help="show one of them")
    shown.add_argument("who", metavar="PERSON", help="a name, an id, or CHANNEL:ADDRESS")
    shown.set_defaults(run=show_verb)
    for parser in (person, merged, listed, shown):
        parser.add_argument("--json", action="store_true", help="print JSON")


def add_verb(options: Any) -> int:
    """``relay person add``."""
    addresses = []
    for one in (options.address or "").split():
        channel, colon, address = one.partition(":")
        if not colon or not address:
            raise UsageError(f"{one!r} is not CHANNEL:ADDRESS", hint="for example mail:me@home.org")
        addresses.append([channel, address])
    answer = request(
        PERSON_ADD,
        name=options.name,
        addresses=addresses,
        type=options.type,
        relationship=options.relationship,
        **output.speaker(),
    )
    _print(answer["person"], options.json)
    return 0


def merge_verb(options: Any) -> int:
    """``relay person merge``."""
    answer = request(PERSON_MERGE, one=options.one, into=options.into, **output.speaker())
    _print(answer["person"], options.json)
    return 0


def show_verb(options: Any) -> int:
    """``relay person show``."""
    _print(request(PERSONS, who=options.who)["persons"][0], options.json)
    return 0


def list_verb(options: Any) -> int:
    """``relay person list``."""
    answer = request(PERSONS)
    rows = [_shown(one) for one in answer["persons"]]
    if options.json:
        output.as_json(rows)
        return 0
    table.table(
        ("ID", "NAME", "TYPE", "RELATIONSHIP", "ADDRESSES"),
        [
            (
                one["id"][-8:],
                one["name"],
                one["type"],
                one["relationship"],
                " ".join(one["addresses"]),
            )
            for one in rows
        ],
        width=table.columns(),
    )
    if answer["more"]:
        output.note("older ones are left out: relay person show PERSON finds them")
    return 0


def _shown(row: PersonRow) -> Json:
    names = ("id", "name", "type", "relationship", "created_at", "updated_at")
    addresses = [f"{channel}:{address}" for channel, address in row["addresses"]]
    return {**output.shaped(row, names), "addresses": addresses}


def _print(person: PersonRow, in_json: bool) -> None:
    row = _shown(person)
    if in_json:
        output.as_json(row)
        return
    names = ("id", "name", "type", "relationship", "created_at")
    addresses = [("address", one) for one in row["addresses"]]
    table.fields([*((name, row[name]) for name in names), *addresses])
