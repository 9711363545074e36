"""The verb ``broker``: its process."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import Any

from relay.broker.client import check_person, connect
from relay.broker.start import NONE_RUNS, launch, may_start, say_starting
from relay.cli import door, output
from relay.cli.parser import Parser
from relay.cli.status import broker_status, print_broker
from relay.cli.verbs import verb
from relay.core.build import build, is_older
from relay.core.errors import BrokerUnavailable, RelayError, Timeout, UsageError, only_the_person
from relay.core.files import holders, is_locked, write_atomically
from relay.core.paths import Home
from relay.core.signals import signal
from relay.protocol.broker_ops import STOP

#: Longer than a broker takes that must kill a store which hangs. Seconds.
_STOP_WITHIN = 30.0
#: How long a broker may take to answer, and what does not answer to end by itself. Seconds.
_ANSWER_WITHIN, _END_WITHIN = 5.0, 5.0
#: The name by which launchd knows it.
LABEL = "relay.broker"
#: Seconds without anybody after which it ends: a service stays.
_IDLE = 10 * 365 * 24 * 3600
#: Seconds until it is started again. One that a client has started keeps it out meanwhile.
_AGAIN = 30


def add(verbs: Parser) -> None:
    group = verb(
        verbs,
        "broker",
        "relay broker status --json\n"
        "  relay broker run            (in the foreground; else it starts by itself)",
    ).add_subparsers(alone="status")
    run = group.add_parser("run", help="run the broker in the foreground")
    run.set_defaults(run=run_verb)
    status = group.add_parser("status", help="whether it runs, and since when")
    status.set_defaults(run=status_verb)
    stop = group.add_parser("stop", help="stop it; stored messages wait for the next one")
    stop.add_argument(
        "--yes",
        action="store_true",
        help="do not ask before ending another process that holds the broker's lock",
    )
    stop.set_defaults(run=stop_verb)
    service = group.add_parser("install", help="install it as a service that keeps running")
    service.add_argument("--yes", action="store_true", help="do not ask")
    service.set_defaults(run=install_verb)
    for parser in (run, status, stop):
        parser.add_argument("--json", action="store_true", help="print JSON")
    for _, add_parts in door.given("add_parts"):
        add_parts("broker", group)


def status_verb(options: Any) -> int:
    found = broker_status(Home.from_env())
    if options.json:
        names = ("running", "pid", "socket", "home", "version", "uptime_s", "problem")
        output.as_json({name: found[name] for name in names})
    else:
        print_broker(found)
    return 0


def run_verb(options: Any) -> int:
    home = Home.from_env()
    if not may_start(home):
        raise only_the_person("run the broker")
    from relay.broker.main import masked, run
    from relay.core.log import Log

    if broker_status(home)["running"]:
        raise UsageError("a broker is running already", hint="relay broker stop ends it")
    output.note(f"serving {home.root}; Ctrl-C ends it")
    return run(home, Log(home.broker_log, masked))


def stop_verb(options: Any) -> int:
    """``relay broker stop``: of one that does not answer, or what is in its place, by a signal."""
    home = Home.from_env()
    pid: int | None = None
    is_outdated = False
    try:
        with connect(home, start=False, deadline=_ANSWER_WITHIN) as client:
            is_outdated = is_older(client.version, build())
            if is_outdated:
                say_starting(home)
            pid = client.request(STOP, deadline=_ANSWER_WITHIN, **output.speaker())["pid"]
            _wait_for_end(home, pid)
    except (BrokerUnavailable, Timeout) as error:
        if error.code != NONE_RUNS:
            pid = _end_holders(home, error, yes=options.yes)
    if is_outdated:
        _take_its_place(home)
    if options.json:
        output.as_json({"stopped": pid is not None, "pid": pid})
    else:
        output.note(f"stopped (pid {pid})" if pid else "no broker is running")
    return 0


def _end_holders(home: Home, error: RelayError, *, yes: bool) -> int:
    """End what holds the broker's lock and does not answer. Returns one's pid; raises ``error``
    where nobody can tell who holds it."""
    if not may_start(home):
        raise only_the_person("stop the broker")
    found = holders(home.broker_lock)
    if not found:
        raise error
    for one in found:
        question = f"{one.named} holds the broker's lock, and is not a broker. End it?"
        if not one.is_broker and not output.agreed(question, yes=yes):
            raise error
    for number in (signal.SIGTERM, signal.SIGKILL):
        for one in found:
            with suppress(ProcessLookupError):
                os.kill(one.pid, number)
                os.kill(one.pid, signal.SIGCONT)  # a stopped one takes no signal but these
        end = time.monotonic() + _END_WITHIN
        while is_locked(home.broker_lock) and not _succeeded(home, found[0].pid):
            if time.monotonic() > end:
                break
            time.sleep(0.02)
        else:
            return found[0].pid
    raise Timeout(f"{found[0].named} has not ended yet", hint=f"kill -9 {found[0].pid}")


def _take_its_place(home: Home) -> None:
    """Start a broker of this relay, before sessions of the older one start theirs again."""
    launch(home)
    end = time.monotonic() + _END_WITHIN
    while not is_locked(home.broker_lock) and time.monotonic() < end:
        say_starting(home)
        time.sleep(0.02)
    with connect(home) as client:
        output.note(f"a broker of this version runs now ({client.version})")


def _wait_for_end(home: Home, pid: int) -> None:
    """Return when the broker has let go of its lock, so that the next start finds it free."""
    end = time.monotonic() + _STOP_WITHIN
    while is_locked(home.broker_lock) and not _succeeded(home, pid):
        if time.monotonic() > end:
            raise Timeout(f"the broker (pid {pid}) has not ended yet", hint=f"kill {pid}")
        time.sleep(0.02)


def _succeeded(home: Home, pid: int) -> bool:
    """Whether another broker has the lock by now: a session may have started it at once."""
    try:
        with open(home.broker_lock, encoding="ascii") as file:
            return file.read().strip() not in (str(pid), "")
    except (OSError, UnicodeDecodeError):
        return False


def install_verb(options: Any) -> int:
    home = Home.from_env()
    check_person(home, "install the broker as a service")
    path, text, start = launchd(home) if sys.platform == "darwin" else systemd(home)
    if _is_there(path, text):
        output.note(f"{path} is there already; {start} starts it")
        return 0
    output.data(f"# {path}")
    output.lines(text)
    if os.path.exists(path):
        output.note("it replaces the one that is there")
    if not output.agreed("Write it?", yes=options.yes):
        return 1
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise RelayError(f"cannot write {path}: {error.strerror}", code="failed") from error
    output.note(f"written; {start} starts it, now and whenever you log in")
    return 0


def _is_there(path: str, text: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read() == text
    except (OSError, UnicodeDecodeError):
        return False


def _command(home: Home) -> list[str]:
    # As a module: where a client has started a broker, this one ends without an error.
    return [sys.executable, "-P", "-m", "relay.broker", "--home", home.root]


def systemd(home: Home) -> tuple[str, str, str]:
    """Path and text of the unit, and the command that starts it."""
    base = os.environ.get("XDG_CONFIG_HOME")
    if not base or not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    words = " ".join(_quoted(word) for word in _command(home))
    text = (
        "[Unit]\n"
        "Description=The broker of relay\n"
        "\n"
        "[Service]\n"
        f"ExecStart={words}\n"
        f"Environment=RELAY_BROKER_IDLE={_IDLE}\n"
        "Restart=always\n"
        f"RestartSec={_AGAIN}\n"
        "\n"
        "[Install]\n"
        "WantedBy=default.target\n"
    )
    start = "systemctl --user enable --now relay-broker"
    return os.path.join(base, "systemd", "user", "relay-broker.service"), text, start


def _quoted(word: str) -> str:
    """A word of a command line as systemd reads it."""
    for char, spelled in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(char, spelled)
    return f'"{word}"'


def launchd(home: Home) -> tuple[str, str, str]:
    """Path and text of the property list, and the command that starts it."""
    path = os.path.expanduser(f"~/Library/LaunchAgents/{LABEL}.plist")
    wanted = {
        "Label": LABEL,
        "ProgramArguments": _command(home),
        "EnvironmentVariables": {"RELAY_BROKER_IDLE": str(_IDLE)},
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": _AGAIN,
    }
    import plistlib  # which imports much

    return path, plistlib.dumps(wanted).decode(), f"launchctl load -w {path}"
