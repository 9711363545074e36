"""``relay init``, ``relay trust`` and ``relay config show|check``: their options, and init."""

from __future__ import annotations

import json
import os
import sys

from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
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


def add(verbs: Parser) -> None:
    """Declare the verbs."""
    init = verb(verbs, "init")
    init.add_argument("--force", action="store_true", help="replace the file that is there")
    init.add_argument("--json", action="store_true", help="print JSON")
    init.set_defaults(run=run_init)

    said = "Let a configuration or hook file run, as it is now. A changed one asks again."
    parser = verb(verbs, "trust", description=said)
    parser.add_argument(
        "path", nargs="?", metavar="PATH", help="default: the one that applies here"
    )
    one_of: list[str] = []
    parser.add_argument(
        "--show", action="store_true", help="only show it; change nothing", excludes=one_of
    )
    parser.add_argument(
        "--revoke", action="store_true", help="take the trust back", excludes=one_of
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_trust)

    said = "Show or check the configuration that applies here."
    kinds = verb(verbs, "config", description=said).add_subparsers(metavar="VERB")
    for name, function, text in (
        ("show", run_show, "the values that apply, and where each comes from"),
        ("check", run_check, "find mistakes; a file that is not trusted is read, not run"),
    ):
        kind = kinds.add_parser(name, help=text, description=text.capitalize() + ".")
        kind.add_argument("path", nargs="?", metavar="PATH", help="default: what applies here")
        kind.add_argument("--json", action="store_true", help="print JSON")
        kind.set_defaults(run=function)


def run_init(args: Options) -> int:
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


def run_trust(options: Options) -> int:
    """Show what the file would register, and pin its hash."""
    from relay.cli import config_report

    return config_report.run_trust(options)


def run_show(options: Options) -> int:
    """Print every value and where it comes from. Runs the file only if it is trusted."""
    from relay.cli import config_report

    return config_report.run_show(options)


def run_check(options: Options) -> int:
    """Exit 0 when the file can be used, 2 (ConfigError) when not."""
    from relay.cli import config_report

    return config_report.run_check(options)
