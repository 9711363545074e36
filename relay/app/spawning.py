"""Starting an agent in a terminal that nobody sits at, and ending one: ``spawn`` and ``release``.

Its terminal belongs to a *host*, a process of its own (relay.app.host) that outlives
the shell it was started from. What was spawned is kept in RELAY_HOME, for ``relay resume``.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from relay.agents.headless import HeadlessForm
from relay.agents.launch import PLANNERS
from relay.agents.profile import find_profile
from relay.broker.client import connect, no_agent
from relay.config import names
from relay.config.spawned_agents import (
    FLAGS,
    OPTIONS,
    Spawn,
    ended,
    keep,
    known,
    put_back,
    record_of,
    spawned,
)
from relay.core import files
from relay.core.child_process import kill_below, python
from relay.core.errors import BrokerUnavailable, NotFound, RelayError, Timeout, UsageError
from relay.core.json_text import dumps
from relay.core.message import AgentState
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENTS, SPAWN, SPAWNED, AgentRow
from relay.protocol.broker import Json
from relay.protocol.broker_ops import WATCH
from relay.protocol.op import Auth
from relay.pump.agent_process import find_program
from relay.screen import emulator_library

#: Seconds that an agent may take to be there.
READY = 60.0
#: The code of the error that it has ended before it was there.
ENDED = "ended"
#: Seconds between two looks at what has no event.
_LOOK = 0.1
#: What a host writes of an agent that has ended at once is no longer. Bytes.
_WORDS_MAX = 16 * 1024
#: Seconds that an agent may take to end after its terminal has gone, once its hooks have run, and
#: after SIGTERM. While it is ``ending``, by its last hooks, it has more (relay.session.lifecycle).
_HANGUP, _TERM, _KILL = 5.0, 5.0, 5.0
_ENDING_MAX = 65.0
#: How long an agent that ran in a terminal is spoken of after its end.
_LATELY_MS = 24 * 60 * 60 * 1000
#: Stands for the conversation of a program that has no ids for them.
_LAST = "last"
#: What can be an id of a conversation, and no option of a program.
_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Spawned:
    """An agent that was started; ``pid`` is its host's."""

    name: str
    pid: int
    state: str
    reason: str


def spawn(
    home: Home, wanted: Spawn, *, wait: float | None = READY, auth: Auth | None = None
) -> Spawned:
    """Start an agent, and return once it is there: idle, or with a question for the person.

    ``auth``: of the agent whose environment this is. The broker says whether it may, and writes
    down what is started, and by whom. ``wait`` is how many seconds that may take; None does not
    wait. Raises NameTaken, UsageError, CannotRun, RelayError with what it showed when it ends
    before, Timeout when it runs but is not ready.
    """
    if not os.path.isdir(wanted.cwd):
        raise UsageError(f"there is no folder {wanted.cwd}")
    emulator_library.check(os.path.join(home.root, "cache"))
    for path in home.create():
        print(f"relay: others could write to {path}: it is closed to them now", file=sys.stderr)
    names.claim(home, wanted.name, wanted.command[0]).release()
    search = wanted.env.get("PATH") or os.environ.get("PATH")
    if not os.path.isabs(wanted.command[0]) and "/" in wanted.command[0]:
        find_program(os.path.join(wanted.cwd, wanted.command[0]), search)
    else:
        find_program(wanted.command[0], search)
    told = {name: value for name, value in asdict(wanted).items() if name not in ("env", "parent")}
    with connect(home) as client:
        parent = client.request(SPAWN, **told, auth=auth)["parent"]
    wanted = replace(wanted, parent=parent)
    before = record_of(home, wanted.name)
    words, host = _start_host(home, wanted)
    try:
        keep(home, wanted, host, "")
        if wait is None:
            return Spawned(wanted.name, host, AgentState.STARTING.value, "")
        row = _wait_until_there(home, wanted, words, wait)
        keep(home, wanted, host, row["run"] or "")
    except RelayError as error:
        if error.code == ENDED:
            put_back(home, wanted.name, before)
        raise
    finally:
        os.close(words)
    return Spawned(wanted.name, host, row["state"], row["reason"] or "")


