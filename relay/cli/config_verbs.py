"""``relay trust`` and ``relay config show|check``.

A file that is not trusted is never run: of it only its hash and its syntax are known.
"""

from __future__ import annotations

import json
import os
import shlex
import textwrap
from typing import Any

from relay.broker.client import check_person, connect
from relay.cli import door, output, table
from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
from relay.config import door as settings_door
from relay.config import programs
from relay.config.examine import Examined, examine_hook_file, examined
from relay.config.load import (
    LoadedConfig,
    compile_config,
    load,
    load_for_session,
    manifest_of,
    mistakes_of,
)
from relay.config.manifest import Manifest, read_manifest, write_manifest
from relay.config.mistakes import Mistakes
from relay.config.settings import keys, plain_values
from relay.config.static_check import check_source, idle_names
from relay.config.trust import (
    CONFIG_NAME,
    GONE,
    ConfigFile,
    candidates,
    find_config,
    is_trusted,
    place_of,
    project_root,
    read_config,
    revoked_via,
    set_aside_notice,
    trust,
    trusted_before,
    trusted_entry,
    untrust,
    user_config,
)
from relay.core.errors import ConfigError, NotFound, RelayError, UsageError
from relay.core.files import changed_files
from relay.core.paths import Home, is_within
from relay.core.processes import own_place
from relay.core.yaml_tree import YamlError
from relay.hooks.hook_files import is_hook_file
from relay.protocol.agent_ops import AGENTS

#: Stands for the names that a file registers when it runs.
UNKNOWN = "(known when it runs)"
_UNREAD = "what it registers is known when it has run: read it before you trust it"
_UNTOLD = "what it registers is not known: relay config check runs it and says more"


def add(verbs: Parser) -> None:
    said = (
        "Let a configuration or hook file run with its present content. A changed one asks again."
    )
    parser = verb(verbs, "trust", "relay trust --show\n  relay trust relay.yaml", said)
    parser.add_argument(
        "path", nargs="?", metavar="PATH", help="default: the one that applies here"
    )
    parser.add_argument("--show", action="store_true", help="only show it; change nothing")
    parser.add_argument("--revoke", action="store_true", help="revoke the trust")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run_trust)

    said = "Show or check the configuration that applies here."
    kinds = verb(verbs, "config", description=said).add_subparsers(alone="show")
    for name, function, text in (
        ("show", run_show, "the values that apply, and where each comes from"),
        ("check", run_check, "find mistakes; a file that is not trusted is read, not run"),
    ):
        kind = kinds.add_parser(name, help=text)
        kind.add_argument("path", nargs="?", metavar="PATH", help="default: what applies here")
        kind.add_argument("--json", action="store_true", help="print JSON")
        kind.set_defaults(run=function)
    said = "every key that a configuration can have, and what it holds"
    listed = kinds.add_parser("keys", help=said)
    listed.add_argument("--json", action="store_true", help="print JSON")
    listed.set_defaults(run=run_keys)


# -- trust


