"""What ``relay trust`` and ``relay config show|check`` do. Imported when one of them runs."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import Any

from relay.cli.parser import Options
from relay.config.load import LoadedConfig, load
from relay.config.outline import COMPUTED, Outline, outline
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
from relay.core.errors import ConfigError, NotFound
from relay.core.paths import Home
from relay.directive.escape import clean
from relay.hooks.hook_files import is_hook_file, read_hook_file
from relay.hooks.hook_types import Url


def run_trust(args: Options) -> int:
    """Show what the file would register, and pin its hash."""
    home = Home.from_env()
    if args.revoke:
        return _revoke(home, args)
    file = _file(args.path)
    hook_file = is_hook_file(file.path, file.data)
    runs, found = _hook_file(file) if hook_file else ([], outline(file))
    # The hash that is shown is pinned: a change in between is not trusted unseen.
    if not args.show:
        trust(home, file.path, file.sha256)
    record = {
        "path": file.path,
        "sha256": file.sha256,
        "trusted": is_trusted(home, file.path, file.sha256),
        "patterns": found.patterns,
        "hooks": found.hooks,
        "problems": found.problems,
    }
    if hook_file:
        record["runs"] = runs
    else:
        record["memory"] = _memory_said(found)
    if args.json:
        _print_json(record)
        return 0
    print(f"file          {clean(file.path)}")
    print(f"sha256        {file.sha256}")
    if not hook_file:
        print(f"patterns      {_names(found.patterns)}")
    print(f"hooks         {_names(found.hooks)}")
    said = None if hook_file else _memory_said(found)
    if said is not None:
        print(f"memory        {clean(_table(said))}")
    for line in runs:
        print(f"runs          {line}")
    print(f"trusted       {_trust_word(home, file)}")
    _say_problems(found)
    if args.show and not record["trusted"]:
        _say(f"To let it run: relay trust {shlex.quote(file.path)}")
    return 0


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
            warnings = [*loaded.warnings, *loaded.hook_problems, *_of_memory(loaded.settings)]
            patterns, hooks = _patterns(loaded), _hooks(loaded)
            record = _record(file, word, loaded.settings, patterns, hooks, warnings)
        else:
            found = outline(file)
            record = _record(file, word, Settings(), found.patterns, found.hooks, found.problems)
    if args.json:
        _print_json(record)
    else:
        _print_record(record)
    return 0


def run_check(args: Options) -> int:
    """Exit 0 when the file can be used, 2 (ConfigError) when not."""
    home = Home.from_env()
    file = _file(args.path)
    executed = is_trusted(home, file.path, file.sha256)
    warnings: list[str] = []
    if executed:
        loaded = load(file, home=home)
        patterns, hooks = _patterns(loaded), _hooks(loaded)
        warnings += [*loaded.warnings, *loaded.hook_problems, *_of_memory(loaded.settings)]
    else:
        found = outline(file)
        if found.problems:
            raise ConfigError(
                f"{file.path}: {'; '.join(found.problems)}",
                hint="correct it, then: relay config check",
                details={"problems": list(found.problems)},
            )
        patterns, hooks = found.patterns, found.hooks
        warnings += _of_memory(found.settings)
        warnings.append("it is not trusted, so it was read but not run: handlers are unchecked")
    if args.json:
        _print_json(
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
    print(f"{clean(file.path)}: no mistake found (patterns: {len(patterns)}, hooks: {len(hooks)})")
    for warning in warnings:
        _say(f"! {warning}")
    if not executed:
        _say(f"To let it run: relay trust {shlex.quote(file.path)}")
    return 0


def _of_memory(settings: Settings) -> list[str]:
    from relay.cli.memory_checks import config_warnings

    return config_warnings(settings.memory, os.environ)


def _revoke(home: Home, args: Options) -> int:
    # The file itself may be gone already: its trust can still be taken back.
    path = os.path.realpath(args.path) if args.path else find_config(os.getcwd())
    had = untrust(home, path) if path else False
    if path is None or not had:
        raise NotFound(
            f"{path or 'no configuration here'} is not trusted", hint="name the file: relay trust"
        )
    if args.json:
        _print_json({"path": path, "trusted": False})
    else:
        print(f"{path} does not run any more")
    return 0


def _file(path: str | None) -> ConfigFile:
    found = find_config(os.getcwd(), path)
    if found is None:
        raise NotFound(f"there is no {CONFIG_NAME} here", hint="write one with: relay init")
    return read_config(found)


def _hook_file(file: ConfigFile) -> tuple[list[str], Outline]:
    """What a hook file would run, a line each, and its outline. Raises ConfigError if nothing."""
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
    return runs, Outline(hooks=hooks, problems=problems)


def _trust_word(home: Home, file: ConfigFile) -> str:
    if is_trusted(home, file.path, file.sha256):
        return "yes"
    return "changed" if trusted_before(home, file.path) else "no"


def _names(names: list[str]) -> str:
    # From a file that nobody may have read yet: it must not be able to draw on the terminal.
    return clean(", ".join(names)) or "none"


def _patterns(loaded: LoadedConfig) -> list[str]:
    return [f"{p.namespace}:{p.target}" for p in loaded.registry.patterns()]


def _hooks(loaded: LoadedConfig) -> list[str]:
    return [
        hook.event.registration + ("" if hook.trusted else " (not trusted)")
        for hook in loaded.registry.all_hooks()
    ]


def _memory_said(found: Outline) -> dict[str, object] | None:
    """Where the file would have memories, and who would be asked; None when it does not say."""
    if "memory" in found.computed:
        return {"backend": COMPUTED}
    return found.settings.memory.shown() if "memory" in found.settings.given else None


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
    print(f"file          {record['path'] or 'none (relay init writes one)'}")
    if record["path"]:
        print(f"trusted       {record['trusted']}")
        print(f"patterns      {_names(record['patterns'])}")
        print(f"hooks         {_names(record['hooks'])}")
    for key, entry in record["settings"].items():
        value = "-" if entry["value"] is None else entry["value"]
        if isinstance(value, dict):
            value = _table(value)
        print(f"{key:<13} {clean(str(value))}  ({clean(entry['from'])})")
    for warning in record["warnings"]:
        _say(f"! {warning}")
    if record["trusted"] in ("no", "changed"):
        _say("It does not run, so the defaults apply. To let it run: relay trust")


def _table(value: dict[str, object]) -> str:
    return ", ".join(f"{name} {_shown(item)}" for name, item in value.items())


def _shown(item: object) -> str:
    return json.dumps(item, ensure_ascii=False) if isinstance(item, dict) else str(item)


def _say_problems(found: Outline) -> None:
    for problem in found.problems:
        _say(f"! {problem}")
    if COMPUTED in found.patterns + found.hooks:
        _say("! some names are computed when the file runs: read it before you trust it")


def _print_json(record: dict[str, Any]) -> None:
    print(json.dumps(record, indent=2))


def _say(text: str) -> None:
    print(clean(text), file=sys.stderr)
