"""The configuration: load the files that apply, check what they say, hand over their handlers.

Two ways of writing one file are equal: dictionaries named ``patterns``, ``hooks`` and ``config``,
or ``relay = Relay()`` with decorators. What is executed are exactly the bytes that were checked
for trust (``relay.config.trust``). A file stands alone: its folder is not importable, because the
hash would not cover what lies there. Several files add up: hooks all run, and of settings and of
handlers of one pattern those of the nearest file count.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
import threading
import traceback
import types
from dataclasses import dataclass, field, replace
from typing import Any

from relay.config import programs
from relay.config.manifest import Manifest, every_event, may_guard, read_manifest, write_manifest
from relay.config.mistakes import Mistakes
from relay.config.settings import (
    Settings,
    apply_dictionaries,
    merged,
    not_installed,
    own_only,
    plain_values,
    without,
)
from relay.config.static_check import idle_names
from relay.config.trust import (
    DAMAGED,
    TRUSTED,
    ConfigFile,
    FoundConfig,
    candidates,
    found_at,
    place_of,
    read_config,
    trusted_entry,
    user_config,
)
from relay.core.errors import ConfigError, RelayError
from relay.core.paths import Home, config_base
from relay.directive.escape import clean
from relay.hooks.dialects import PROJECT_VARIABLES
from relay.hooks.events import OF_BROKER, HookEventName
from relay.hooks.hook_types import Command, HookDefinition
from relay.hooks.registry import Registry

#: How long the file may take to run, in seconds.
LOAD_TIMEOUT = 10.0
#: The name under which a file's module runs begins so: not ``__main__``, so that a script's guard
#: works.
MODULE_NAME = "relay_config"

#: A line by which a Python file says how it is encoded.
_CODING = re.compile(rb"[ \t\f]*#.*?coding[:=]")

_loading = threading.local()


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The configuration of one session: what one file says, or all that apply together."""

    #: The nearest file that was run, and its hash; None where none was.
    path: str | None
    registry: Registry
    settings: Settings
    sha256: str | None
    #: The path of the nearest file that applies but may not run.
    untrusted: str | None = None
    #: Lines for people about what is allowed but looks like a mistake.
    warnings: tuple[str, ...] = ()
    #: Lines for people about hook files of which not every hook runs.
    hook_problems: tuple[str, ...] = ()
    #: Why a trusted file could not be used: where it keeps memories is then unknown.
    unusable: RelayError | None = None
    #: A line for each file that is not applied as it stands.
    not_applied: tuple[str, ...] = ()
    #: Why hooks that guard tools may be missing; "" when none is.
    unguarded: str = ""
    #: The files that were run, the farthest first, and which of them gave each setting.
    files: tuple[str, ...] = ()
    origins: dict[str, str] = field(default_factory=dict)


def load_for_session(home: Home, cwd: str, explicit: str | None = None) -> LoadedConfig:
    """The configuration that applies in ``cwd``: all trusted files that apply, added up.

    What is not trusted is left unexecuted, and a trusted file that cannot be used costs its own
    part; the result says so. Raises ConfigError when ``explicit`` is not there.
    """
    whole = LoadedConfig(None, Registry(), Settings(), None)
    for one in candidates(home, cwd, explicit):
        whole = _with(whole, one, home)
    return whole


def load_trusted(home: Home, path: str, sha256: str) -> LoadedConfig:
    """The one file at ``path``, if it still is what was trusted, and what the hash says.

    Raises ConfigError.
    """
    found = found_at(home, path)
    if found is None or found.file is None or found.state != TRUSTED or found.problem:
        raise ConfigError(f"{path} is not trusted" if found is None else found.notice)
    if found.file.sha256 != sha256:
        raise ConfigError(f"{path} has been trusted anew")
    try:
        loaded = load(found.file, home=home)
    except RelayError as error:
        _remember(home, found.file, unusable_manifest(error))
        raise
    _remember(home, found.file, manifest_of(loaded))
    return loaded


