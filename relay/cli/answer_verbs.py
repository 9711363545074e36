"""The verbs for looking at an agent from elsewhere, and for answering what it asks."""

from __future__ import annotations

from relay.broker.client import connect
from relay.cli import output
from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
from relay.core.paths import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.cli.output import Json

#: Seconds that an agent's session may take to answer.
_PATIENCE = 10.0


def add(verbs: Parser) -> None:
    """Declare the verbs."""
    peek = verb(verbs, "peek", "relay peek Bob\n  relay peek Bob --color")
    peek.add_argument("name", metavar="NAME", help="the agent")
    peek.add_argument("--color", action="store_true", help="with the colours that the agent uses")
    peek.add_argument("--json", action="store_true", help="print JSON")
    peek.set_defaults(run=peek_verb)


def peek_verb(options: Options) -> int:
    """``relay peek``: the rows of the agent's screen, without what is blank below."""
    request: Json = {"styled": options.color}
    shown = ask(options.name, "screen", request)
    if options.json:
        output.as_json(shown)
    elif options.color:
        output.styled(_without_end(shown["spans"]))
    else:
        output.lines("\n".join(_without_end(shown["lines"])))
    return 0


def ask(name: str, kind: str, request: Json) -> Json:
    """What the agent's session answers."""
    with connect(Home.from_env()) as client:
        said = client.request(
            "ask",
            deadline=_PATIENCE + 5,
            agent=name,
            kind=kind,
            request=request,
            timeout=_PATIENCE,
            **output.speaker(),
        )
    found: Json = said["response"]
    return found


def _without_end(rows: list[Any]) -> list[Any]:
    """The rows up to the last one with something in it."""
    while rows and not rows[-1]:
        rows = rows[:-1]
    return rows