def run_trust(args: Options) -> int:
    """Run the file once, trust it and its programs as they are, and show what it registers."""
    home = Home.from_env()
    if args.revoke and args.show:
        raise UsageError("--show and --revoke cannot be combined", hint="relay trust --help")
    if not args.show:
        check_person(home, "say what is trusted")
    if args.revoke:
        return _revoke(home, args)
    file = _file(args.path)
    changed = _changes(home, file)
    is_new = not args.show and bool(changed or not is_trusted(home, file.path, file.sha256))
    runs: list[str] = []
    seen: Examined | None = None
    if _of_feature(file) or is_hook_file(file.path, file.data):
        runs, seen = _runs(file)
    else:
        compile_config(file)
    warnings = seen.warnings if seen else []
    # The bytes that are shown are trusted: a change in between is not trusted unseen.
    if not args.show:
        seen = seen or examined(file)
        if seen.mistakes:
            raise _refused(file, seen.mistakes, "so it is not trusted")
        warnings = seen.warnings + set_aside_notice(home)
        _trust(home, file, seen)
        if seen.manifest.settings["channel_adapters"] and file.path == user_config():
            connect(home).close()  # a broker keeps them connected
    entry, trusted = trusted_entry(home, file.path), is_trusted(home, file.path, file.sha256)
    found = seen.manifest if seen else _kept(home, file, trusted)
    hashes = seen.programs if seen else {}
    if trusted and entry is not None:
        hashes = dict(entry.programs or {})
    patterns = [name.removesuffix(":*") for name in found.patterns]
    record: dict[str, Any] = {
        "path": file.path,
        "sha256": file.sha256,
        "trusted": trusted,
        "via": entry.via if trusted and entry else revoked_via(home, file.path),
        "patterns": patterns,
        "hooks": found.hooks,
        "programs": hashes,
        "changed": changed,
        "problems": [*filter(None, [found.problem]), *warnings],
    }
    features = {
        one.key: one.summary(found.features.get(one.key)) for one in settings_door.settings()
    }
    more = {} if runs else {**found.more, **features}
    record |= {"runs": runs} if runs else more
    if args.json:
        output.as_json(record)
        return 0
    output.data(f"file          {file.path}")
    output.data(f"sha256        {file.sha256}")
    if not runs:
        output.data(f"patterns      {_names(patterns)}")
    output.data(f"hooks         {_names(found.hooks)}")
    for title, given in more.items():
        if given:
            shown = _table(given) if isinstance(given, dict) else _names(given)
            output.data(f"{title:<14}{shown}")
    for line in runs:
        output.data(f"runs          {line}")
    for path, sha256 in hashes.items():
        output.data(f"program       {path}  {sha256[:12]}")
    for path in changed:
        output.data(f"changed       {path}")
    by = f"{'' if trusted else ', taken back'}, from {record['via']}" if record["via"] else ""
    output.data(f"trusted       {_trust_word(home, file)}{by}")
    output.note_of_backslash("\n".join(runs))
    for line in record["problems"]:
        output.note(f"! {line}")
    if UNKNOWN in found.patterns:
        output.note(f"! {_UNTOLD if trusted else _UNREAD}")
    if is_new and not door.file_of_feature(file):
        _tell_of_agents(home, file)
    if args.show and not trusted:
        output.note(f"To let it run: relay trust {shlex.quote(file.path)}")
    return 0


def _tell_of_agents(home: Home, file: ConfigFile) -> None:
    """Name the agents that run already: each keeps what it was started with."""
    folder = os.path.dirname(file.path)
    try:
        with connect(home, start=False) as client:
            rows = client.request(AGENTS)["agents"]
    except RelayError:
        return  # no broker, so no agent
    names = [
        row["name"]
        for row in rows
        if row["pid"] is not None
        and (file.path == user_config() or is_within(row["cwd"] or "", folder))
    ]
    if names:
        output.note(
            f"{', '.join(names)} {'runs' if len(names) == 1 else 'run'} with the earlier"
            f" configuration: relay reload {' '.join(names)}"
        )


def trust_file(home: Home, file: ConfigFile) -> None:
    """Trust a file of hooks, or of a feature, as it is. Raises ConfigError, RelayError."""
    _trust(home, file, _runs(file)[1])


def _runs(file: ConfigFile) -> tuple[list[str], Examined]:
    """What a file that is no Python would run, a line each, and what else is known of it."""
    seen = _of_feature(file)
    if seen is None:
        try:
            return examine_hook_file(file)
        except ConfigError as error:
            for line in mistakes_of(error) if error.details.get("mistakes") else ():
                output.note(line)
            raise
    nothing = Manifest(patterns=[], hooks=[], events=[])
    return seen.runs, Examined(nothing, seen.programs, [], [])


def _of_feature(file: ConfigFile) -> door.FileOfFeature | None:
    """What a feature says of a file that is its own. Raises RelayError, after a line for each
    mistake where there are several."""
    try:
        return door.file_of_feature(file)
    except YamlError as error:
        if not error.mistakes[1:]:
            raise
        lines = [f"{file.path}:{one.line}: {one.text}" for one in error.mistakes]
        raise _refused(file, lines, "so it cannot be used") from None


def _changes(home: Home, file: ConfigFile) -> list[str]:
    """What is no longer as it was trusted: the file, or programs that it runs."""
    entry = trusted_entry(home, file.path)
    if entry is None:
        return []
    own = [] if entry.sha256 == file.sha256 else [file.path]
    return own + changed_files(entry.programs or {})


def _trust(home: Home, file: ConfigFile, seen: Examined) -> None:
    search = programs.search_path(file.path, project_root(os.getcwd()))
    trust(home, file.path, file.sha256, seen.programs, search, own_place())
    write_manifest(home, file.sha256, seen.manifest)


