"""``relay init``, ``relay trust`` and ``relay config show|check``.

A file that is not trusted is never run: of it only its hash and its syntax are known.
"""

from __future__ import annotations

import json
import os
import shlex
from typing import Any

from relay.cli import output
from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
from relay.config.load import LoadedConfig, compile_config, load, manifest_of, record_manifest
from relay.config.manifest import Manifest, read_manifest
from relay.config.settings import Settings
from relay.config.trust import (
    CONFIG_NAME,
    ConfigFile,
    find_config,
    is_trusted,
    read_config,
    trust,
    trusted_before,
    untrust,
)
from relay.core.errors import ConfigError, NotFound, RelayError, UsageError
from relay.core.files import write_atomically
from relay.core.paths import Home
from relay.directive.escape import clean
from relay.hooks.hook_files import is_hook_file, read_hook_file
from relay.hooks.hook_types import Url

#: Stands for the names that a file registers when it runs.
UNKNOWN = "(known when it runs)"
_UNREAD = "what it registers is known when it has run: read it before you trust it"
_UNTOLD = "what it registers is not known: relay config check runs it and says more"

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
    parser.add_argument("--show", action="store_true", help="only show it; change nothing")
    parser.add_argument("--revoke", action="store_true", help="take the trust back")
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
        output.as_json({"path": path, "next": next_steps})
    else:
        output.data(path)
        output.note(f"Edit it. It runs only once you have said so: {next_steps[0]}")
        output.note(f"Then start an agent with it: {next_steps[1]}")
    return 0


# -- trust


def run_trust(args: Options) -> int:
    """Pin the file's hash, run it once, and show what it registers."""
    home = Home.from_env()
    if args.revoke and args.show:
        raise UsageError("--show and --revoke exclude each other", hint="relay trust --help")
    if args.revoke:
        return _revoke(home, args)
    file = _file(args.path)
    if is_hook_file(file.path, file.data):
        runs, found = _hook_file(file)
    else:
        compile_config(file)
        runs, found = [], None
    # The hash that is shown is pinned: a change in between is not trusted unseen.
    if not args.show:
        trust(home, file.path, file.sha256)
    trusted = is_trusted(home, file.path, file.sha256)
    if found is None:
        found = _registers(home, file, trusted, anew=not args.show)
    patterns = [name.removesuffix(":*") for name in found.patterns]
    record: dict[str, Any] = {
        "path": file.path,
        "sha256": file.sha256,
        "trusted": trusted,
        "patterns": patterns,
        "hooks": found.hooks,
        "problems": [found.problem] if found.problem else [],
    }
    record |= {"runs": runs} if runs else {"memory": found.memory}
    if args.json:
        output.as_json(record)
        return 0
    output.data(f"file          {clean(file.path)}")
    output.data(f"sha256        {file.sha256}")
    if not runs:
        output.data(f"patterns      {_names(patterns)}")
    output.data(f"hooks         {_names(found.hooks)}")
    if found.memory is not None:
        output.data(f"memory        {clean(_table(found.memory))}")
    for line in runs:
        output.data(f"runs          {line}")
    output.data(f"trusted       {_trust_word(home, file)}")
    if found.problem:
        _say(f"! {found.problem}")
    if UNKNOWN in found.patterns:
        _say(f"! {_UNTOLD if trusted else _UNREAD}")
    if args.show and not trusted:
        _say(f"To let it run: relay trust {shlex.quote(file.path)}")
    return 0


def _registers(home: Home, file: ConfigFile, trusted: bool, *, anew: bool) -> Manifest:
    """What the file registers; a file that may not run says nothing of itself."""
    found = None
    if trusted:
        found = record_manifest(home, file) if anew else read_manifest(home, file)
    return found or Manifest(patterns=[UNKNOWN], hooks=[UNKNOWN], events=[])


# -- config show, config check


def run_show(args: Options) -> int:
    """Print every value and where it comes from. Runs the file only if it is trusted."""
    home = Home.from_env()
    path = find_config(os.getcwd(), args.path)
    if path is None:
        record = _record(None, "none", Settings(), [], [], [])
    else:
        file = read_config(path)
        word = _trust_word(home, file)
        if word == "yes":
            loaded = load(file, home=home)
            found = manifest_of(loaded)
            hooks = _hooks(loaded)
            record = _record(file, word, loaded.settings, found.patterns, hooks, _warnings(loaded))
        else:
            compile_config(file)
            record = _record(file, word, Settings(), [UNKNOWN], [UNKNOWN], [])
    if args.json:
        output.as_json(record)
    else:
        _print_record(record)
    return 0


