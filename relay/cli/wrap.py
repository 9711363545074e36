"""``relay wrap``: run a program in a terminal that relay listens to.

Everything here happens before the agent starts, so nothing heavy is imported: no argparse (4 ms).
"""

from __future__ import annotations

import os
import sys
import time

from relay.errors import EXIT_FAILED, EXIT_USAGE, RelayError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.agents.launch import Launch, Run
    from relay.config import LoadedConfig
    from relay.paths import Home
    from relay.terminal.listen import Listeners
    from relay.terminal.spawn import SessionCommand
    from relay.terminal.tap import Recording
    from relay.vocabulary import Known

HELP = """\
Run a program so that other agents can talk to it, and it to them.

Examples:
  relay wrap claude                      an agent named "claude"
  relay wrap --name Alice -- claude      an agent named "Alice"
  relay wrap --name Bob bash             any program will do

Usage: relay wrap [OPTIONS] [--] COMMAND [ARGS…]

Options:
  --name NAME     what others call it (default: made from COMMAND, and unique)
  --task TEXT     what it works on; handlers see it as ctx.task
  --config FILE   use this configuration (default: the project's, see
                  relay config show)
  --record FILE   record the terminal into FILE, an asciicast, with known
                  secrets masked; see relay replay --help
  --record-input  record the keys too, except where a password is read
  --overwrite     let FILE be one that is already there
  --no-primer     do not tell the agent how to talk to others
  --help          show this help

COMMAND runs in a terminal of its own with the same keys, output, signals and
exit status as without relay. Options end at COMMAND or at --.

Exit status: COMMAND's own (128 + n when signal n ended it), 127 when it is not
found, 126 when it cannot be run, 1 when relay cannot start, 2 for a mistake in
the options.
"""

_VALUED = ("--name", "--task", "--config", "--record")
_FLAGS = ("--no-primer", "--record-input", "--overwrite", "--help")
#: A longer argv is cut from what the session gets in its environment; HELLO has all of it.
_ARGS_MAX = 64 * 1024


class Options:
    """The parsed command line; ``command`` is COMMAND and its arguments."""

    __slots__ = ("values", "flags", "command")

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.flags: set[str] = set()
        self.command: list[str] = []