def _kept(home: Home, file: ConfigFile, trusted: bool) -> Manifest:
    """What the file registered when it last ran; one that may not run says nothing of itself."""
    found = read_manifest(home, file.sha256) if trusted else None
    return found or Manifest(patterns=[UNKNOWN], hooks=[UNKNOWN], events=[])


def _refused(file: ConfigFile, mistakes: list[str], end: str) -> ConfigError:
    """Say every mistake, a line each; the error that ends the verb."""
    details: dict[str, object] = {"mistakes": mistakes}
    for line in mistakes:
        output.note(line)
    many = "a mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
    return ConfigError(f"{file.path} has {many}, {end}", details=details)


# -- config show, config check


def run_show(args: Options) -> int:
    """Print every value and where it comes from. Runs the file only if it is trusted."""
    home = Home.from_env()
    path = find_config(os.getcwd(), args.path)
    loaded = load_for_session(home, os.getcwd(), args.path)
    if loaded.unusable is not None and args.json:
        raise loaded.unusable
    file = None if path is None else read_config(path)
    word = "none" if file is None else _trust_word(home, file)
    if file is not None and word != "yes":
        compile_config(file)
    patterns, hooks = manifest_of(loaded).patterns, _hooks(loaded)
    if file is not None and word != "yes":
        patterns, hooks = [*patterns, UNKNOWN], [*hooks, UNKNOWN]
    record = _record(file, word, loaded, patterns, hooks)
    if args.json:
        output.as_json(record)
        return 0
    if loaded.unusable is not None:
        record["warnings"].remove(loaded.unusable.line)
    _print_record(record)
    if loaded.unusable is not None:
        raise loaded.unusable  # what else applies has been shown
    return 0


def run_keys(args: Options) -> int:
    """Print the keys of ``config = {…}``."""
    known = keys()
    if args.json:
        output.as_json(known)
    else:
        width = table.columns() or 1000
        for key, text in sorted(known.items()):
            first, *more = textwrap.wrap(text, width - 14)
            output.data(f"{key:<13} {first}")
            for line in more:
                output.data(f"{'':<13} {line}")
    return 0


def run_check(args: Options) -> int:
    """Exit 0 when the file can be used, 2 (ConfigError) when not."""
    home = Home.from_env()
    file = _file(args.path)
    of_feature = _of_feature(file)
    trusted = is_trusted(home, file.path, file.sha256)
    record: dict[str, Any] = {"path": file.path, "sha256": file.sha256, "ok": True}
    warnings: list[str] = []
    if of_feature is not None:
        held = ", ".join(f"{name}: {number}" for name, number in of_feature.counts.items())
        said = f"no mistake found ({held})"
        record |= {**of_feature.counts, "trusted": trusted}
    elif is_hook_file(file.path, file.data):
        runs, seen = _runs(file)
        warnings = seen.warnings
        said = f"hooks that run: {len(runs)}"
        record |= {"hooks": seen.manifest.hooks, "warnings": warnings, "trusted": trusted}
    else:
        patterns, hooks = list[str](), list[str]()
        mistakes = Mistakes(file.path, file.data.decode(errors="replace"))
        if not trusted:
            compile_config(file)
        try:
            if trusted:
                loaded = load(file, home=home)
                patterns, hooks = manifest_of(loaded).patterns, _hooks(loaded)
                warnings = _warnings(loaded)
                said = f"no mistake found (patterns: {len(patterns)}, hooks: {len(hooks)})"
            else:
                check_source(file.data, mistakes)
                mistakes.check()
                warnings = idle_names(file.data)
                said = "no mistake found; it did not run, because it is not trusted"
        except ConfigError as error:
            raise _refused(file, mistakes_of(error), "so it cannot be used") from None
        record |= {"executed": trusted, "patterns": patterns, "hooks": hooks, "warnings": warnings}
    if args.json:
        output.as_json(record)
        return 0
    output.data(f"{file.path}: {said}")
    for warning in warnings:
        output.note(f"! {warning}")
    if not trusted:
        output.note(f"To let it run: relay trust {shlex.quote(file.path)}")
    return 0


def _warnings(loaded: LoadedConfig) -> list[str]:
    of_features = [
        line
        for setting, value in loaded.settings.features.items()
        for line in setting.warnings(value, os.environ)
    ]
    return [*loaded.warnings, *loaded.hook_problems, *of_features]


