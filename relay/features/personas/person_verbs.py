"""The verb ``person``: who is behind the addresses of mails, chats and webhooks."""

from __future__ import annotations

from typing import Any

from relay.broker.client import request
from relay.cli import output, table
from relay.cli.parser import Parser
from relay.cli.verbs import verb
from relay.core.errors import UsageError
from relay.protocol.broker import Json

_TYPES = ("known", "owner", "webhook", "system", "unknown")


def add(verbs: Parser) -> None:
    """Declare the verbs."""
    group = verb(
        verbs,
        "person",
        "relay person list\n"
        "  relay person add Mom --relationship family --address imessage:+15559876543\n"
        "  relay person merge 4QXK7Z2M Mom",
    ).add_subparsers(metavar="add|merge|list|show")
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
    merged = group.add_parser("merge", help="say that two are the same person")
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
            raise UsageError(f"{one!r} is no CHANNEL:ADDRESS", hint="for example mail:me@home.org")
        addresses.append([channel, address])
    fields = {"type": options.type, "relationship": options.relationship}
    return _change("person_add", options, name=options.name, addresses=addresses, **fields)


def merge_verb(options: Any) -> int:
    """``relay person merge``."""
    return _change("person_merge", options, one=options.one, into=options.into)


def _change(op: str, options: Any, **fields: Any) -> int:
    _print(request(op, **fields, **output.speaker())["person"], options.json)
    return 0


def show_verb(options: Any) -> int:
    """``relay person show``."""
    _print(request("persons", who=options.who)["persons"][0], options.json)
    return 0


def list_verb(options: Any) -> int:
    """``relay person list``."""
    answer = request("persons")
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


def _shown(row: Json) -> Json:
    names = ("id", "name", "type", "relationship", "created_at", "updated_at")
    addresses = [f"{channel}:{address}" for channel, address in row["addresses"]]
    return {**output.shaped(row, names), "addresses": addresses}


def _print(row: Json, in_json: bool) -> None:
    row = _shown(row)
    if in_json:
        output.as_json(row)
        return
    names = ("id", "name", "type", "relationship", "created_at")
    addresses = [("address", one) for one in row["addresses"]]
    table.fields([*((name, row[name]) for name in names), *addresses])
