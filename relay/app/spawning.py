"""Starting an agent in a terminal that nobody sits at, and ending one: ``spawn`` and ``release``.

Its terminal belongs to a *host*, a process of its own (relay.app.detached_terminal) that outlives
the shell it was started from. What was spawned is kept in RELAY_HOME, for ``relay resume``.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from relay.broker.client import connect
from relay.config import names
from relay.core import files
from relay.core.agent_names import valid_name
from relay.core.child_process import kill_below, python
from relay.core.errors import BrokerUnavailable, NotFound, RelayError, Timeout, UsageError
from relay.core.json_text import dumps, loads
from relay.core.message import AgentState
from relay.core.paths import Home
from relay.protocol.broker import Json
from relay.pump.agent_process import find_program

#: Seconds that an agent may take to be there.
READY = 60.0
#: Seconds between two looks at what has no event.
_LOOK = 0.1
#: What a host writes of an agent that has ended at once is no longer. Bytes.
_WORDS_MAX = 16 * 1024
#: Seconds that an agent may take to end after its terminal has gone, once its hooks have run, and
#: after SIGTERM. While it is ``ending`` its session bounds the time (see relay.session.hangup).
_HANGUP, _TERM, _KILL = 5.0, 5.0, 5.0
_ENDING_MAX = 120.0
#: The variables that say which terminal a program has: those of the shell are not its.
_OF_A_TERMINAL = (
    *("TERM", "TERMCAP", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TERM_SESSION_ID"),
    *("TMUX", "TMUX_PANE", "STY", "WINDOW", "WINDOWID", "VTE_VERSION", "KITTY_WINDOW_ID"),
    *("WT_SESSION", "ITERM_SESSION_ID", "WEZTERM_PANE", "ZELLIJ", "LINES", "COLUMNS"),
)


@dataclass(frozen=True, slots=True)
class Spawn:
    """An agent that is to be started: ``options`` are more words for ``relay wrap``, ``env``
    changes its environment (None takes a variable out)."""

    name: str
    command: list[str]
    cwd: str
    options: tuple[str, ...] = ()
    env: dict[str, str | None] = field(default_factory=dict)
    #: The team file that names it, "" for none.
    team: str = ""


@dataclass(frozen=True, slots=True)
class Spawned:
    """An agent that was started; ``pid`` is its host's."""

    name: str
    pid: int
    state: str
    reason: str


def spawn(home: Home, wanted: Spawn, *, wait: float | None = READY) -> Spawned:
    """Start an agent, and return once it is there: idle, or with a question for the person.

    ``wait`` is how many seconds that may take; None does not wait. Raises NameTaken, UsageError,
    CannotRun, RelayError with what it showed when it ends before, Timeout when it runs but is not
    ready.
    """
    if not valid_name(wanted.name):
        raise UsageError(f"{wanted.name!r} cannot be an agent's name")
    if not os.path.isdir(wanted.cwd):
        raise UsageError(f"there is no folder {wanted.cwd}")
    for path in home.create():
        print(f"relay: others could write to {path}: it is closed to them now", file=sys.stderr)
    names.claim(home, wanted.name, wanted.command[0]).release()
    search = wanted.env.get("PATH") or os.environ.get("PATH")
    if not os.path.isabs(wanted.command[0]) and "/" in wanted.command[0]:
        find_program(os.path.join(wanted.cwd, wanted.command[0]), search)
    else:
        find_program(wanted.command[0], search)
    words, host = _start_host(home, wanted)
    try:
        _keep(home, wanted, host)
        if wait is None:
            return Spawned(wanted.name, host, AgentState.STARTING.value, "")
        row = _wait_until_there(home, wanted, words, wait)
    finally:
        os.close(words)
    return Spawned(wanted.name, host, row["state"], row["reason"])


def _start_host(home: Home, wanted: Spawn) -> tuple[int, int]:
    """(a pipe with what it says of an agent that ends at once, its pid)."""
    wrap = [sys.executable, "-P", "-m", "relay", "wrap", "--name", wanted.name, *wanted.options]
    env: dict[str, str | None] = {**dict.fromkeys(_OF_A_TERMINAL), "COLORTERM": "truecolor"}
    asked = {
        "name": wanted.name,
        "argv": [*wrap, "--", *wanted.command],
        "cwd": wanted.cwd,
        "env": {**env, **wanted.env},
    }
    reading, writing = os.pipe()
    try:
        log = os.path.join(home.logs, "spawned.log")
        with open(log, "ab", opener=files.open_private) as errors:
            process = subprocess.Popen(
                python("relay.app.detached_terminal"),
                stdin=subprocess.PIPE,
                stdout=writing,
                stderr=errors,
                env={**os.environ, "RELAY_HOME": home.root},
                start_new_session=True,
            )
        process.communicate(dumps(asked).encode())  # it ends at once: the host is its child
        told = b""
        while not told.endswith(b"\n") and (data := os.read(reading, 1)):
            told += data
        if not told.strip().isdigit():
            raise RelayError(f"{wanted.name} has no terminal", hint=f"{log} says more")
        return reading, int(told)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)