def _revoke(home: Home, args: Options) -> int:
    # The file itself may be gone already: its trust can still be taken back.
    path = place_of(args.path) if args.path else find_config(os.getcwd()) or _gone(home)
    had = untrust(home, args.path or path, own_place()) if path else False
    if path is None or not had:
        raise NotFound(
            f"{path or 'no configuration here'} is not trusted", hint="name the file: relay trust"
        )
    if args.json:
        output.as_json({"path": path, "trusted": False, "via": revoked_via(home, path)})
    else:
        output.data(f"{path} does not run any more")
    return 0


def _gone(home: Home) -> str | None:
    """The nearest file that was trusted for this folder and is gone."""
    gone = [one.path for one in candidates(home, os.getcwd()) if one.state == GONE]
    return gone[-1] if gone else None


def _file(path: str | None) -> ConfigFile:
    found = find_config(os.getcwd(), path)
    if found is None and os.path.isdir(CONFIG_NAME):
        found = place_of(CONFIG_NAME)  # reading it says so
    if found is None:
        # A team's file is taken only by its name.
        hint = "name the file: relay.yaml" if path is None and os.path.exists("relay.yaml") else ""
        raise NotFound(f"there is no {CONFIG_NAME} here", hint=hint or "write one with: relay init")
    return read_config(found)


def _trust_word(home: Home, file: ConfigFile) -> str:
    if is_trusted(home, file.path, file.sha256):
        return "yes"
    return "changed" if trusted_before(home, file.path) else "no"


def _names(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _hooks(loaded: LoadedConfig) -> list[str]:
    hooks = loaded.registry.all_hooks()
    named = [one.event.registration + ("" if one.trusted else " (not trusted)") for one in hooks]
    return named + [f"route {one.name}" for one in loaded.registry.routes()]


def _record(
    file: ConfigFile | None,
    trusted: str,
    loaded: LoadedConfig,
    patterns: list[str],
    hooks: list[str],
) -> dict[str, Any]:
    settings = loaded.settings
    values: dict[str, Any] = {
        "idle_seconds": settings.idle_seconds,
        "timeout": settings.handler_timeout,
        "end_seconds": settings.end_seconds,
        "merge": settings.merge,
        "mcp": settings.mcp,
        "task": settings.task,
    }
    values |= plain_values(settings) | ({"may": dict(settings.may)} if settings.may else {})
    for setting in settings_door.settings():
        value = settings.of(setting)
        shown = setting.shown(value)
        if shown is None and setting.key in loaded.origins:
            shown = setting.summary(setting.kept(value))
        if shown is not None:
            values[setting.key] = shown
    return {
        "path": file.path if file is not None else None,
        "sha256": file.sha256 if file is not None else None,
        "trusted": trusted,
        "files": list(loaded.files),
        "settings": {
            key: {"value": value, "from": loaded.origins.get(key, "default")}
            for key, value in values.items()
        },
        "patterns": patterns,
        "hooks": hooks,
        "warnings": [*loaded.not_applied, *_warnings(loaded)],
    }


def _print_record(record: dict[str, Any]) -> None:
    path = record["path"]
    if path:
        word = {"yes": "trusted", "no": "not trusted", "changed": "changed since you trusted it"}
        output.data(f"file          {output.short_path(path)}  ({word[record['trusted']]})")
    for other in reversed(record["files"]):
        if other != path:
            output.data(f"file          {output.short_path(other)}  (trusted)")
    if not path and not record["files"]:
        output.data("file          none (relay init writes one)")
    if record["path"] or record["files"]:
        output.data(f"patterns      {_names(record['patterns'])}")
        output.data(f"hooks         {_names(record['hooks'])}")
    for key, entry in record["settings"].items():
        value = "-" if entry["value"] is None else entry["value"]
        if isinstance(value, dict):
            value = _table(value)
        elif isinstance(value, list):
            value = _names(value)
        output.data(f"{key:<13} {_shown(value)}  ({output.short_path(entry['from'])})")
    for warning in record["warnings"]:
        output.note(f"! {warning}")


def _table(value: dict[str, object]) -> str:
    return ", ".join(f"{name} {_shown(item)}" for name, item in value.items() if item != {})


def _shown(item: object) -> str:
    if isinstance(item, float):
        return f"{item:g}"
    if isinstance(item, list) and all(isinstance(one, str) for one in item):
        return " ".join(item) or "-"
    return json.dumps(item, ensure_ascii=False) if isinstance(item, dict) else str(item)
