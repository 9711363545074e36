"""``relay demo``: the main job on this machine, without an account or a network."""

from __future__ import annotations

from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb


def add(verbs: Parser) -> None:
    parser = verb(verbs, "demo")
    parser.set_defaults(run=run)


def run(_: Options) -> int:
    """Play the demo; 0 when every message was seen."""
    import signal
    import sys

    from relay.demo.stage import perform

    # Unlike Ctrl-C they would end Python at once, and leave the demo's agents behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    return perform(lambda line: print(line, flush=True))