class CannotRun(RelayError):
    """COMMAND cannot be started; the statuses are the shell's."""

    code = "cannot_run"

    def __init__(self, message: str, status: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.exit_status = status


def main(argv: list[str]) -> int:
    """Run ``relay wrap`` with ``argv`` (without the verb); returns the exit status."""
    from relay.terminal import signals

    signals.plain_interrupt()
    try:
        options = parse(argv)
        if "--help" in options.flags:
            sys.stdout.write(HELP)
            return 0
        if not options.command:
            raise UsageError("no COMMAND to run", hint="for example: relay wrap claude")
        status = wrap(options)
    except RelayError as error:
        return _fail(error.message, error.hint, error.exit_status)
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        return _fail(f"cannot start: {what}{error.strerror}", "", EXIT_FAILED)
    except Exception:
        from relay.cli.main import fault

        error_of_ours = fault()
        return _fail(error_of_ours.message, error_of_ours.hint, EXIT_FAILED)
    if status == -signals.signal.SIGINT:
        # A shell ends its loop or script at Ctrl-C only if the program that had it died of it.
        signals.die_of(-status)
    # Nothing of ours is left to finalise: the interpreter's own end would cost milliseconds.
    os._exit(exit_status(status))


def exit_status(status: int) -> int:
    """What a shell makes of a status that is -n for signal n: 128 + n."""
    return 128 - status if status < 0 else status


def parse(argv: list[str]) -> Options:
    """Options up to ``--`` or the first word that is none. Raises UsageError."""
    options = Options()
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if word == "--":
            options.command = argv[at:]
            break
        if not word.startswith("-") or word == "-":
            options.command = argv[at - 1 :]
            break
        name, equals, value = word.partition("=")
        if name == "-h":
            name = "--help"
        if name in _VALUED:
            if not equals:
                if at == len(argv):
                    raise UsageError(f"{name} needs a value", hint="see: relay wrap --help")
                value = argv[at]
                at += 1
            options.values[name] = value
        elif name in _FLAGS and not equals:
            options.flags.add(name)
        else:
            raise _unknown(word, name)
    return options


def _unknown(word: str, name: str) -> UsageError:
    if name in _FLAGS:
        return UsageError(f"{name} takes no value: {word}", hint="see: relay wrap --help")
    import difflib

    close = difflib.get_close_matches(name, (*_VALUED, *_FLAGS), 1, 0.5)
    meant = f"did you mean {close[0]}?" if close else "see: relay wrap --help"
    return UsageError(
        f"unknown option {word}",
        hint=f"{meant} (options of the program itself go after its name)",
    )


def find_program(command: str, path: str | None) -> str:
    """The file that ``command`` names, looked for as execvp(3) does. Raises CannotRun."""
    if "/" in command:
        candidates = [command]
    else:
        folders = (os.defpath if path is None else path).split(os.pathsep)
        candidates = [os.path.join(folder or ".", command) for folder in folders]
    refused = ""
    for candidate in candidates:
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            refused = refused or candidate
        elif "/" in command and os.path.isdir(candidate):
            raise CannotRun(f"{command} is a directory", 126, "give a program to run")
    if refused:
        raise CannotRun(f"{refused} is not executable", 126, f"make it so with: chmod +x {refused}")
    hint = "check the spelling" if "/" in command else "check the spelling, or install it (PATH)"
    raise CannotRun(f"command not found: {command}", 127, hint)


def wrap(options: Options) -> int:
    """Do what the command line says; returns what ``run`` does. Raises RelayError."""
    values = options.values
    for flag in ("--record-input", "--overwrite"):
        if flag in options.flags and "--record" not in values:
            raise UsageError(f"{flag} without --record", hint=f"add --record FILE, or leave {flag}")
    return run(
        options.command,
        name=values.get("--name"),
        task=values.get("--task"),
        config=values.get("--config"),
        primer="--no-primer" not in options.flags,
        record=values.get("--record"),
        record_input="--record-input" in options.flags,
        overwrite="--overwrite" in options.flags,
        exclusive=True,
    )


def run(
    command: list[str],
    *,
    name: str | None = None,
    task: str | None = None,
    config: str | None = None,
    primer: bool = True,
    record: str | None = None,
    record_input: bool = False,
    overwrite: bool = False,
    session_factory: Callable[[], LoadedConfig] | None = None,
    known: Known | None = None,
    exclusive: bool = False,
) -> int:
    """Claim a name, plan the launch, and run ``command`` here; returns its exit status.

    Death by signal n is -n, as subprocess has it.
    With ``session_factory`` the session is a copy of this process with that configuration, of
    which ``known`` tells.
    ``exclusive``: this process exits afterwards. Raises RelayError before anything starts.
    """
    from relay import names
    from relay.agents import launch
    from relay.ids import new_ulid
    from relay.paths import Home
    from relay.terminal import descriptors
    from relay.terminal import run as terminal
    from relay.terminal.child import Program
    from relay.terminal.listen import Listeners

    descriptors.open_missing()
    path = os.environ.get("PATH")
    find_program(command[0], path)
    if config is not None and not os.path.isfile(config):
        raise UsageError(f"no such configuration file: {config}", hint="make one with: relay init")
    started_ms = time.time_ns() // 1_000_000
    run_id = new_ulid(started_ms)
    home = Home.from_env()
    home.create()
    claim = names.claim(home, name, command[0], run_id)
    if session_factory is None:
        _say_untrusted(home, config)
    try:
        known = _known(home, config, known, command)
        tcp = launch.wants_tcp(command, known.hooks)
        listeners = Listeners(home.session_socket(run_id), tcp)
        about = launch.Run(
            name=claim.name,
            run_id=run_id,
            token=os.urandom(16).hex(),
            port=listeners.port,
            socket=listeners.path,
            folder=home.run_folder(run_id),
            primer=primer,
            namespaces=known.namespaces,
            hooks=known.hooks,
        )
        plan = launch.plan(command, dict(os.environ), about)
        env = _environment(home.root, about, plan.env)
        program = Program(find_program(plan.argv[0], path), plan.argv, env)
        facts: dict[str, object] = {
            "run_id": run_id,
            "name": claim.name,
            "command": command,
            "cwd": _cwd(),
            "started_ms": started_ms,
        }
        session = _session(home, about, plan, facts, listeners, session_factory)
        session.args["task"] = task
        session.args["config"] = None if config is None else os.path.abspath(config)
        recording = None
        if record is not None:
            recording = _recording(record, overwrite, record_input, facts, plan.profile)
        status = terminal.run(program, session, facts, exclusive, recording)
    finally:
        claim.release()
    if not exclusive:
        session.close()
    return status


def _known(home: Home, config: str | None, given: Known | None, command: list[str]) -> Known:
    """What an agent with interfaces of its own can be told, and asked, for this configuration."""
    from relay.agents import launch
    from relay.vocabulary import Known, vocabulary

    if given is not None:
        return given
    return vocabulary(home, _cwd(), config) if launch.is_native(command) else Known()


def _recording(
    path: str, overwrite: bool, keys: bool, facts: dict[str, object], profile: str
) -> Recording:
    from relay import __version__
    from relay.terminal.tap import Recording

    started_ms, command = facts["started_ms"], facts["command"]
    assert isinstance(started_ms, int) and isinstance(command, list)
    header = {
        "version": 2,
        "timestamp": started_ms // 1000,
        "command": command,
        "title": facts["name"],
        "env": {name: os.environ[name] for name in ("SHELL", "TERM") if name in os.environ},
        "relay": {"version": __version__, "agent": facts["name"], "profile": profile},
    }
    return Recording(path, overwrite, keys, header)


def _say_untrusted(home: Home, config: str | None) -> None:
    """Say once that a configuration applies here and will not run, while the person can read it."""
    from relay.trust import untrusted_notice

    try:
        notice = untrusted_notice(home, _cwd(), config)
    except RelayError:
        if config is not None:
            raise
        return  # one that cannot be read does not run, and must not keep the agent from running
    if notice:
        print(notice, file=sys.stderr, flush=True)


def _session(
    home: Home,
    about: Run,
    plan: Launch,
    facts: dict[str, object],
    listeners: Listeners,
    factory: Callable[[], LoadedConfig] | None,
) -> SessionCommand:
    from relay.terminal.environment import original
    from relay.terminal.spawn import SessionCommand

    command = facts["command"]
    assert isinstance(command, list)
    long = sum(map(len, command)) > _ARGS_MAX
    args: dict[str, object] = {
        "run_id": about.run_id,
        "token": about.token,
        "name": about.name,
        "home": home.root,
        "primer": about.primer,
        "profile": plan.profile,
        "launch": plan.data,
        "argv": command[:1] if long else command,
        "cwd": facts["cwd"],
    }
    fds: dict[str, int | None] = {"unix": listeners.unix, "tcp": listeners.tcp, "tty": None}
    log = os.path.join(home.logs, f"{about.run_id}.log")
    entry = None if factory is None else _entry(factory)
    return SessionCommand(session_command(), original(), args, fds, log, about.socket, entry)


def _entry(
    factory: Callable[[], LoadedConfig],
) -> Callable[[dict[str, int | None], dict[str, object]], object]:
    def enter(fds: dict[str, int | None], args: dict[str, object]) -> None:
        from relay.cli import agent_session

        pump = fds["pump"]
        assert pump is not None
        agent_session.run(
            agent_session.Start(pump, fds["unix"], fds["tcp"], fds["tty"], args, factory())
        )

    return enter


def session_command() -> list[str]:
    """The program that hears and speaks for the agent.

    -P: the agent's folder is not ours to import from; a json.py there must not run as relay.
    """
    return [sys.executable, "-P", "-m", "relay.cli.agent_session"]


def _environment(home: str, run: Run, additions: dict[str, str]) -> dict[bytes, bytes]:
    from relay.terminal.environment import original

    env = original()
    env.pop(b"RELAY_PORT", None)  # of a wrapped shell that we were started from
    ours = {
        "RELAY_AGENT": run.name,
        "RELAY_RUN": run.run_id,
        "RELAY_SOCKET": run.socket,
        "RELAY_TOKEN": run.token,
        "RELAY_HOME": home,
    }
    if run.port is not None:
        ours["RELAY_PORT"] = str(run.port)
    for name, value in {**ours, **additions}.items():
        env[os.fsencode(name)] = os.fsencode(value)
    return env


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"  # it was removed under us; the agent will see so itself


def _fail(message: str, hint: str, status: int) -> int:
    print(f"relay: {message}", file=sys.stderr)
    if hint:
        print(f"  {hint}", file=sys.stderr)
    return status or EXIT_USAGE
