"""``relay doctor``: what is here, what works with it, and what to do next.

Files and sockets are read; nothing is run, and nothing changed but what ``--fix`` may safely mend.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import os
import platform
import shutil
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from relay.agents.installed import dotted, version_of
from relay.agents.known_agents import ungated, untold
from relay.agents.launch import (
    PLANNERS,
    TOOL_EVENTS,
    TURN_EVENTS,
    Endpoint,
    Folders,
    LaunchTerms,
    Primer,
    Run,
    newer_than_checked,
    plan,
)
from relay.agents.profile import find_profile, profile_names
from relay.broker.client import connect
from relay.broker.start import NONE_RUNS, NotTheBroker, failure_since
from relay.cli import door, output
from relay.cli.parser import Options, Parser
from relay.cli.table import prose
from relay.cli.verbs import verb
from relay.config.manifest import known, notices
from relay.config.trust import candidates
from relay.core.build import build, is_older
from relay.core.errors import RelayError
from relay.core.features import installed, unloadable
from relay.core.log import Log
from relay.core.paths import Home
from relay.core.processes import ancestry
from relay.core.visible import visible
from relay.directive.redact import redact
from relay.hooks.events import HookEventName
from relay.protocol.agent_ops import AGENTS

_MARKS = {"ok": "✓", "warn": "!", "bad": "✗", "absent": "·"}
_ASCII_MARKS = {"ok": "ok", "warn": "! ", "bad": "X ", "absent": "- "}
#: How long the broker may take to accept a connection, in seconds.
BROKER_TIMEOUT = 1.0
#: Bytes that are free below which relay soon cannot, or cannot, store messages.
_LITTLE, _NOTHING = 200 * 1024 * 1024, 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Check:
    """One line. ``level`` is ok, warn, bad (relay cannot work here) or absent (not needed).

    ``fix`` is the command that puts it right, where there is one.
    """

    name: str
    level: str
    text: str
    hint: str = ""
    fix: str = ""


#: The fix of what ``--fix`` mends: see ``mend``.
_FIX = "relay doctor --fix"


#: Where not all ancestors of a process can be seen, as with /proc mounted with hidepid.
_HIDDEN = Check(
    "identity",
    "bad",
    "not all ancestors of this process can be seen, so nobody can tell it from an agent's, and only"
    " agents with their tokens are served",
    "mount /proc without hidepid, or with gid= of a group that you are in",
)


def add(verbs: Parser) -> None:
    said = "Say what is installed, what works here and what to run next."
    parser = verb(verbs, "doctor", "relay doctor\n  relay doctor --fix", said)
    safe = "fix what is safe to fix: files that others can write to, what dead runs left"
    parser.add_argument("--fix", action="store_true", help=safe)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: Options) -> int:
    """Exit 0 unless something essential is broken."""
    home = Home.from_env()
    mended = mend(home) if args.fix else []
    checks = examine(home, os.getcwd())
    bad = any(check.level == "bad" for check in checks)
    next_step = _next_step(checks)
    if args.json:
        rows = [asdict(check) for check in checks]
        output.as_json({"ok": not bad, "checks": rows, "mended": mended, "next": next_step})
        return int(bad)
    marks = _ASCII_MARKS if output.only_ascii() else _MARKS
    width = max(len(check.name) for check in checks)
    for check in checks:
        prose(visible(f"{marks[check.level]} {check.name:<{width}}  {check.text}"), width + 4)
        if check.hint:
            prose(visible(f"  {'':<{width}}  {check.hint}"), width + 4)
        if check.fix:
            output.data(f"  {'':<{width}}  -> {check.fix}")
    output.data("")
    for one in mended:
        prose(visible(f"Mended: {one}"))
    output.data(f"Next: {next_step}")
    return int(bad)


def _next_step(checks: list[Check]) -> str:
    bad = [check for check in checks if check.level == "bad"]
    if bad:
        return bad[0].fix or f"fix {bad[0].name}: {bad[0].hint or bad[0].text}"
    for check in checks:
        if check.name in ("state", "config") and check.fix:
            return check.fix
    for level in ("ok", "warn"):
        for check in checks:
            if check.name in PLANNERS and check.level == level:
                if not check.hint:
                    return "relay agents"  # it is at work already
                return f"relay wrap --name Alice -- {check.name}"
    return "relay demo"


def examine(home: Home, cwd: str) -> list[Check]:
    """Every check, in the order in which it is shown. None of them can raise."""
    checks: list[Check] = []
    for name, function in (
        ("python", _python),
        ("screen", _screen),
        ("sqlite", lambda: Check("sqlite", "ok", f"SQLite {sqlite3.sqlite_version}")),
        ("state", lambda: _state(home)),
        ("space", lambda: _space(home)),
        ("broker", lambda: _broker(home)),
        ("config", lambda: _config(home, cwd)),
    ):
        checks.append(_guarded(name, function))
    if not ancestry(os.getpid()):
        checks.append(_HIDDEN)
    at_work = _at_work(home)
    checks += [_guarded(name, functools.partial(_agent, name, home, at_work)) for name in PLANNERS]
    checks += [Check(*line) for line in profiled(home)]
    shown = {check.name for check in checks}
    for kind, names in sorted(at_work.items()):
        if kind not in shown and shutil.which(kind) is None:
            text = f"not in this PATH; {', '.join(names)} {'runs' if len(names) == 1 else 'run'} it"
            checks.append(Check(kind, "ok", text))
    for name, theirs in door.given("checks"):
        checks += _lines(name, functools.partial(theirs, home, cwd))
    checks += _features(home)
    checks += _extras()
    more = {"ok": "", "warn": "docs/hooks.md says what each agent can do"}
    return checks + _lines(
        "hooks", lambda: [(level, text, more[level]) for level, text in native_hooks(home, cwd)]
    )


def _features(home: Home) -> list[Check]:
    """relay's own features in a line, each from outside, and what could not be loaded."""
    own = [feature.name for feature in installed() if feature.is_own]
    checks = [Check("features", "ok", ", ".join(own) or "none")]
    for feature in installed():
        broken = list(unloadable(feature))
        for module in broken:
            with contextlib.suppress(RelayError, OSError):
                home.create()
            log = Log(os.path.join(home.logs, "features.log"), redact)
            log.write(module.trace)
            hint = f"the details are in {log.path}"
            checks.append(Check("features", "warn", module.problem, hint))
        if not feature.is_own and not broken:
            package = feature.package.partition(".")[0]
            text = f"{feature.name}, of the package {package} {feature.version}"
            checks.append(Check("features", "ok", text))
    return checks


