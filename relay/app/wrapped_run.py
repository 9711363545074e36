"""One wrapped run, put together from its parts: what ``relay wrap`` and ``Relay.wrap`` call.

Everything here happens before the agent starts, so nothing heavy is imported.
"""

from __future__ import annotations

import os
import sys
import time

from relay.app import start_door
from relay.core.errors import RelayError, UsageError
from relay.pump.agent_process import CannotRun, find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.agents.launch import Launch, Run
    from relay.app.start_door import StartFeature
    from relay.config.load import LoadedConfig
    from relay.config.manifest import Known
    from relay.core.paths import Home
    from relay.pump.monitor import Program
    from relay.pump.spawn import Listeners, SessionStarter

#: A longer argv is cut from what the session gets in its environment; HELLO has all of it.
_ARGS_MAX = 64 * 1024


class Participant:
    """What the agent is to others: its name (None: made from the command), what it works on, its
    roles, and the channels that it is in."""

    __slots__ = ("name", "task", "roles", "join")

    def __init__(
        self,
        name: str | None = None,
        task: str | None = None,
        roles: list[str] | None = None,
        join: list[str] | None = None,
    ) -> None:
        self.name = name
        self.task = task
        self.roles = roles or []
        self.join = join or []


class RecordingChoice:
    """Where its terminal is recorded, with the keys or without."""

    __slots__ = ("path", "keys", "overwrite")

    def __init__(self, path: str, keys: bool = False, overwrite: bool = False) -> None:
        self.path = path
        self.keys = keys
        self.overwrite = overwrite


class TerminalChoice:
    """What its terminal is used for: a title, a recording, how messages are typed there (None: as
    its screen shows), and whether what a shell shows there is heard."""

    __slots__ = ("title", "takes", "recording", "hear")

    def __init__(
        self,
        title: bool = False,
        takes: str | None = None,
        recording: RecordingChoice | None = None,
        hear: bool = False,
    ) -> None:
        self.hear = hear
        self.title = title
        self.takes = takes
        self.recording = recording


class Limits:
    """What the kernel lets the agent write: all (none of these is given); its own folder
    (``confine``); the scope of an ``intent``. ``write`` adds places."""

    __slots__ = ("confine", "intent", "write")

    def __init__(
        self, confine: bool = False, intent: str | None = None, write: list[str] | None = None
    ) -> None:
        self.confine = confine
        self.intent = intent
        self.write = write or []


