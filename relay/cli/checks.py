"""What ``relay doctor`` looks at: files and sockets are read, nothing is run or changed."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import socket
import sqlite3
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass

from relay.agents.installed import parse_version
from relay.agents.launch import PLANNERS
from relay.cli.gate_checks import native_hooks
from relay.cli.memory_checks import memory_lines
from relay.config.trust import find_config, is_trusted, read_config, trusted_before
from relay.core.errors import RelayError
from relay.core.paths import SOCKET_PATH_MAX, Home
from relay.screen.agent_styles import style_of

#: How long the broker may take to accept a connection, in seconds.
BROKER_TIMEOUT = 1.0
#: Command -> the names under which its version is found: an npm package, a Python distribution.
AGENTS = {
    "claude": ("@anthropic-ai/claude-code", None),
    "codex": ("@openai/codex", None),
    "gemini": ("@google/gemini-cli", None),
    "qwen": ("@qwen-code/qwen-code", None),
    "opencode": ("opencode-ai", None),
    "aider": (None, "aider_chat"),
}
_VERSION = re.compile(r"\d+\.\d+\.\d+[\w.+-]*")


@dataclass(frozen=True, slots=True)
class Check:
    """One line. ``level`` is ok, warn, bad (relay cannot work here) or absent (not needed)."""

    name: str
    level: str
    text: str
    hint: str = ""


def examine(home: Home, cwd: str) -> list[Check]:
    """Every check, in the order in which it is shown. None of them can raise."""
    checks: list[Check] = []
    for name, function in (
        ("python", _python),
        ("screen", _screen),
        ("sqlite", _sqlite),
        ("state", lambda: _state(home)),
        ("socket", lambda: _socket(home)),
        ("broker", lambda: _broker(home)),
        ("terminal", _terminal),
        ("config", lambda: _config(home, cwd)),
    ):
        checks.append(_guarded(name, function))
    checks += [_guarded(name, functools.partial(_agent, name)) for name in AGENTS]
    return checks + _memory(home, cwd) + _hooks(home, cwd)


def _hooks(home: Home, cwd: str) -> list[Check]:
    hint = "docs/hooks.md says what each agent can do"
    try:
        lines = native_hooks(home, cwd)
    except RelayError:
        return []  # the configuration's own line has said so
    except Exception as error:
        return [Check("hooks", "warn", f"cannot be told: {type(error).__name__}: {error}")]
    return [Check("hooks", level, text, "" if level == "ok" else hint) for level, text in lines]


def _memory(home: Home, cwd: str) -> list[Check]:
    try:
        lines = list(memory_lines(home, cwd, os.environ))
    except RelayError:
        return []  # the configuration's own line has said so
    except Exception as error:
        return [Check("memory", "warn", f"cannot be told: {type(error).__name__}: {error}")]
    return [Check("memory", level, text, hint) for level, text, hint in lines]


def _guarded(name: str, function: Callable[[], Check]) -> Check:
    try:
        return function()
    except RelayError as error:
        return Check(name, "warn", error.message, error.hint)
    except Exception as error:
        return Check(name, "warn", f"could not be examined: {type(error).__name__}: {error}")


def _python() -> Check:
    version = platform.python_version()
    text = f"Python {version} on {platform.system()} {platform.machine()} ({sys.executable})"
    if sys.platform not in ("linux", "darwin"):
        return Check("python", "bad", text, "relay runs on Linux and macOS")
    return Check("python", "ok", text)


def _screen() -> Check:
    try:
        importlib.import_module("pyghostty")
    except Exception as error:
        return Check(
            "screen",
            "warn",
            f"no terminal emulator ({type(error).__name__}): programs that draw on the screen are "
            "read as plain lines",
            "on Linux (glibc) and macOS: pip install pyghostty",
        )
    return Check("screen", "ok", f"pyghostty {_distribution('pyghostty') or ''}".strip())


def _sqlite() -> Check:
    text = f"SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info < (3, 51, 3):
        text += ", before 3.51.3: harmless here, because only the broker writes"
    return Check("sqlite", "ok", text)


def _state(home: Home) -> Check:
    path = home.root
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    hint = "make it writable, or set RELAY_HOME to a directory that is"
    if not os.path.isdir(path):
        return Check("state", "bad", f"{path} is not a directory", hint)
    if not os.access(path, os.W_OK | os.X_OK):
        return Check("state", "bad", f"{path} is not writable", hint)
    if path != home.root:
        return Check("state", "ok", f"{home.root} (made on first use)")
    if os.stat(path).st_uid != os.getuid():
        return Check("state", "bad", f"{path} belongs to another user", hint)
    return Check("state", "ok", home.root)


def _socket(home: Home) -> Check:
    length = len(os.fsencode(home.session_socket("0" * 26)))
    if length > SOCKET_PATH_MAX:
        return Check(
            "socket",
            "bad",
            f"the path of a socket would have {length} bytes, more than {SOCKET_PATH_MAX}",
            "set RELAY_HOME to a shorter path",
        )
    if not os.path.isdir(home.run):
        return Check("socket", "ok", f"{home.run} (made on first use)")
    status = os.stat(home.run)
    if status.st_uid != os.getuid():
        return Check(
            "socket", "bad", f"{home.run} belongs to another user", "set RELAY_HOME elsewhere"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        return Check("socket", "warn", f"{home.run} is open to others", f"chmod 700 {home.run}")
    return Check("socket", "ok", home.run)


def _broker(home: Home) -> Check:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(BROKER_TIMEOUT)
        try:
            connection.connect(home.broker_socket)
        except (FileNotFoundError, ConnectionRefusedError):
            return Check("broker", "ok", "not running; it starts when it is needed")
        except OSError as error:
            return Check(
                "broker", "warn", f"does not answer: {error}", "relay broker stop, then try again"
            )
    return Check("broker", "ok", f"running at {home.broker_socket}")


def _terminal() -> Check:
    if sys.stdin.isatty() and sys.stdout.isatty():
        return Check("terminal", "ok", os.environ.get("TERM", "unknown kind"))
    return Check(
        "terminal", "warn", "this is not a terminal", "relay wrap is at its best in a terminal"
    )


def _config(home: Home, cwd: str) -> Check:
    path = find_config(cwd)
    if path is None:
        return Check("config", "ok", "none (relay init writes one)")
    file = read_config(path)
    if is_trusted(home, path, file.sha256):
        # Imported on use: most folders have no configuration.
        from relay.config.outline import outline

        if problems := outline(file).problems:
            said = f"{path} cannot be used: {'; '.join(problems)}"
            return Check("config", "warn", said, "correct it, then: relay trust")
        return Check("config", "ok", f"{path}, trusted")
    what = "has changed since it was trusted" if trusted_before(home, path) else "is not trusted"
    return Check("config", "warn", f"{path} {what}: it does not run", "read it, then: relay trust")


def _agent(command: str) -> Check:
    path = shutil.which(command)
    if path is None:
        return Check(command, "absent", "not installed")
    version = _version(path, *AGENTS[command])
    unseen = style_of(command).unseen
    oldest = importlib.import_module(PLANNERS[command]).OLDEST
    known = version is not None and (parse_version(version) or ()) >= oldest
    if known:
        heard, hint = "its own words", f"should its screen have to stand in: {unseen}"
    else:
        least = ".".join(map(str, oldest))
        heard, hint = f"its screen: relay knows its interfaces from {least} on", unseen
    text = f"{version or 'version unknown'}, heard through {heard} ({path})"
    return Check(command, "ok" if known else "warn", text, f"{hint} (docs/screen.md)")


def _version(path: str, npm: str | None, distribution: str | None) -> str | None:
    """The version of an installed program, from the files around it: nothing is run."""
    real = os.path.realpath(path)
    folder = os.path.dirname(real)
    for _ in range(6):
        if npm is not None:
            for package in (folder, os.path.join(folder, "node_modules", npm)):
                found = _npm_version(os.path.join(package, "package.json"), npm)
                if found:
                    return found
        folder = os.path.dirname(folder)
    if distribution is not None:
        return _python_version(os.path.dirname(os.path.dirname(real)), distribution)
    # Native installers keep each version under its own name.
    parts = [part for part in real.split(os.sep) if _VERSION.fullmatch(part)]
    return parts[-1] if parts else None


def _npm_version(path: str, name: str) -> str | None:
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(1024 * 1024))
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("name") != name:
        return None
    version = content.get("version")
    return version if isinstance(version, str) else None


def _python_version(prefix: str, distribution: str) -> str | None:
    """From the name of the ``.dist-info`` folder of the environment that holds the program."""
    lib = os.path.join(prefix, "lib")
    for python in sorted(os.listdir(lib)) if os.path.isdir(lib) else []:
        packages = os.path.join(lib, python, "site-packages")
        for name in os.listdir(packages) if os.path.isdir(packages) else []:
            if name.startswith(distribution + "-") and name.endswith(".dist-info"):
                return name.removeprefix(distribution + "-").removesuffix(".dist-info")
    return None


def _distribution(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