def _extras() -> list[Check]:
    """What relay was installed without, and the command that adds it."""
    from relay.core.extras import command, extras

    here = extras()
    missing = [name for name in here if not here[name]]
    if not missing:
        return []
    text = f"not installed: {', '.join(missing)}"
    hint = "docs/operating.md says what each is for"
    return [
        Check(
            "extras", "absent", text, hint, command(*(missing if any(here.values()) else ["all"]))
        )
    ]


def _lines(name: str, lines: Callable[[], Iterable[tuple[str, ...]]]) -> list[Check]:
    try:
        return [Check(name, *line) for line in lines()]
    except RelayError:
        return []  # the configuration's own line has said so
    except Exception as error:
        return [Check(name, "warn", f"cannot be told: {type(error).__name__}: {error}")]


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
    from relay.screen import emulator_library

    try:
        emulator_library.check("")
    except RelayError as error:
        return Check(
            "screen",
            "bad",
            f"{error.message}, so programs run without relay: nothing is heard or delivered",
            "there is one for Linux (glibc) and macOS, x86-64 and arm64",
            f"{sys.executable} -m pip install pyghostty",
        )
    return Check("screen", "ok", f"pyghostty {_distribution('pyghostty') or ''}".strip())


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
    folders = home.root, home.run, home.logs, home.names, home.content, home.ledger
    for one in (*folders, tempfile.gettempdir()):
        if os.path.lexists(one) and not os.access(one, os.W_OK):
            return Check("state", "bad", f"{one} is read-only", "make it writable")
    try:
        opened = home.opened()
    except RelayError as error:
        return Check("state", "bad", error.message, error.hint)
    if opened:
        told = f"others can write to {', '.join(opened)}"
        return Check("state", "warn", told, "look what was put there", _FIX)
    if dead := dead_runs(home):
        runs = "a run" if len(dead) == 1 else f"{len(dead)} runs"
        told = f"{home.root}; {runs} that were killed left files there"
        return Check("state", "warn", told, "", _FIX)
    return Check("state", "ok", home.root)