class Terms:
    """What the agent is started with: a configuration (None: the project's), the primer, relay's
    tools, limits. ``ungoverned``: no intent limits it in a governed project, which only the person
    may want."""

    __slots__ = ("config", "primer", "mcp", "ungoverned", "limits")

    def __init__(
        self,
        config: str | None = None,
        primer: bool = True,
        mcp: bool = False,
        ungoverned: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.config = config
        self.primer = primer
        self.mcp = mcp
        self.ungoverned = ungoverned


class OwnHandlers:
    """The handlers of the program that wraps the agent: its session is a copy of this process that
    calls ``load``; ``known`` tells of them."""

    __slots__ = ("load", "known")

    def __init__(self, load: Callable[[], LoadedConfig], known: Known) -> None:
        self.load = load
        self.known = known


class Choices:
    """What the caller that wraps ``command`` wants of the run; the rest is left to relay.

    ``exclusive``: this process exits afterwards.
    """

    __slots__ = ("command", "participant", "terminal", "terms", "own", "exclusive")

    def __init__(
        self,
        command: list[str],
        participant: Participant | None = None,
        terminal: TerminalChoice | None = None,
        terms: Terms | None = None,
        own: OwnHandlers | None = None,
        *,
        exclusive: bool = False,
    ) -> None:
        self.command = command
        self.participant = participant or Participant()
        self.terminal = terminal or TerminalChoice()
        self.terms = terms or Terms()
        self.own = own
        self.exclusive = exclusive


def run(choices: Choices) -> int:
    """Claim a name, plan the launch, and run the command here; returns its exit status.

    Death by signal n is -n, as subprocess has it. Raises RelayError before anything starts. Where
    relay has no place for its files (a full disk, a folder that cannot be written) the command
    runs without relay, which is said: no trouble of relay's keeps an agent from starting, unless a
    feature guards it. So it does where there is no terminal emulator, and nothing could be heard.
    """
    features = start_door.opened(choices, _cwd())
    try:
        return _run(choices, features)
    except RelayError as error:
        if error.code not in ("state_dir", "no_emulator"):
            raise
        for reason in filter(None, (feature.alone() for feature in features)):
            why = f"{choices.command[0]} is not started, because {reason}, and relay cannot work"
            raise CannotRun(f"{why}: {error.message}", 1, error.hint) from None
        return _run_without(choices, error)


def _run_without(choices: Choices, error: RelayError) -> int:
    from relay.core.environment import original
    from relay.pump.monitor import Program, execute

    command = choices.command
    print(
        f"relay: {os.path.basename(command[0])} runs without relay (no name, no messages, no"
        f" hooks or guards): {error.line}",
        file=sys.stderr,
        flush=True,
    )
    if not choices.exclusive:
        import subprocess

        return subprocess.call(command)
    path = find_program(command[0], os.environ.get("PATH"))
    failure = execute(Program(path, command, original()))
    raise CannotRun(f"cannot run {command[0]}: {failure.strerror}", 126)


def _run(choices: Choices, features: list[StartFeature]) -> int:
    from relay.config import names
    from relay.core import descriptors, signals
    from relay.core.ids import new_ulid
    from relay.core.paths import Home
    from relay.screen import emulator_library

    descriptors.open_missing()
    command, config = choices.command, choices.terms.config
    find_program(command[0], os.environ.get("PATH"))
    if config is not None and not os.path.isfile(config):
        raise UsageError(f"no such configuration file: {config}", hint="make one with: relay init")
    cwd = _cwd()
    started_ms = time.time_ns() // 1_000_000
    run_id = new_ulid(started_ms)
    home = Home.from_env()
    emulator_library.check(os.path.join(home.root, "cache"))
    for feature in features:
        feature.begin(home)
    limits = choices.terms.limits
    for needed, what, wanted in (
        ("recording", "recorded", choices.terminal.recording),
        ("confine", "confined", limits.confine or limits.intent),
        ("governance", "held to an intent", limits.intent),
    ):
        if wanted and needed not in [one.name for one in features]:
            why = f"relay's feature {needed} is not installed"
            raise UsageError(f"nothing can be {what}: {why}")
    for path in home.create():
        print(f"relay: others could write to {path}: it is closed to them now", file=sys.stderr)
    claim = names.claim(home, choices.participant.name, command[0], run_id)
    sockets: list[int] = []
    try:
        if choices.own is None:
            _say_not_applied(home, config)
        if choices.exclusive:
            signals.raise_endings()
        own = known = _known(home, choices)
        for feature in features:
            known = feature.known(known)
        listeners, about = _introduction(home, choices, claim.name, run_id, known)
        sockets = [fd for fd in (listeners.unix, listeners.tcp) if fd is not None]
        facts: dict[str, object] = {
            "run_id": run_id,
            "name": claim.name,
            "command": command,
            "cwd": cwd,
            "started_ms": started_ms,
            "guarded": "BeforeTool" in own.hooks,
            "guards": [feature.name for feature in features if feature.guards],
        }
        for feature in features:
            facts |= feature.facts()
        return _run_with(home, choices, about, listeners, facts, features)
    except BaseException:
        signals.end_plainly()
        descriptors.close(sockets)
        home.remove_run(run_id)  # no session was started that would
        raise
    finally:
        claim.release()


def exit_status(status: int) -> int:
    """What a shell makes of a status that is -n for signal n: 128 + n."""
    return 128 - status if status < 0 else status


def _introduction(
    home: Home, choices: Choices, name: str, run_id: str, known: Known
) -> tuple[Listeners, Run]:
    """The sockets of this run, and what a planner is told of it."""
    from relay.agents import launch
    from relay.core.ids import RUN_TOKEN
    from relay.pump.spawn import Listeners

    listeners = Listeners(
        home.session_socket(run_id), launch.wants_tcp(choices.command, known.hooks)
    )
    participant = choices.participant
    primer = launch.Primer(name, known.namespaces, participant.roles, participant.join)
    token = RUN_TOKEN + os.urandom(16).hex()
    about = launch.Run(
        name,
        run_id,
        launch.Endpoint(token, listeners.port, listeners.path),
        launch.Folders(home.run_folder(run_id), home.profiles),
        launch.LaunchTerms(
            terminal=os.isatty(0) and os.isatty(1),
            mcp=(known.mcp or choices.terms.mcp) and _has_mcp(),
            hooks=known.hooks,
            without=known.without,
        ),
        primer if choices.terms.primer else None,
    )
    return listeners, about


def _has_mcp() -> bool:
    """Whether relay's MCP server can run; says so where it cannot, for a person wants it."""
    import importlib.util

    if importlib.util.find_spec("mcp") is not None:
        return True
    from relay.core.extras import adding

    _say(f"the agent gets no tools of relay's: their server is not installed ({adding('mcp')})")
    return False


def _run_with(
    home: Home,
    choices: Choices,
    about: Run,
    listeners: Listeners,
    facts: dict[str, object],
    features: list[StartFeature],
) -> int:
    from relay.agents import launch
    from relay.core.processes import mark
    from relay.pump import run as terminal

    plan = launch.plan(choices.command, dict(os.environ), about)
    for feature in features:
        feature.planned(choices.command[0], plan)
    program = _program(home, about, plan, choices.terms.config, features)
    _say_newer(about, plan)
    if about.terms.terminal and not choices.terminal.hear:
        _say_unheard(about.name, plan)
    session = _session(home, choices, about, plan, facts, listeners)
    title = " ".join((about.name, *choices.participant.roles)) if choices.terminal.title else ""
    started_ms = time.time_ns() // 1_000_000
    keys = any(feature.keys for feature in features)
    added: dict[str, int | None] = {}
    try:
        for feature in features:
            added |= feature.descriptors()
        session.fds.update(added)
        status = terminal.run(
            program, mark(home.root), session, facts, choices.exclusive, keys, title
        )
    except BaseException:
        for feature in features:
            feature.failed()
        raise
    if added or not choices.exclusive:
        session.close()
    for line in filter(None, [feature.ended() for feature in features]):
        _say(line)
    _say_unreached(home, about.name, started_ms)
    return status


def _say_newer(about: Run, plan: Launch) -> None:
    """Say that the program is newer than what relay was checked with; to the session, too."""
    if not about.terms.terminal or plan.profile == "command" or plan.data.get("headless"):
        return
    from relay.agents.launch import newer_than_checked

    name = plan.profile
    newer = newer_than_checked(name, plan.argv[0], dict(os.environ), about.folders.profiles)
    if newer:
        said = f"{name} is {newer}: relay agent check {name} tells what works"
        print(f"relay: {said}", file=sys.stderr, flush=True)
        plan.data["newer"] = said


def _say_unheard(name: str, plan: Launch) -> None:
    """Say of a shell what serves there instead of being heard and typed into."""
    from relay.agents.interpreters import shows_anything

    if shows_anything(plan.profile):
        serves = "relay send NAME TEXT writes to others, relay inbox --follow shows what comes"
        said = f"relay does not hear what {name} shows (with --hear it does); {serves}"
        print(f"relay: {said}", file=sys.stderr, flush=True)


def _say_unreached(home: Home, name: str, started_ms: int) -> None:
    """Say that the agent was on its own, now that the terminal is the person's again."""
    if os.path.exists(os.path.join(home.run, "broker.failed")):
        from relay.broker.start import failure_since

        reason = failure_since(home, started_ms / 1000)
        if reason is not None:
            _say(f"{name} could not be reached by others: {reason.line}")


def _say(line: str) -> None:
    from relay.core.visible import visible

    try:
        print(f"relay: {visible(line)}", file=sys.stderr, flush=True)
    except OSError:
        return  # stderr is gone, and with it whom to tell


def _known(home: Home, choices: Choices) -> Known:
    """What an agent with interfaces of its own can be told, and asked, for the configuration."""
    from relay.agents import launch
    from relay.config.manifest import Known, known

    own = Known() if choices.own is None else choices.own.known
    if choices.own is None and launch.takes_primer(choices.command, home.profiles):
        own = known(home, _cwd(), choices.terms.config)
    return own


def _say_not_applied(home: Home, config: str | None) -> None:
    """Say which configurations do not apply as they stand, while the person can read it."""
    from relay.config.manifest import notices

    for line in notices(home, _cwd(), config):
        _say(line)


def _program(
    home: Home, about: Run, plan: Launch, config: str | None, features: list[StartFeature]
) -> Program:
    from relay.pump.monitor import Program

    path = find_program(plan.argv[0], os.environ.get("PATH"))
    argv = plan.argv
    for feature in features:
        if command := feature.command(about, plan, path):
            path, argv = command[0], command
    return Program(path, argv, _environment(home.root, about, plan.env, config))


def _session(
    home: Home,
    choices: Choices,
    about: Run,
    plan: Launch,
    facts: dict[str, object],
    listeners: Listeners,
) -> SessionStarter:
    from relay.config.trust import project_root
    from relay.core.environment import for_own_process
    from relay.core.paths import repository_of
    from relay.pump.spawn import SessionStarter

    command, config = choices.command, choices.terms.config
    long = sum(map(len, command)) > _ARGS_MAX
    args: dict[str, object] = {
        "run_id": about.run_id,
        "token": about.endpoint.token,
        "name": about.name,
        "home": home.root,
        "primer": about.primer is not None,
        "profile": plan.profile,
        "launch": plan.data,
        "argv": command[:1] if long else command,
        "cwd": facts["cwd"],
        "project": repository_of(str(facts["cwd"])),
        "task": choices.participant.task,
        "roles": choices.participant.roles,
        "join": choices.participant.join,
        "takes": choices.terminal.takes,
        "hear": choices.terminal.hear,
        "config": None if config is None else os.path.abspath(config),
    }
    log = os.path.join(home.logs, f"{about.run_id}.log")
    entry = None if choices.own is None else _entry(choices.own.load)
    env = for_own_process(project_root(_cwd()))
    return SessionStarter(session_command(), env, args, listeners, log, entry)


def _entry(
    factory: Callable[[], LoadedConfig],
) -> Callable[[dict[str, int | None], dict[str, object]], object]:
    def enter(fds: dict[str, int | None], args: dict[str, object]) -> None:
        from relay.app import session_main
        from relay.app.session_parts import Start

        pump = fds.pop("pump")
        assert pump is not None
        session_main.run(Start(pump, fds, args, factory()))

    return enter


def session_command() -> list[str]:
    """The program that hears and speaks for the agent.

    -P: the agent's folder is not ours to import from; a json.py there must not run as relay.
    """
    return [sys.executable, "-P", "-m", "relay.app.session_main"]


def _environment(
    home: str, run: Run, additions: dict[str, str], config: str | None
) -> dict[bytes, bytes]:
    from relay.core.environment import original

    env = original()
    for name in (b"RELAY_PORT", b"RELAY_CONFIG"):  # of a wrapped shell that we were started from
        env.pop(name, None)
    ours = {
        "RELAY_AGENT": run.name,
        "RELAY_RUN": run.run_id,
        "RELAY_SOCKET": run.endpoint.socket,
        "RELAY_TOKEN": run.endpoint.token,
        "RELAY_HOME": home,
    }
    if run.endpoint.port is not None:
        ours["RELAY_PORT"] = str(run.endpoint.port)
    if config is not None:  # in its tools relay memory asks the same store
        ours["RELAY_CONFIG"] = os.path.abspath(config)
    for key, value in {**ours, **additions}.items():
        env[os.fsencode(key)] = os.fsencode(value)
    return env


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"  # it was removed under us; the agent will see so itself
