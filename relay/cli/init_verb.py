"""The verb ``init``: a configuration to begin with, or what a feature begins with."""

from __future__ import annotations

import os

from relay.cli import door, output
from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
from relay.config.trust import CONFIG_NAME
from relay.core.errors import RelayError, UsageError
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
# (without an agent:  relay hooks test @hello:world "How are you?")
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
    init = verb(verbs, "init")
    init.add_argument("--force", action="store_true", help="replace an existing file")
    for name, (text, _) in door.tables("INIT").items():
        init.add_argument(f"--{name}", action="store_true", help=text)
    init.add_argument("--json", action="store_true", help="print JSON")
    init.set_defaults(run=run_init)


def run_init(args: Options) -> int:
    """Create the file; an existing one is only replaced with --force."""
    others = door.tables("INIT")
    chosen = [name for name in others if getattr(args, name)]
    if len(chosen) > 1:
        raise UsageError(
            f"--{chosen[0]} and --{chosen[1]} write different files", hint="give one of them"
        )
    for name in chosen:
        _, other = others[name]
        status: int = other(args)
        return status
    path = write(CONFIG_NAME, TEMPLATE, args)
    next_steps = ["relay trust", "relay wrap --name Alice -- claude"]
    if args.json:
        output.as_json({"path": path, "next": next_steps})
        return 0
    output.data(path)
    output.note(f"Edit it. It runs only once you trust it: {next_steps[0]}")
    output.note(f"Then start an agent with it: {next_steps[1]}")
    return 0


def write(name: str, text: str, args: Options, option: str = "") -> str:
    """Write a file of this folder for ``relay init [--option]``; its path. Raises RelayError."""
    path = os.path.join(os.getcwd(), name)
    try:
        if args.force:
            write_atomically(path, text, mode=0o644)
        else:
            write_new(path, text)
    except FileExistsError:
        again = " ".join(filter(None, ("relay init", option, "--force")))
        raise RelayError(
            f"{path} already exists", hint=f"edit it, or replace it with: {again}"
        ) from None
    except OSError as error:
        raise RelayError(
            f"cannot write {path}: {error.strerror}", hint="check the folder's permissions"
        ) from None
    return path


def write_new(path: str, text: str) -> None:
    """Write a file that is not there yet, also not as a link. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, 0o644), "w", encoding="utf-8") as file:
        file.write(text)