def _space(home: Home) -> Check:
    """How much more can be written where relay stores things, and where temporary files are."""
    found = []
    for path in (home.root, home.run, tempfile.gettempdir()):
        while not os.path.isdir(path) and os.path.dirname(path) != path:
            path = os.path.dirname(path)
        found.append((shutil.disk_usage(path).free, path))
    free, path = min(found)
    text = f"{free / 1024**3:.1f} GB free at {path}"
    if free < _LITTLE:
        level = "bad" if free < _NOTHING else "warn"
        text = f"{free // 1024**2} MB free at {path}"
        return Check("space", level, text, "make room there, or relay cannot store messages")
    return Check("space", "ok", text)


def dead_runs(home: Home) -> list[str]:
    """The ids, shortened, of runs whose socket is still there and that nobody answers for."""
    found = []
    for name in sorted(os.listdir(home.run)) if os.path.isdir(home.run) else ():
        stem, ending = os.path.splitext(name)
        path = os.path.join(home.run, name)
        if ending != ".sock" or path == home.broker_socket:
            continue
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(BROKER_TIMEOUT)
            try:
                connection.connect(path)
            except ConnectionRefusedError:
                found.append(stem)
            except OSError:
                continue
    return found


def mend(home: Home) -> list[str]:
    """Put right what is safe to; says what was done. Raises RelayError."""
    if not os.path.isdir(home.root):
        return []
    done = [f"others can no longer write to {path}" for path in home.create()]
    for run in dead_runs(home):
        home.remove_run(run)
        done.append(f"what the killed run {run} left is gone")
    return done


def _broker(home: Home) -> Check:
    try:
        with connect(home, start=False, deadline=BROKER_TIMEOUT) as client:
            if is_older(client.version, build()):
                text = f"it runs relay {client.version}; this command is relay {build()}"
                hint = "agents keep running, and the next command starts a broker of this version"
                return Check("broker", "warn", text, hint, "relay broker stop")
            return Check("broker", "ok", f"running at {home.broker_socket}")
    except RelayError as error:
        if error.code != NONE_RUNS:
            return Check("broker", "warn", error.message, error.hint)
        if isinstance(error.__cause__, NotTheBroker):
            return Check("broker", "warn", error.message, "the next command starts one instead")
        if (reason := failure_since(home, 0)) is not None:
            return Check("broker", "bad", f"did not start: {reason.message}", reason.hint)
    return Check("broker", "ok", "not running; it starts when it is needed")


def _config(home: Home, cwd: str) -> Check:
    said = notices(home, cwd)
    if said:
        text = "; ".join(said)
        if "relay trust" in text:
            return Check("config", "warn", text, fix="relay trust --show")
        return Check("config", "warn", text, "fix it, then: relay trust", "relay config check")
    applied = [one.path for one in candidates(home, cwd)]
    if not applied:
        return Check("config", "ok", "none (relay init writes one)")
    return Check("config", "ok", f"{', '.join(applied)}, trusted")


def _at_work(home: Home) -> dict[str, list[str]]:
    """The names of the agents that run now, by their programs; none where no broker answers."""
    found: dict[str, list[str]] = {}
    try:
        with connect(home, start=False, deadline=BROKER_TIMEOUT) as client:
            rows = client.request(AGENTS, deadline=BROKER_TIMEOUT)["agents"]
    except RelayError:
        return found
    for row in rows:
        if row["state"] != "gone":
            program = (row["command"] or "").split()
            kind = row["kind"] if row["kind"] in PLANNERS or not program else program[0]
            found.setdefault(os.path.basename(kind), []).append(row["name"])
    return found


def _agent(command: str, home: Home, at_work: dict[str, list[str]]) -> Check:
    level, *line = agent_line(command, home.profiles)
    if level == "absent" and (names := at_work.get(command)):
        runs = "runs" if len(names) == 1 else "run"
        return Check(command, "ok", f"not in this PATH; {', '.join(names)} {runs} it")
    return Check(command, level, *line)