def _with(whole: LoadedConfig, one: FoundConfig, home: Home) -> LoadedConfig:
    """``whole`` and what ``one``, which is nearer, adds to it."""
    if one.state != TRUSTED or one.file is None:
        entry = one.entry
        shut = entry is not None and may_guard(home, entry.sha256)
        return replace(
            whole,
            untrusted=whole.untrusted if one.state == DAMAGED else one.path,
            not_applied=(*whole.not_applied, one.notice),
            unguarded=whole.unguarded or (one.notice if shut else ""),
        )
    try:
        loaded = load(one.file, home=home)
    except RelayError as error:
        _remember(home, one.file, unusable_manifest(error))
        return replace(
            whole,
            unusable=whole.unusable or error,
            not_applied=(*whole.not_applied, error.line),
            unguarded=whole.unguarded or error.line,
        )
    _remember(home, one.file, manifest_of(loaded))
    whole.registry.include(loaded.registry)
    settings = loaded.settings
    if one.path != user_config():
        settings = without(settings, own_only(settings))
    given = dict.fromkeys(settings.given, one.path)
    return replace(
        whole,
        path=one.path,
        sha256=one.file.sha256,
        settings=merged(whole.settings, settings),
        warnings=(*whole.warnings, *loaded.warnings),
        hook_problems=(*whole.hook_problems, *loaded.hook_problems),
        unguarded=whole.unguarded or loaded.unguarded,
        files=(*whole.files, one.path),
        origins={**whole.origins, **given},
    )


def _remember(home: Home, file: ConfigFile, found: Manifest) -> None:
    """Keep what ``file`` registers here for the next start, if that is news."""
    kept = read_manifest(home, file.sha256)
    missed = kept is not None and not set(found.events) <= set(kept.events)
    if kept is not None and kept.problem == found.problem and not missed:
        return
    if missed and kept is not None:
        # It registers here what it did not where it was trusted: the next agent is asked for both.
        found.events += [event for event in kept.events if event not in found.events]
    with contextlib.suppress(OSError):
        write_manifest(home, file.sha256, found)


def load(
    file: ConfigFile, timeout: float = LOAD_TIMEOUT, *, home: Home | None = None
) -> LoadedConfig:
    """Run ``file`` and check what it defines. The caller has checked that it is trusted.

    It runs in a daemon thread and gets ``timeout`` seconds; what it prints goes to stderr. The
    hook files that it names are read, too; ``home`` knows which of them are trusted (without it
    none is), and which programs were. Raises ConfigError with the file, the line and what to do;
    its ``details["mistakes"]`` are all that were found, a line each.
    """
    loaded = collected(file, timeout)
    entry = trusted_entry(home, file.path) if home is not None else None
    if home is not None and entry is not None:
        commands = {
            hook: programs.secured(command, file.path, entry)
            for hook, command in loaded.registry.programs()
        }
        loaded = replace(loaded, registry=loaded.registry.with_commands(commands))
    return with_hook_files(loaded, os.path.dirname(file.path), home)


def collected(file: ConfigFile, timeout: float = LOAD_TIMEOUT) -> LoadedConfig:
    """What ``file`` itself registers when it runs: see ``load``."""
    code = compile_config(file)
    module = types.ModuleType(f"{MODULE_NAME}_{file.sha256[:12]}")
    module.__file__ = file.path
    # Handlers' tracebacks show these lines, even when the file has changed on disk since.
    text = file.data.decode("utf-8", "replace")
    linecache.cache[file.path] = (len(text), None, text.splitlines(True), file.path)
    mistakes = Mistakes(file.path, text)
    _run(file, code, module, timeout, mistakes)
    return _collect(file, module, mistakes)


def unusable_manifest(error: RelayError) -> Manifest:
    """What is known of a file that cannot be used: it may guard anything."""
    return Manifest(patterns=[], hooks=[], events=every_event(), problem=error.line)


def mistakes_of(error: RelayError) -> list[str]:
    """All that is wrong with a file, a line each."""
    found = error.details.get("mistakes")
    return [str(one) for one in found] if isinstance(found, list) else [error.line]