def _wait_until_there(home: Home, wanted: Spawn, words: int, wait: float) -> Json:
    """The agent's row, once it is no longer starting."""
    end = time.monotonic() + wait
    said = b""
    while time.monotonic() < end:
        if select.select([words], [], [], _LOOK)[0]:
            data = os.read(words, _WORDS_MAX)
            said += data
            if not data or len(said) > _WORDS_MAX:
                _forget(home, wanted.name)
                shown = said.decode("utf-8", "replace").strip()
                raise RelayError(shown or f"{wanted.name} ended at once", code="ended")
        row = _row(home, wanted.name)
        if row is not None and row["state"] not in ("gone", AgentState.STARTING.value):
            return row
    raise Timeout(
        f"{wanted.name} runs, but is not ready after {wait:g} seconds",
        hint=f"look at it: relay attach {wanted.name}",
    )


def _row(home: Home, name: str) -> Json | None:
    try:
        with connect(home) as client:
            rows: list[Json] = client.request("agents")["agents"]
    except BrokerUnavailable:
        return None
    return next((row for row in rows if row["name"].lower() == name.lower()), None)


# -- the end


def release(home: Home, name: str, *, now: bool = False) -> str:
    """End an agent in order: its terminal goes, so that its session-end hooks run; then SIGTERM;
    then SIGKILL. ``now``: the last at once. Returns ``ended``, ``terminated`` or ``killed``.

    Of ``relay wrap`` in the person's own terminal as well. Raises NotFound, RelayError.
    """
    pump = names.holder(home, name)
    if pump is None:
        _forget(home, name)
        raise NotFound(f"no agent called {name} is running", hint="relay agents lists them")
    if not pump:
        raise RelayError(f"nobody knows which process {name} is", hint="end it in its terminal")
    _forget(home, name)
    steps: list[tuple[str, int, float]] = [
        ("ended", signal.SIGHUP, _HANGUP),
        ("terminated", signal.SIGTERM, _TERM),
    ]
    for how, number, seconds in () if now else steps:
        if _send(pump, number) and _wait_for_end(home, name, pump, seconds):
            return how
    kill_below(pump, _KILL)
    _send(pump, signal.SIGKILL)
    if not _wait_for_end(home, name, pump, _KILL):
        raise RelayError(f"{name} (process {pump}) does not end", hint=f"kill -9 {pump}")
    return "killed"


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True  # then its name is free in a moment
    except PermissionError as error:
        raise RelayError(f"process {pid} is another user's") from error
    return True


def _wait_for_end(home: Home, name: str, pump: int, seconds: float) -> bool:
    """Whether the name is free within so many seconds, while its last hooks run not counted."""
    most = time.monotonic() + _ENDING_MAX
    end = time.monotonic() + seconds
    while time.monotonic() < min(end, most):
        if names.holder(home, name) != pump:
            return True
        time.sleep(_LOOK / 4)
        if time.monotonic() + _LOOK > end:
            row = _row(home, name)
            if row is not None and row["state"] == AgentState.ENDING.value:
                end = time.monotonic() + 1.0
    return names.holder(home, name) != pump


# -- what was spawned


def spawned(home: Home) -> list[Json]:
    """What is known of those that were spawned and not released: the fields of Spawn, ``host``
    (the pid), ``started_ms``."""
    found = []
    with suppress(OSError):
        for file in sorted(os.listdir(_folder(home))):
            record = _read(os.path.join(_folder(home), file)) if file.endswith(".json") else None
            if record is not None:
                found.append(record)
    return found


def _keep(home: Home, wanted: Spawn, host: int) -> None:
    files.make_private_folder(_folder(home))
    # What was put into its environment may be secret; who resumes it has an environment.
    record = {**asdict(wanted), "env": {}, "host": host, "started_ms": int(time.time() * 1000)}
    files.write_atomically(_path(home, wanted.name), dumps(record))


def _forget(home: Home, name: str) -> None:
    files.unlink_if_there(_path(home, name))


def _read(path: str) -> Json | None:
    try:
        record = loads(files.read_file(path, 1 << 20).decode())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("name"), str) else None


def _folder(home: Home) -> str:
    return os.path.join(home.root, "spawned")


def _path(home: Home, name: str) -> str:
    return os.path.join(_folder(home), f"{name.lower()}.json")
