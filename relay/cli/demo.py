"""``relay demo``: the main job on this machine, without an account or a network."""

from __future__ import annotations

import argparse


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = subparsers.add_parser(
        "demo", help="two small wrapped agents talk to each other, on this terminal"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play the demo; 0 when every message was seen."""
    import signal
    import sys

    from relay.demo.stage import perform

    # Unlike Ctrl-C they would end Python at once, and leave the demo's agents behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    return perform(lambda line: print(line, flush=True))
