"""The configuration: load the file, check what it says, and hand over its handlers.

Two ways of writing one file are equal: dictionaries named ``patterns``, ``hooks`` and ``config``,
or ``relay = Relay()`` with decorators. What is executed are exactly the bytes that were checked
for trust (``relay.config.trust``). The file stands alone: its folder is not importable, because the
hash would not cover what lies there.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import subprocess
import sys
import threading
import traceback
import types
from dataclasses import dataclass, replace
from typing import Any

from relay.config.manifest import Manifest, every_event, read_manifest, write_manifest
from relay.config.settings import Settings, apply_dictionaries
from relay.config.trust import ConfigFile, find_config, is_trusted, read_config
from relay.core.errors import ConfigError, RelayError
from relay.core.paths import Home
from relay.directive.escape import clean
from relay.hooks.events import HookEventName
from relay.hooks.registry import Registry

#: How long the file may take to run, in seconds.
LOAD_TIMEOUT = 10.0
#: How long an interpreter may take to start and to end, in seconds.
_START = 20.0
#: The process that makes a manifest. Threads that the file started do not keep it.
_RECORD = (
    "import os, sys; sys.path.append(sys.argv.pop(1)); from relay.config.load import record_here;"
    " record_here(*sys.argv[1:]); sys.stderr.flush(); os._exit(0)"
)
#: The name under which the file's module runs: not ``__main__``, so that a script's guard works.
MODULE_NAME = "relay_config"

_loading = threading.local()


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The configuration of one session."""

    #: The file that was run, and its hash; None where none was.
    path: str | None
    registry: Registry
    settings: Settings
    sha256: str | None
    #: The path of a file that applies but may not run.
    untrusted: str | None = None
    #: Lines for people about what is allowed but looks like a mistake.
    warnings: tuple[str, ...] = ()
    #: Lines for people about hook files of which not every hook runs.
    hook_problems: tuple[str, ...] = ()
    #: Why a trusted file could not be used: where it keeps memories is then unknown.
    unusable: RelayError | None = None


def load_for_session(home: Home, cwd: str, explicit: str | None = None) -> LoadedConfig:
    """The configuration that applies in ``cwd``; an untrusted file is left unexecuted.

    Raises ConfigError when a trusted file cannot be used.
    """
    path = find_config(cwd, explicit)
    if path is None:
        return LoadedConfig(None, Registry(), Settings(), None)
    file = read_config(path)
    if not is_trusted(home, path, file.sha256):
        return LoadedConfig(None, Registry(), Settings(), None, untrusted=path)
    loaded = load(file, home=home)
    kept, found = read_manifest(home, file), manifest_of(loaded)
    missed = kept is not None and not set(found.events) <= set(kept.events)
    if kept is None or kept.problem or missed:
        # Trusted by another version of relay, or it registers here what it did not where it was
        # trusted: the next agent is asked for that as well.
        if missed and kept is not None:
            found.events += [event for event in kept.events if event not in found.events]
        with contextlib.suppress(OSError):
            write_manifest(home, file.sha256, found)
    return loaded


def load(
    file: ConfigFile, timeout: float = LOAD_TIMEOUT, *, home: Home | None = None
) -> LoadedConfig:
    """Run ``file`` and check what it defines. The caller has checked that it is trusted.

    It runs in a daemon thread and gets ``timeout`` seconds; what it prints goes to stderr. The
    hook files that it names are read, too; ``home`` knows which of them are trusted (without it
    none is). Raises ConfigError with the file, the line and what to do.
    """
    code = compile_config(file)
    module = types.ModuleType(MODULE_NAME)
    module.__file__ = file.path
    # Handlers' tracebacks show these lines, even when the file has changed on disk since.
    text = file.data.decode("utf-8", "replace")
    linecache.cache[file.path] = (len(text), None, text.splitlines(True), file.path)
    _run(file, code, module, timeout)
    return with_hook_files(_collect(file, module), os.path.dirname(file.path), home)