def manifest_of(loaded: LoadedConfig) -> Manifest:
    """What ``loaded`` registers."""
    registry, settings = loaded.registry, loaded.settings
    return Manifest(
        patterns=[f"{one.namespace}:{one.target}" for one in registry.patterns()],
        hooks=[hook.event.registration for hook in registry.all_hooks()],
        # What hook files hold may change when this file does not.
        events=every_event()
        if settings.hook_files
        else [event.value for event in HookEventName if registry.hooks(event)],
        hook_files=list(settings.hook_files),
        settings={
            "routes": [
                {
                    "name": one.name,
                    "kinds": None if one.kinds is None else sorted(one.kinds),
                    "channels": None if one.channels is None else sorted(one.channels),
                    "priority": one.priority,
                }
                for one in registry.routes()
            ],
            "observers": [one.name for one in registry.all_hooks() if one.event in OF_BROKER],
            "merge": settings.merge,
            "channel_adapters": [one.name for one in registry.channel_adapters()],
            "may": dict(settings.may),
            "mcp": settings.mcp if "mcp" in settings.given else None,
            "redact": settings.redact,
            "values": plain_values(settings),
            "features": {one.key: one.kept(value) for one, value in settings.features.items()},
        },
    )


def with_hook_files(loaded: LoadedConfig, folder: str, home: Home | None) -> LoadedConfig:
    """``loaded`` with the hooks of ``settings.hook_files``, whose paths are relative to ``folder``.

    Each of these files is trusted by itself, by its own hash in ``home``; none ever is because
    something names it. A file that cannot be used costs its own hooks only. Never raises.
    """
    if not loaded.settings.hook_files:
        return loaded
    # Imported on use: a session without hook files must not pay for it.
    from relay.hooks.hook_files import register_hook_files

    names = [os.path.expanduser(name) for name in loaded.settings.hook_files]
    paths = [os.path.normpath(os.path.join(folder, name)) for name in names]
    files = {path: found_at(home, path) for path in paths} if home is not None else {}
    entries = {path: file.entry for path, file in files.items() if file is not None}
    contents: list[tuple[str, bytes, bool]] = []
    problems: list[str] = []
    for path in dict.fromkeys(paths):
        try:
            data = read_config(path).data
        except (RelayError, OSError, ValueError) as error:
            why = error.message if isinstance(error, RelayError) else f"{path}: {error}"
            problems.append(clean(f"{why}, so its hooks do not run"))
            continue
        known = files.get(path)
        # Trust is about the very bytes that are used.
        as_read = known is not None and known.file is not None and known.file.data == data
        contents.append((path, data, as_read and known is not None and known.state == TRUSTED))
    asis = {path for path, _data, trusted in contents if trusted}
    problems += register_hook_files(loaded.registry, contents, env=os.environ)

    def secured(hook: HookDefinition, command: Command) -> Command:
        if (entry := entries.get(hook.source)) is None:
            return command
        place = place_of(hook.source)
        command, base = programs.secured(command, place, entry), config_base(place)
        if base in (os.path.dirname(place), os.path.expanduser("~")):
            return command
        # The project of a file in .claude is the one that it lies in, wherever the agent works.
        here = [(name, base) for name in PROJECT_VARIABLES[hook.dialect]]
        return replace(command, env=(*here, *command.env))

    unguarded = loaded.unguarded
    for path, entry in entries.items():
        if home is not None and entry and path not in asis and may_guard(home, entry.sha256):
            unguarded = unguarded or f"{path} is not as it was when you trusted it"
    return replace(
        loaded,
        registry=loaded.registry.with_commands(
            {hook: secured(hook, command) for hook, command in loaded.registry.programs()}
        ),
        hook_problems=tuple(problems),
        unguarded=unguarded,
    )


