"""``relay hooks list|test|fire|log``: their options."""

from __future__ import annotations

import argparse
from typing import Any

from relay.cli.messages import verb


def add(subparsers: Any) -> None:
    """Add the verbs to the command line."""
    group = verb(
        subparsers,
        "hooks",
        "the hooks that apply here, trying them out, and how they ran",
        "relay hooks list\n"
        '  relay hooks test before_tool --input \'{"tool_name": "Bash"}\'\n'
        '  relay hooks fire Alice before_tool --input \'{"tool_name": "Bash"}\'\n'
        "  relay hooks log --failed",
    )
    verbs = group.add_subparsers(dest="hooks_verb", metavar="list|test|fire|log", required=True)
    listed = verbs.add_parser("list", help="the hooks of the configuration that applies here")
    _common(listed)
    _path(listed)
    listed.set_defaults(run=_run_list)

    test = verbs.add_parser(
        "test",
        help="run the hooks for an event that did not happen",
        description="Run the hooks for an event that did not happen, and show what would come of "
        "it. The hooks really run; what functions send or inject is only shown.",
    )
    _event(test)
    _common(test)
    _path(test)
    test.set_defaults(run=_run_test)

    fire = verbs.add_parser(
        "fire",
        help="run the hooks of an agent that runs, in its session",
        description="Run the hooks for an event in the session of an agent that runs, and show "
        "what they said. What functions ask for while they run (send, inject) is done; what they "
        "return is only shown.",
    )
    fire.add_argument("agent", metavar="AGENT", help="an agent that runs")
    _event(fire)
    fire.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="seconds, at most 120 (30)"
    )
    _common(fire)
    fire.set_defaults(run=_run_fire)

    log = verbs.add_parser("log", help="how hooks ran, the newest last")
    log.add_argument("--agent", metavar="NAME", help="only this agent's")
    log.add_argument("--event", metavar="EVENT", help="only of this event")
    log.add_argument("--hook", metavar="TEXT", help="only those with this in their name")
    log.add_argument("--failed", action="store_true", help="only those that failed")
    log.add_argument("--limit", type=int, default=50, metavar="N", help="at most so many (50)")
    _common(log)
    log.set_defaults(run=_run_log)


def _event(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("event", metavar="EVENT", help="before_tool, session_start …")
    parser.add_argument("--input", metavar="JSON", default="{}", help="what the event is about")


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="for programs")


def _path(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", metavar="FILE", help="the configuration file (default: the one that applies)"
    )


def _run_list(options: argparse.Namespace) -> int:
    from relay.cli.hooks_report import run_list

    return run_list(options)


def _run_test(options: argparse.Namespace) -> int:
    from relay.cli.hooks_report import run_test

    return run_test(options)


def _run_fire(options: argparse.Namespace) -> int:
    from relay.cli.hooks_report import run_fire

    return run_fire(options)


def _run_log(options: argparse.Namespace) -> int:
    from relay.cli.hooks_report import run_log

    return run_log(options)
