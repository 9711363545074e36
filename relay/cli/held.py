"""The verbs ``held``, ``allow`` and ``refuse``: messages that wait for the person."""

from __future__ import annotations

from relay.broker.client import connect, request
from relay.cli import output, table
from relay.cli.parser import Parser
from relay.cli.verbs import verb
from relay.core.errors import UsageError
from relay.core.paths import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def add(verbs: Parser) -> None:
    """Declare the verbs."""
    held = verb(verbs, "held", "relay held\n  relay held --json")
    held.add_argument("--json", action="store_true", help="print JSON")
    held.set_defaults(run=held_verb)
    _add_decision(verbs, "allow", refuse=False)
    _add_decision(verbs, "refuse", refuse=True)


def _add_decision(verbs: Parser, name: str, *, refuse: bool) -> None:
    parser = verb(verbs, name, f"relay {name} 4QXK\n  relay {name} Bob\n  relay {name} --all")
    parser.add_argument(
        "which", nargs="*", metavar="ID|NAME", help="a message, or an agent for all its messages"
    )
    parser.add_argument("--all", action="store_true", help="everything that is held")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=decide_verb, refuse=refuse)


def held_verb(options: Any) -> int:
    """``relay held``."""
    answer = request("held", **output.speaker())
    table.messages(answer, options.json, "nothing waits for you")
    if answer["rows"] and not options.json:
        output.note("relay allow ID lets one go on, relay refuse ID lets it fail; both know --all")
    return 0


def decide_verb(options: Any) -> int:
    """``relay allow`` and ``relay refuse``."""
    if bool(options.which) == options.all:
        raise UsageError("name held messages or agents, or give --all", hint="see: relay held")
    which = {} if options.all else {"which": options.which}
    fields = {"refuse": options.refuse, **which, **output.speaker()}
    with connect(Home.from_env()) as client:
        rows = found = client.request("decide", **fields)["rows"]
        while options.all and found:  # one request decides on a limited number
            found = client.request("decide", **fields)["rows"]
            rows += found
    if options.json:
        output.as_json(rows)
        return 0
    done = "refused" if options.refuse else "goes on"
    for row in rows:
        output.data(f"{row['id'][-8:]}  {row['from']} -> {row['to']}: {done}")
    if not rows:
        output.note("nothing is held")
    return 0
