"""The verb ``ingest``: what happens outside of relay becomes an event of its ledger."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from relay.broker.client import BrokerClient, connect
from relay.cli import output
from relay.cli.parser import Parser
from relay.cli.verbs import verb
from relay.core.errors import EXIT_FAILED, BrokerUnavailable, RelayError, Timeout, UsageError
from relay.core.paths import Home
from relay.protocol.broker import Json
from relay.protocol.messages import EVENT

#: Bytes of one event's JSON: one whose every byte is escaped fits.
EVENT_MAX = 7 * 1024 * 1024
_EXAMPLES = (
    'relay ingest event --json \'{"channel": "mail", "source_id": "m-1", "from": "mom@example.org",'
    ' "content": "hello"}\'\n'
    "  my-bridge | relay ingest event --json     (one event a line)"
)


def add(verbs: Parser) -> None:
    """Declare the verbs."""
    group = verb(verbs, "ingest").add_subparsers(metavar="WHAT")
    event = group.add_parser(
        "event",
        help="events of another channel, as JSON",
        description=f"examples:\n  {_EXAMPLES}\n\nStore events from a channel other than relay's.",
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
            _print(_ingest(client, text, files), options.json)
        return 0
    if options.event is None and sys.stdin.isatty():
        raise UsageError("an event is given as JSON", hint=f"for example:\n  {_EXAMPLES}")
    failed = False
    with connect(Home.from_env()) as client:
        for number, line in enumerate(_lines(), 1):
            try:
                if number > 1 and files:
                    raise UsageError("--file belongs to one event, and here are several")
                _print(_ingest(client, line, files), options.json)
            except (BrokerUnavailable, Timeout):
                raise
            except RelayError as error:
                failed = True
                _print_refused(number, error, options.json)
    return EXIT_FAILED if failed else 0


def _lines() -> Iterator[bytes]:
    """What stdin holds: an event a line, or one over many lines, whose first is no event."""
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


def _ingest(client: BrokerClient, text: bytes, files: list[Json]) -> Json:
    from relay.core import json_text

    try:
        event = json_text.loads(text.decode())
    except ValueError as error:
        raise UsageError(f"an event that is no JSON: {error}") from error
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


def _print(answer: Json, in_json: bool) -> None:
    if in_json:
        output.as_json_line({"id": answer["id"], "duplicate": answer["duplicate"]})
        return
    output.data(answer["id"])
    output.flush()
    if answer["duplicate"]:
        output.note("duplicate: its channel has told of it before; nothing was stored")


def _print_refused(number: int, error: RelayError, in_json: bool) -> None:
    if in_json:
        fields = {"code": error.code, "message": error.message, "hint": error.hint}
        output.as_json_line({"error": fields, "number": number})
    else:
        output.note(f"relay: event {number}: {error.line}")