def compile_config(file: ConfigFile) -> types.CodeType:
    """The compiled file; nothing of it runs. Raises ConfigError with line and text."""
    _check_encoding(file)
    try:
        return compile(file.data, file.path, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        text = f": {clean(error.text.strip()[:200])}" if error.text else ""
        raise ConfigError(
            f"{file.path}{line}: {error.msg}{text}",
            hint="correct this line, then: relay config check",
            details={"line": error.lineno},
        ) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise ConfigError(
            f"{file.path} is not Python source: {error}", hint="write one with: relay init"
        ) from None


def _check_encoding(file: ConfigFile) -> None:
    """Raises ConfigError for a file that is not UTF-8, with its line."""
    if any(_CODING.match(line) for line in file.data.splitlines()[:2]):
        return  # it says itself what it is
    bad = file.data.find(0)
    try:
        file.data.decode()
    except UnicodeDecodeError as error:
        bad = error.start
    if bad >= 0:
        wide = " (it looks like UTF-16)" if file.data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        line = file.data.count(b"\n", 0, bad) + 1
        raise ConfigError(
            f"{file.path}:{line}: this is not UTF-8{wide}",
            hint="save the file as UTF-8, then: relay config check",
            details={"line": line},
        )


def executing_config() -> bool:
    """Whether this thread is running a configuration file at this moment."""
    return getattr(_loading, "active", False)


def _run(
    file: ConfigFile,
    code: types.CodeType,
    module: types.ModuleType,
    limit: float,
    mistakes: Mistakes,
) -> None:
    failure: list[BaseException] = []

    def execute() -> None:
        _loading.active = True
        try:
            with mistakes.running():
                exec(code, module.__dict__)
        except BaseException as error:  # sys.exit() included: it must not end the session
            failure.append(error)

    # Dataclasses and type hints look their module up by name.
    sys.modules[module.__name__] = module
    thread = threading.Thread(target=execute, name="relay-config", daemon=True)
    with contextlib.redirect_stdout(sys.stderr):
        thread.start()
        thread.join(limit)
    if thread.is_alive():
        raise ConfigError(
            f"{file.path} did not end within {limit:g} s",
            hint="a configuration only defines handlers; move slow work to on_session_start",
        )
    if failure:
        mistakes.note(*_explained(file, failure[0]))
        mistakes.check()


def _explained(file: ConfigFile, error: BaseException) -> tuple[ConfigError, int | None]:
    """What ended the run of ``file``, and at which of its lines."""
    if isinstance(error, RelayError):
        what, hint = error.message, error.hint
    elif isinstance(error, SystemExit):
        what, hint = "it calls exit()", "a configuration only defines handlers; remove the call"
    elif isinstance(error, ModuleNotFoundError):
        missing = not_installed(str(error.name))
        what, hint = missing.message, missing.hint
    else:
        what = f"{type(error).__name__}: {error}"
        hint = "correct this line, then: relay config check"
        if isinstance(error, AttributeError) and error.obj is sys.modules["relay"]:
            hint = "begin with: from relay import Relay; relay = Relay()"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file.path]
    if not frames:
        return ConfigError(what, hint=hint), None
    text = f": {clean(frames[-1].line)}" if frames[-1].line else ""
    return ConfigError(f"{what}{text}", hint=hint), frames[-1].lineno


def _collect(file: ConfigFile, module: types.ModuleType, mistakes: Mistakes) -> LoadedConfig:
    """Everything that the module registered, in one registry."""
    names: dict[str, Any] = dict(vars(module))
    relays = _relays(names)
    registry = relays[0].registry if relays else Registry()
    settings = relays[0].settings if relays else Settings()
    if len(relays) > 1:
        mistakes.note(
            ConfigError("more than one Relay() is created", hint="use one for all handlers")
        )
    settings = apply_dictionaries(names, registry, settings, mistakes, source=file.path)
    mistakes.check()
    settings = settings.of_file(file.path, file.sha256)
    does = registry.holds_something or settings.given
    warnings = idle_names(file.data) or ([] if does else _empty(names))
    if (idle := own_only(settings)) and file.path != user_config():
        names_ = f"{', '.join(idle)}, which {'count' if idle[1:] else 'counts'}"
        warnings.append(f"{file.path} sets {names_} only in your own file, {user_config()}")
    for command in registry.commands():
        missing = programs.missing(command, file.path)
        warnings += [f"{name} is not there, so its hook will not run" for name in missing]
    return LoadedConfig(file.path, registry, settings, file.sha256, warnings=tuple(warnings))


def _relays(names: dict[str, Any]) -> list[Any]:  # by shape: the class lives above this module
    found: list[Any] = []
    for value in names.values():
        parts = getattr(value, "registry", None), getattr(value, "settings", None)
        shaped = isinstance(parts[0], Registry) and isinstance(parts[1], Settings)
        if shaped and not any(value is other for other in found):
            found.append(value)
    return found


def _empty(names: dict[str, Any]) -> list[str]:
    loose = [name for name in names if name.startswith("on_") and callable(names[name])]
    if loose:
        return [
            f"{loose[0]}() is defined but not registered: "
            f'put it into hooks = {{"{loose[0]}": {loose[0]}}}'
        ]
    return ["it registers and sets nothing"]
