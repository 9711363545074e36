"""``relay init``, ``relay trust`` and ``relay config show|check``: their options, and init."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from relay.config.trust import CONFIG_NAME
from relay.core.errors import RelayError
from relay.core.files import write_atomically

TEMPLATE = '''\
"""What relay does for the agents that are wrapped in this folder.

This file runs only after: relay trust. After every change relay asks for that again.
"""

# How long an agent must be silent before on_idle runs, and how long a handler may take: seconds.
config = {
    "idle_seconds": 30,
    "timeout": 30,
}


# An agent that writes the line   @hello:world How are you?   reaches this handler:
#   target  "world"
#   message "How are you?"
#   ctx     who the agent is (ctx.agent_name, ctx.working_dir, ctx.env, ctx.task) and what can be
#           done: ctx.inject(text), ctx.send(to, text), ctx.notify(topic, text)
# A string that comes back is given to the agent. It may also be None, or
# {"inject": "text", "stop": True}; stop keeps other handlers from running.
def hello(target, message, ctx):
    return f"{ctx.agent_name} said to {target}: {message}"


# "hello" is every @hello:…; "hello:world" only that one; "hello:w*" is a glob.
patterns = {
    "hello": hello,
}


# Handlers may be async. Those of events: on_session_start(ctx), on_session_end(ctx),
# on_output(output, ctx), on_message_received(sender, body, ctx), on_idle(ctx).
async def on_session_start(ctx):
    if ctx.task:
        return f"Your task: {ctx.task}"


hooks = {
    "on_session_start": on_session_start,
}
'''


def add(subparsers: Any) -> None:
    """Add the verbs to the command line."""
    init = subparsers.add_parser(
        "init",
        help=f"write a commented {CONFIG_NAME} in this folder",
        description=f"Write a commented {CONFIG_NAME} in this folder.",
    )
    init.add_argument("--force", action="store_true", help="replace the file that is there")
    _json_option(init)
    init.set_defaults(run=run_init)

    verb = subparsers.add_parser(
        "trust",
        help="let a configuration or hook file run, as it is now",
        description="Let a configuration or hook file run, as it is now. A changed one asks again.",
    )
    verb.add_argument("path", nargs="?", metavar="PATH", help="default: the one that applies here")
    choice = verb.add_mutually_exclusive_group()
    choice.add_argument("--show", action="store_true", help="only show it; change nothing")
    choice.add_argument("--revoke", action="store_true", help="take the trust back")
    _json_option(verb)
    verb.set_defaults(run=run_trust)

    group = subparsers.add_parser(
        "config",
        help="show or check the configuration",
        description="Show or check the configuration that applies here.",
    )
    kinds = group.add_subparsers(dest="config_verb", metavar="VERB", required=True)
    for name, function, text in (
        ("show", run_show, "the values that apply, and where each comes from"),
        ("check", run_check, "find mistakes; a file that is not trusted is read, not run"),
    ):
        kind = kinds.add_parser(name, help=text, description=text.capitalize() + ".")
        kind.add_argument("path", nargs="?", metavar="PATH", help="default: what applies here")
        _json_option(kind)
        kind.set_defaults(run=function)


def run_init(args: argparse.Namespace) -> int:
    """Create the file; an existing one is only replaced with --force."""
    path = os.path.join(os.getcwd(), CONFIG_NAME)
    try:
        if args.force:
            write_atomically(path, TEMPLATE, mode=0o644)
        else:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(TEMPLATE)
    except FileExistsError:
        raise RelayError(
            f"{path} is already there", hint="edit it, or replace it with: relay init --force"
        ) from None
    except OSError as error:
        raise RelayError(
            f"cannot write {path}: {error.strerror}", hint="check the folder's permissions"
        ) from None
    next_steps = ["relay trust", "relay wrap --name Alice -- claude"]
    if args.json:
        print(json.dumps({"path": path, "next": next_steps}, indent=2))
    else:
        print(path)
        print(f"Edit it. It runs only once you have said so: {next_steps[0]}", file=sys.stderr)
        print(f"Then start an agent with it: {next_steps[1]}", file=sys.stderr)
    return 0


def run_trust(options: argparse.Namespace) -> int:
    """Show what the file would register, and pin its hash."""
    from relay.cli import config_report

    return config_report.run_trust(options)


def run_show(options: argparse.Namespace) -> int:
    """Print every value and where it comes from. Runs the file only if it is trusted."""
    from relay.cli import config_report

    return config_report.run_show(options)


def run_check(options: argparse.Namespace) -> int:
    """Exit 0 when the file can be used, 2 (ConfigError) when not."""
    from relay.cli import config_report

    return config_report.run_check(options)


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