def _start_host(home: Home, wanted: Spawn) -> tuple[int, int]:
    """(a pipe with what it says of an agent that ends at once, its pid)."""
    wrap = [sys.executable, "-P", "-m", "relay", "wrap", "--name", wanted.name, *wanted.options]
    asked = {
        "name": wanted.name,
        "argv": [*wrap, "--", *_words_of(home, wanted)],
        "cwd": wanted.cwd,
        "env": wanted.env,
    }
    reading, writing = os.pipe()
    try:
        log = os.path.join(home.logs, "spawned.log")
        with open(log, "ab", opener=files.open_private) as errors:
            process = subprocess.Popen(
                python("relay.app.host"),
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


def _wait_until_there(home: Home, wanted: Spawn, words: int, wait: float) -> AgentRow:
    """The agent's row, once it is no longer starting."""
    end = time.monotonic() + wait
    row = None
    said = _Words(wanted.name, words)
    while time.monotonic() < end:
        said.check()
        try:
            with connect(home) as client:
                client.request(WATCH, kinds=["agent"], agents=[wanted.name])
                row = _row_of(client.request(AGENTS)["agents"], wanted.name)
                while not _is_there(home, row) and time.monotonic() < end:
                    said.check()
                    push = client.next_push(_LOOK)
                    row = _row_of(push.get("rows", []) if push else [], wanted.name) or row
                if row is not None and _is_there(home, row):
                    return row
        except BrokerUnavailable:
            time.sleep(_LOOK)
    there = row is not None and row["run"] == names.run_of(home, wanted.name)
    what = "was not ready" if there else "had not registered with relay"
    raise Timeout(
        f"{wanted.name} is running, but {what} after {wait:g} seconds",
        hint=f"look at it: relay attach {wanted.name}; {home.logs} may say more",
    )


class _Words:
    """What the host says on its pipe, which is only why the agent has ended."""

    def __init__(self, name: str, pipe: int) -> None:
        self._name, self._pipe = name, pipe
        self._said = b""

    def check(self) -> None:
        """Raises RelayError with the words once it has ended."""
        while select.select([self._pipe], [], [], 0)[0]:
            data = os.read(self._pipe, _WORDS_MAX)
            self._said += data
            if not data or len(self._said) > _WORDS_MAX:
                what, _, rows = self._said.decode("utf-8", "replace").strip().partition("\n")
                raise RelayError(what or f"{self._name} ended at once", hint=rows, code=ENDED)


def _is_there(home: Home, row: AgentRow | None) -> bool:
    """Whether the run that has the name now is no longer starting."""
    if row is None or row["state"] in (AgentState.GONE.value, AgentState.STARTING.value):
        return False
    return bool(row["run"] == names.run_of(home, row["name"]))


def _row_of(rows: Sequence[AgentRow], name: str) -> AgentRow | None:
    """The last row of this agent."""
    return next((row for row in rows[::-1] if row.get("name", "").lower() == name.lower()), None)


def _row(home: Home, name: str) -> AgentRow | None:
    try:
        with connect(home) as client:
            return _row_of(client.request(AGENTS)["agents"], name)
    except BrokerUnavailable:
        return None


# -- the end


def release(home: Home, name: str, *, now: bool = False) -> str:
    """End an agent in order: its terminal goes, so that its session-end hooks run; then SIGTERM;
    then SIGKILL. ``now``: the last at once. Returns ``ended``, ``terminated`` or ``killed``.

    Of ``relay wrap`` in the person's own terminal as well. Raises NotFound, RelayError.
    """
    pump = names.holder(home, name)
    if pump is None:
        ended(home, name, "released")
        raise no_agent(home, name, runs=True)
    if not pump or names.has_other_numbers(home, name):
        raise RelayError(
            f"relay cannot tell which process {name} is", hint="end it in its terminal"
        )
    ended(home, name, "released")
    steps: list[tuple[str, int, float]] = [
        ("ended", signal.SIGHUP, _HANGUP),
        ("terminated", signal.SIGTERM, _TERM),
    ]
    for how, number, seconds in () if now else steps:
        _send(pump, number)
        if _wait_for_end(home, name, pump, seconds, told=number != signal.SIGHUP):
            return how
    kill_below(pump, _KILL)
    _send(pump, signal.SIGKILL)
    if not _wait_for_end(home, name, pump, _KILL):
        raise RelayError(f"{name} (process {pump}) does not end", hint=f"kill -9 {pump}")
    return "killed"


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # then its name is free in a moment
    except PermissionError as error:
        raise RelayError(f"process {pid} is another user's") from error


def _wait_for_end(home: Home, name: str, pump: int, seconds: float, *, told: bool = True) -> bool:
    """Whether the name is free within so many seconds, and those of its last hooks where it was not
    ``told`` to end whatever they do."""
    most = time.monotonic() + _ENDING_MAX
    end = time.monotonic() + seconds
    while time.monotonic() < min(end, most):
        if names.holder(home, name) != pump:
            return True
        time.sleep(_LOOK / 4)
        if time.monotonic() + _LOOK > end:
            row = _row(home, name)
            if not told and row is not None and row["state"] == AgentState.ENDING.value:
                end = time.monotonic() + 1.0
    return names.holder(home, name) != pump


# -- bringing back


def resumable(home: Home, chosen: list[str]) -> list[tuple[Spawn, bool]]:
    """What brings agents back under their names, each with its program's own way to go on with its
    last conversation: the ``chosen``, else all that have lost their host. And whether the ledger
    has it: what only a file says may be an agent's words. Raises NotFound.

    Whoever is brought back is no longer below the agent that started it, its ``parent``.
    """
    lowered = [name.lower() for name in chosen]
    records = {record["name"].lower(): record for record in known(home)}
    for name in chosen:
        if name.lower() not in records:
            records[name.lower()] = _wrapped(home, name)
    if not chosen:
        lowered = [
            record["name"].lower()
            for record in spawned(home)
            if names.has_lost_terminal(home, record["name"])
        ]
    return [_resumed(home, records[name]) for name in lowered]


def bring_back(home: Home, wanted: Spawn) -> tuple[Spawned, str]:
    """Start it again, in its last conversation; and why that is a new one, "" where it is not.

    Programs keep no conversation in which nothing was said, and end where they are to go on with
    it. Raises as ``spawn`` does.
    """
    if not wanted.conversation:
        return spawn(home, wanted), "no conversation to continue"
    try:
        return spawn(home, wanted), ""
    except RelayError as error:
        if error.code != ENDED:
            raise
        lines = (error.hint or error.message).splitlines()
        about = [line for line in lines if wanted.conversation in line]
        said = (about or lines)[-1].strip()
    return spawn(home, replace(wanted, conversation="")), said


def _wrapped(home: Home, name: str) -> Json:
    """A record of one that ran in a terminal of the person's, as its session has reported it. The
    options of ``relay wrap`` are not known, but for its roles."""
    row = _row(home, name)
    if row is None or not row["command"]:
        raise no_agent(home, name)
    if row["state"] != AgentState.GONE:
        raise NotFound(f"{row['name']} is running", hint="relay agents")
    try:
        command = shlex.split(row["command"])
    except ValueError:  # it was cut, or an older relay has not quoted it
        command = row["command"].split()[:1]
    wanted = Spawn(
        row["name"],
        command,
        row["cwd"] or "",
        ("--role", ",".join(row["roles"])) if row["roles"] else (),
        conversation=row["conversation"],
    )
    return asdict(wanted)


def in_terminals(home: Home) -> list[str]:
    """The agents that ran in terminals of the person's and ended within a day, in conversations
    that can go on; the newest first."""
    spawned_names = {record["name"].lower() for record in known(home)}
    since_ms = int(time.time() * 1000) - _LATELY_MS
    with connect(home) as client:
        rows = client.request(AGENTS)["agents"]
    found = [
        row
        for row in rows
        if row["state"] == AgentState.GONE
        and row["kind"] in PLANNERS
        and row["since_ms"] > since_ms
        and _ID.fullmatch(row["conversation"])
        and row["name"].lower() not in spawned_names
    ]
    return [row["name"] for row in sorted(found, key=lambda row: -row["since_ms"])]


def _resumed(home: Home, record: Json) -> tuple[Spawn, bool]:
    row = _row(home, record["name"])
    with connect(home) as client:
        stored = client.request(SPAWNED, name=record["name"])["spawned"]
    wanted = record if stored is None else stored
    conversation = str(wanted.get("conversation") or "")
    run = record.get("run")  # none where nobody waited until it was there
    if row is not None and run in (row["run"], "") and row["last_seen_ms"] > record["started_ms"]:
        conversation = row["conversation"] or conversation
    command = list(wanted["command"])
    if not _ID.fullmatch(conversation):
        form = _form_of(home, command)
        conversation = _LAST if form is not None and form.resume and not _has_id(form) else ""
    spawn = Spawn(
        wanted["name"],
        command,
        wanted["cwd"],
        _options(wanted["options"]),
        team=wanted["team"],
        parent=wanted["parent"],
        conversation=conversation,
    )
    return spawn, stored is not None


def _options(words: list[str]) -> tuple[str, ...]:
    """Those that ``relay spawn`` itself writes: agents may write into RELAY_HOME, too."""
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        name = word.removeprefix("--")
        if name in FLAGS:
            found.append(word)
        elif (value := next(rest, None)) is not None and name in OPTIONS:
            found += [word, value]
    return tuple(found)


def _words_of(home: Home, wanted: Spawn) -> list[str]:
    """The command line, with what goes on with its conversation."""
    form = _form_of(home, wanted.command)
    if not wanted.conversation or form is None or not form.resume:
        return wanted.command
    program, *words = wanted.command
    flag = form.resume[0]
    if flag in words:  # it was started with an older one
        at = words.index(flag)
        has_value = _has_id(form) and words[at + 1 : at + 2] != [] and words[at + 1][0] != "-"
        del words[at : at + 1 + has_value]
    return [program, *(word.replace("{id}", wanted.conversation) for word in form.resume), *words]


def _form_of(home: Home, command: list[str]) -> HeadlessForm | None:
    return find_profile(os.path.basename(command[0]), home.profiles)[0].headless


def _has_id(form: HeadlessForm) -> bool:
    """Whether the program goes on with a conversation by its id; else with its last one."""
    return any("{id}" in word for word in form.resume)