def record_manifest(home: Home, file: ConfigFile) -> Manifest | None:
    """Run ``file``, which is trusted, in a process of its own, and keep what it registers.

    None when that process came to no end by itself, or nothing could be kept.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    try:
        subprocess.run(
            # -P: nothing in the folder where this happens to run may take a module's place.
            [sys.executable, "-P", "-c", _RECORD, root, home.root, file.path, file.sha256],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=LOAD_TIMEOUT + _START,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read_manifest(home, file)


def manifest_of(loaded: LoadedConfig) -> Manifest:
    """What ``loaded`` registers."""
    registry, settings = loaded.registry, loaded.settings
    given = "memory" in settings.given
    return Manifest(
        patterns=[f"{one.namespace}:{one.target}" for one in registry.patterns()],
        hooks=[hook.event.registration for hook in registry.all_hooks()],
        # What hook files hold may change when this file does not.
        events=every_event()
        if settings.hook_files
        else [event.value for event in HookEventName if registry.hooks(event)],
        store=settings.memory.store.to_json() if given else None,
        memory=settings.memory.shown() if given else None,
    )


def record_here(root: str, path: str, sha256: str) -> None:
    """Keep the manifest of the file in this process, which ``record_manifest`` started."""
    home, file = Home(root), read_config(path)
    if file.sha256 != sha256 or not is_trusted(home, path, sha256):
        return  # it has changed in between
    try:
        found = manifest_of(load(file, home=home))
    except ConfigError as error:
        found = Manifest(patterns=[], hooks=[], events=every_event(), problem=error.line)
    write_manifest(home, sha256, found)


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
    problems = register_hook_files(
        loaded.registry,
        [os.path.normpath(os.path.join(folder, name)) for name in names],
        lambda path: read_config(path).data,
        lambda path, data: (
            home is not None and is_trusted(home, path, ConfigFile(path, data).sha256)
        ),
        env=os.environ,
    )
    return replace(loaded, hook_problems=tuple(problems))


def compile_config(file: ConfigFile) -> types.CodeType:
    """The compiled file; nothing of it runs. Raises ConfigError with line and text."""
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


def executing_config() -> bool:
    """Whether this thread is running a configuration file at this moment."""
    return getattr(_loading, "active", False)


def _run(file: ConfigFile, code: types.CodeType, module: types.ModuleType, limit: float) -> None:
    failure: list[BaseException] = []

    def execute() -> None:
        _loading.active = True
        try:
            exec(code, module.__dict__)
        except BaseException as error:  # sys.exit() included: it must not end the session
            failure.append(error)

    # Dataclasses and type hints look their module up by name.
    sys.modules[MODULE_NAME] = module
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
        raise _explained(file, failure[0])


def _explained(file: ConfigFile, error: BaseException) -> ConfigError:
    if isinstance(error, RelayError):
        what, hint = error.message, error.hint
    elif isinstance(error, SystemExit):
        what, hint = "it calls exit()", "a configuration only defines handlers; remove the call"
    elif isinstance(error, ModuleNotFoundError):
        what = f"it imports {error.name!r}, which is not installed here"
        hint = f"install it for {sys.executable}; modules beside the file are not importable"
    else:
        what = f"{type(error).__name__}: {error}"
        hint = "correct this line, then: relay config check"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file.path]
    place, text = file.path, ""
    if frames:
        place += f":{frames[-1].lineno}"
        text = f": {clean(frames[-1].line)}" if frames[-1].line else ""
    return ConfigError(f"{place}: {what}{text}", hint=hint)


def _collect(file: ConfigFile, module: types.ModuleType) -> LoadedConfig:
    """Everything that the module registered, in one registry."""
    names: dict[str, Any] = dict(vars(module))
    relays = _relays(names)
    registry = relays[0].registry if relays else Registry()
    settings = relays[0].settings if relays else Settings()
    if len(relays) > 1:
        raise ConfigError(f"{file.path} makes more than one Relay()", hint="register with one")
    try:
        settings = apply_dictionaries(names, registry, settings, source=file.path)
    except ConfigError as error:
        raise ConfigError(f"{file.path}: {error.message}", hint=error.hint) from None
    settings = replace(settings, memory=settings.memory.of_file(file.path, file.sha256))
    something = registry.all_hooks() or registry.patterns() or settings.hook_files
    something = something or "memory" in settings.given
    warnings = () if something else _empty(names)
    return LoadedConfig(file.path, registry, settings, file.sha256, warnings=warnings)


def _relays(names: dict[str, Any]) -> list[Any]:
    # By shape: the class lives above this module.
    found: list[Any] = []
    for value in names.values():
        shaped = isinstance(getattr(value, "registry", None), Registry) and isinstance(
            getattr(value, "settings", None), Settings
        )
        if shaped and not any(value is other for other in found):
            found.append(value)
    return found


def _empty(names: dict[str, Any]) -> tuple[str, ...]:
    loose = [name for name in names if name.startswith("on_") and callable(names[name])]
    if loose:
        return (
            f"{loose[0]}() is defined but not registered: "
            f'put it into hooks = {{"{loose[0]}": {loose[0]}}}',
        )
    return ("it registers no pattern and no hook",)
