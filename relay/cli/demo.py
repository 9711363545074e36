"""``relay demo``: the main job on this machine, without an account or a network."""

from __future__ import annotations

from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb


def add(verbs: Parser) -> None:
    parser = verb(verbs, "demo")
    parser.set_defaults(run=run)


def run(_: Options) -> int:
    """Play the demo; 0 when every message was seen."""
    from relay.cli.exports import cleared_up
    from relay.demo.stage import perform

    with cleared_up():
        return perform(lambda line: print(line, flush=True))
