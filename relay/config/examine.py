"""Runs a configuration once in a process of its own, to see what a person is about to trust."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from relay.config import programs
from relay.config.load import LOAD_TIMEOUT, collected, manifest_of, mistakes_of, unusable_manifest
from relay.config.manifest import Manifest, of_fields
from relay.config.trust import ConfigFile, project_root, user_config
from relay.core.environment import for_own_process
from relay.core.errors import ConfigError, RelayError
from relay.directive.escape import clean
from relay.hooks.hook_files import read_hook_file
from relay.hooks.hook_types import Command, Url

#: How long an interpreter may take to start and to end, in seconds.
_START = 20.0
#: Bytes of what is found.
_ANSWER_MAX = 16 * 1024 * 1024
#: The process that examines a file. Threads that the file started do not keep it.
_EXAMINE = (
    "import os, sys; sys.path.append(sys.argv.pop(1));"
    " from relay.config.examine import examine_here;"
    " examine_here(*sys.argv[1:]); sys.stderr.flush(); os._exit(0)"
)


@dataclass(frozen=True, slots=True)
class Examined:
    """What came of running a file once, before it is trusted."""

    manifest: Manifest
    #: The hashes of the programs that its commands name, by path.
    programs: dict[str, str]
    #: What is wrong with it, a line each: then it cannot be trusted.
    mistakes: list[str]
    #: What is allowed but looks like a mistake.
    warnings: list[str]


def examine(file: ConfigFile) -> Examined:
    """Run ``file``, which the person wants to trust, and say what it registers. Never raises."""
    try:
        loaded = collected(file)
        hashes = programs.hashes(loaded.registry.commands(), file.path)
    except RelayError as error:
        return Examined(unusable_manifest(error), {}, mistakes_of(error), [])
    found = manifest_of(loaded)
    warnings = [*loaded.warnings, *programs.unread(loaded.registry.commands())]
    if file.path != user_config():
        for names, does in (
            (found.settings["channel_adapters"], "connects channels"),
            (found.settings["observers"], "is told of what the broker does"),
        ):
            if names:
                only = f"only your own configuration, {user_config()}, {does}"
                warnings.append(f"{', '.join(names)}: {only}")
    return Examined(found, hashes, [], warnings)


def examined(file: ConfigFile) -> Examined:
    """``examine`` in a process of its own, which what the file does cannot reach out of."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    # A file and no pipe: what has many routes says more than a pipe holds.
    with tempfile.TemporaryFile() as answer:
        try:
            started = subprocess.Popen(
                # -P: nothing in the folder where this happens to run may take a module's place.
                [sys.executable, "-P", "-c", _EXAMINE, root, file.path, str(answer.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[answer.fileno()],
                env=for_own_process(project_root(os.path.dirname(file.path))),
            )
            with started:
                try:
                    started.communicate(file.data, timeout=LOAD_TIMEOUT + _START)
                except subprocess.TimeoutExpired:
                    started.kill()
            answer.seek(0)
            found = json.loads(answer.read(_ANSWER_MAX) or b"null")
            return Examined(**{**found, "manifest": of_fields(found["manifest"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if isinstance(error, OSError):
                return _unexamined(f"{file.path} could not be run: {error.strerror}")
            return _unexamined(f"{file.path} ended the process in which it ran")


def examine_here(path: str, fd: str) -> None:
    """Examine the file whose bytes come on stdin, and answer on ``fd``: see ``examined``."""
    found = examine(ConfigFile(path, sys.stdin.buffer.read()))
    with open(int(fd), "w", encoding="utf-8", errors="replace") as answer:
        json.dump(
            {
                "manifest": found.manifest.fields(),
                "programs": found.programs,
                "mistakes": found.mistakes,
                "warnings": found.warnings,
            },
            answer,
        )


def examine_hook_file(file: ConfigFile) -> tuple[list[str], Examined]:
    """What a hook file would run, a line each, and its hooks. Raises ConfigError if there is no
    hook in it."""
    specs, problems = read_hook_file(file.data, file.path)
    if not specs:
        raise ConfigError(
            f"{file.path} has no hook that relay could run",
            hint="name a settings.json of Claude Code or Gemini CLI with hooks, or a Python file",
            details={"mistakes": problems},
        )
    runs = []
    for spec in specs:
        action = spec.action
        what = action.url if isinstance(action, Url) else action.shell or shlex.join(action.argv)
        matcher = f" ({spec.matcher})" if spec.matcher else ""
        # On one line each: a command with line ends must not look like several.
        runs.append(clean(f"{spec.event.registration}{matcher}: {what}").replace("\n", " ⏎ "))
    hooks = list(dict.fromkeys(spec.event.registration for spec in specs))
    commands = [spec.action for spec in specs if isinstance(spec.action, Command)]
    events = list(dict.fromkeys(spec.event.value for spec in specs))
    manifest = Manifest(patterns=[], hooks=hooks, events=events)
    hashes = programs.hashes(commands, file.path)
    return runs, Examined(manifest, hashes, [], [*problems, *programs.unread(commands)])


def _unexamined(why: str) -> Examined:
    return Examined(unusable_manifest(ConfigError(why)), {}, [why], [])