def run_check(args: Options) -> int:
    """Exit 0 when the file can be used, 2 (ConfigError) when not."""
    home = Home.from_env()
    file = _file(args.path)
    executed = is_trusted(home, file.path, file.sha256)
    patterns: list[str] = []
    hooks: list[str] = []
    if executed:
        loaded = load(file, home=home)
        patterns, hooks, warnings = manifest_of(loaded).patterns, _hooks(loaded), _warnings(loaded)
        said = f"no mistake found (patterns: {len(patterns)}, hooks: {len(hooks)})"
    else:
        compile_config(file)
        warnings = ["it is not trusted, so it was read but not run: handlers are unchecked"]
        said = "no mistake found in its syntax"
    if args.json:
        output.as_json(
            {
                "path": file.path,
                "sha256": file.sha256,
                "ok": True,
                "executed": executed,
                "patterns": patterns,
                "hooks": hooks,
                "warnings": warnings,
            }
        )
        return 0
    output.data(f"{clean(file.path)}: {said}")
    for warning in warnings:
        _say(f"! {warning}")
    if not executed:
        _say(f"To let it run: relay trust {shlex.quote(file.path)}")
    return 0


def _warnings(loaded: LoadedConfig) -> list[str]:
    from relay.cli.memory_checks import config_warnings

    memory = config_warnings(loaded.settings.memory, os.environ)
    return [*loaded.warnings, *loaded.hook_problems, *memory]


def _revoke(home: Home, args: Options) -> int:
    # The file itself may be gone already: its trust can still be taken back.
    path = os.path.realpath(args.path) if args.path else find_config(os.getcwd())
    had = untrust(home, path) if path else False
    if path is None or not had:
        raise NotFound(
            f"{path or 'no configuration here'} is not trusted", hint="name the file: relay trust"
        )
    if args.json:
        output.as_json({"path": path, "trusted": False})
    else:
        output.data(f"{path} does not run any more")
    return 0


def _file(path: str | None) -> ConfigFile:
    found = find_config(os.getcwd(), path)
    if found is None:
        raise NotFound(f"there is no {CONFIG_NAME} here", hint="write one with: relay init")
    return read_config(found)


def _hook_file(file: ConfigFile) -> tuple[list[str], Manifest]:
    """What a hook file would run, a line each, and its hooks. Raises ConfigError if nothing."""
    specs, problems = read_hook_file(file.data, file.path)
    if not specs:
        raise ConfigError(
            f"{file.path} has no hook that relay could run" + "".join(f"; {p}" for p in problems),
            hint="name a settings.json of Claude Code or Gemini CLI with hooks, or a Python file",
        )
    runs = []
    for spec in specs:
        action = spec.action
        what = action.url if isinstance(action, Url) else action.shell or shlex.join(action.argv)
        matcher = f" ({spec.matcher})" if spec.matcher else ""
        # On one line each: a command with line ends must not look like several.
        runs.append(clean(f"{spec.event.registration}{matcher}: {what}").replace("\n", " ⏎ "))
    hooks = list(dict.fromkeys(spec.event.registration for spec in specs))
    return runs, Manifest(patterns=[], hooks=hooks, events=[], problem="; ".join(problems))


def _trust_word(home: Home, file: ConfigFile) -> str:
    if is_trusted(home, file.path, file.sha256):
        return "yes"
    return "changed" if trusted_before(home, file.path) else "no"


def _names(names: list[str]) -> str:
    # From a file that nobody may have read yet: it must not be able to draw on the terminal.
    return clean(", ".join(names)) or "none"


def _hooks(loaded: LoadedConfig) -> list[str]:
    return [
        hook.event.registration + ("" if hook.trusted else " (not trusted)")
        for hook in loaded.registry.all_hooks()
    ]


def _record(
    file: ConfigFile | None,
    trusted: str,
    settings: Settings,
    patterns: list[str],
    hooks: list[str],
    warnings: list[str] | tuple[str, ...],
) -> dict[str, Any]:
    origin = file.path if file is not None else ""
    values = {
        "idle_seconds": settings.idle_seconds,
        "timeout": settings.handler_timeout,
        "end_seconds": settings.end_seconds,
        "memory": settings.memory.shown(),
        "task": settings.task,
    }
    return {
        "path": file.path if file is not None else None,
        "sha256": file.sha256 if file is not None else None,
        "trusted": trusted,
        "settings": {
            key: {"value": value, "from": origin if key in settings.given else "default"}
            for key, value in values.items()
        },
        "patterns": patterns,
        "hooks": hooks,
        "warnings": list(warnings),
    }


def _print_record(record: dict[str, Any]) -> None:
    output.data(f"file          {record['path'] or 'none (relay init writes one)'}")
    if record["path"]:
        output.data(f"trusted       {record['trusted']}")
        output.data(f"patterns      {_names(record['patterns'])}")
        output.data(f"hooks         {_names(record['hooks'])}")
    for key, entry in record["settings"].items():
        value = "-" if entry["value"] is None else entry["value"]
        if isinstance(value, dict):
            value = _table(value)
        output.data(f"{key:<13} {clean(str(value))}  ({clean(entry['from'])})")
    for warning in record["warnings"]:
        _say(f"! {warning}")
    if record["trusted"] in ("no", "changed"):
        _say("It does not run, so the defaults apply. To let it run: relay trust")


def _table(value: dict[str, object]) -> str:
    return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())


def _shown(item: object) -> str:
    return json.dumps(item, ensure_ascii=False) if isinstance(item, dict) else str(item)


def _say(text: str) -> None:
    output.note(clean(text))