def _distribution(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def agent_line(command: str, folder: str) -> tuple[str, str, str, str]:
    """(level, text, hint, fix): what is installed as ``command``, and how relay hears it.

    ``folder`` is the person's own of profiles.
    """
    path = shutil.which(command)
    planner = importlib.import_module(PLANNERS[command])
    if path is None:
        return "absent", f"not installed ({_install(planner.PACKAGE)})", "", ""
    version = version_of(path, {}, planner.PACKAGE)
    supported = version is not None and version >= planner.OLDEST
    if supported:
        source, hint = "its transcript", ""
    else:
        source = f"its screen: its other interfaces are supported from {dotted(planner.OLDEST)}"
        hint = f"what that cannot show: {find_profile(command)[0].unseen} (docs/screen.md)"
    shown = dotted(version) if version else "version unknown"
    text = f"{shown}, relay reads {source} ({path})"
    if newer := newer_than_checked(command, path, {}, folder):
        text = f"{newer}, relay reads {source} ({path})"
        return "warn", text, hint, f"relay agent check {command}"
    return ("ok", text, hint, "") if supported else ("warn", text, hint, _install(planner.PACKAGE))


def _install(package: str) -> str:
    """The command that installs the newest version of an agent."""
    if package.startswith("aider"):
        return f"pipx install {package}"
    return f"npm install -g {package}@latest"


def profiled(home: Home) -> list[tuple[str, str, str, str, str]]:
    """(name, level, text, hint, fix): other installed programs that have a profile, and what is
    wrong with the person's own profiles."""
    lines = []
    for name in profile_names(home.profiles):
        profile, notes = find_profile(name, home.profiles)
        lines += [(name, "warn", note, "fix it: docs/profiles.md", "") for note in notes]
        path = shutil.which(name)
        if path is not None and name not in PLANNERS and not notes:
            hint = f"{profile.unseen} (docs/screen.md)" if profile.unseen else ""
            if newer := newer_than_checked(name, path, {}, home.profiles):
                text = f"{newer}, relay reads its screen, by a profile ({path})"
                lines.append((name, "warn", text, hint, f"relay agent check {name}"))
                continue
            checked = f", checked with {profile.checked_with}" if profile.checked_with else ""
            text = f"relay reads its screen, by a profile{checked} ({path})"
            lines.append((name, "ok", text, hint, ""))
    return lines


# -- hooks


def native_hooks(home: Home, cwd: str) -> list[tuple[str, str]]:
    """(level, text) of each line; none without hooks for what agents tell of themselves."""
    events = _events(home, cwd)
    if not events:
        return []
    plans = {command: _plan(home, command, events) for command in PLANNERS if shutil.which(command)}
    lines = []
    for group, missing, what in (
        (TOOL_EVENTS, ungated, "tool calls"),
        (TURN_EVENTS, untold, "turns and notices"),
    ):
        asked = [event for event in events if event in group]
        notes = {command: missing(command, plans[command], asked) for command in plans}
        if asked:
            lines += _told_lines(" and ".join(event.registration for event in asked), what, notes)
    return lines


def _told_lines(names: str, what: str, notes: dict[str, list[str]]) -> list[tuple[str, str]]:
    """``notes``: command to why its ``what`` do not reach the hooks ``names``."""
    reached = [command for command, why in notes.items() if not why]
    whose = f"the {what} of {', '.join(reached)}" if reached else f"no {what}"
    missed = [("warn", f"{command}: {note}") for command, why in notes.items() for note in why]
    return [("ok" if reached else "warn", f"{names}: reached by {whose}"), *missed]


def _events(home: Home, cwd: str) -> list[HookEventName]:
    """The events about tool calls and turns that the configuration may have hooks for."""
    events = [HookEventName(value) for value in known(home, cwd).hooks]
    return [event for event in events if event in (*TOOL_EVENTS, *TURN_EVENTS)]


def _plan(home: Home, command: str, events: list[HookEventName]) -> dict[str, object]:
    """What the plan for a start of ``command`` says to the session."""
    # Gemini CLI reads hooks from root's folders only: what a run's folder is made in counts.
    place = home.run if os.path.isdir(home.run) else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        run = Run(
            "doctor",
            "doctor",
            Endpoint("", 1, os.path.join(folder, "socket")),
            Folders(os.path.join(folder, "run")),
            LaunchTerms(hooks=tuple(event.value for event in events)),
            Primer("doctor"),
        )
        return plan([command], dict(os.environ), run).data
