"""The verb ``shout``."""

from __future__ import annotations

from relay.broker.client import connect
from relay.cli import output
from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
from relay.core.paths import Home
from relay_shout.ops import SHOUT, SHOUT_COUNTS


def add(verbs: Parser) -> None:
    """Declare the verb."""
    parser = verb(verbs, "shout", "relay shout Bob wake up\n  relay shout")
    parser.add_argument("name", nargs="?", metavar="NAME", offers="names", help="to whom")
    parser.add_argument("words", nargs="*", metavar="WORDS", help="what")
    parser.set_defaults(run=shout_verb)


def shout_verb(options: Options) -> int:
    """``relay shout``."""
    with connect(Home.from_env()) as client:
        if options.name:
            words = " ".join(options.words)
            sent = client.request(SHOUT, to=options.name, body=words, **output.speaker())
            output.data(sent["id"])
            return 0
        for row in client.request(SHOUT_COUNTS, **output.speaker())["rows"]:
            output.data(f"{row['name']}  {row['shouts']}")
    return 0
