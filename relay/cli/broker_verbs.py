"""The verb ``broker``: its process, and what it has for personas to do."""

from __future__ import annotations

import os
import plistlib
import sys
import time
from contextlib import suppress
from typing import Any

from relay.broker.client import check_person, connect, request
from relay.broker.start import NONE_RUNS, launch, may_start, say_starting
from relay.cli import output, table
from relay.cli.parser import Parser
from relay.cli.status import broker_status, print_broker
from relay.cli.verbs import verb
from relay.core.build import build, is_older
from relay.core.errors import BrokerUnavailable, RelayError, Timeout, UsageError, only_the_person
from relay.core.files import is_locked, write_atomically
from relay.core.lock_holders import holders
from relay.core.paths import Home
from relay.core.signals import signal
from relay.protocol.broker import Json
from relay.protocol.service import STOP

#: Longer than a broker takes that must kill a store which hangs. Seconds.
_STOP_WITHIN = 30.0
#: How long a broker may take to answer, and what does not answer to end by itself. Seconds.
_ANSWER_WITHIN, _END_WITHIN = 5.0, 5.0
#: Dispatches that are listed.
_LIMIT = 1000
#: The name by which launchd knows it.
LABEL = "relay.broker"
#: Seconds without anybody after which it ends: a service stays.
_IDLE = 10 * 365 * 24 * 3600
#: Seconds until it is started again. One that a client has started keeps it out meanwhile.
_AGAIN = 30


def add(verbs: Parser) -> None:
    """Declare the verb."""
    group = verb(
        verbs,
        "broker",
        "relay broker status --json\n"
        "  relay broker run            (in the foreground; else it starts by itself)\n"
        "  relay broker queue          what personas have to do\n"
        "  relay broker dead           what none could do, and why\n"
        "  relay broker retry 4QXK7Z2M try it again",
    ).add_subparsers(metavar="run|status|stop|queue|dead|retry|drop|dispatch|install")
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
    queue = group.add_parser("queue", help="what personas are doing, and what waits for them")
    queue.add_argument(
        "which", nargs="?", metavar="ID|PERSONA", help="only this one, or this persona's"
    )
    queue.set_defaults(run=list_verb, dead=False)
    dead = group.add_parser("dead", help="what was given up, and why")
    dead.add_argument(
        "which", nargs="?", metavar="ID|PERSONA", help="only this one, or this persona's"
    )
    dead.set_defaults(run=list_verb, dead=True)
    retry = group.add_parser("retry", help="try again what was given up")
    drop = group.add_parser("drop", help="forget what was given up; the ledger keeps it")
    for parser, dropped in ((retry, False), (drop, True)):
        parser.add_argument("which", nargs="*", metavar="ID|PERSONA", help="as dead lists them")
        parser.add_argument("--all", action="store_true", help="everything that was given up")
        parser.set_defaults(run=again_verb, drop=dropped)
    service = group.add_parser("install", help="install it as a service that keeps running")
    service.add_argument("--yes", action="store_true", help="do not ask")
    service.set_defaults(run=install_verb)
    made = group.add_parser("dispatch", help="ask a persona something yourself")
    made.add_argument("persona", metavar="PERSONA")
    made.add_argument("text", metavar="TEXT", help="the question; - reads it from stdin")
    made.add_argument("--session", metavar="S", help="the persona's session (main)")
    made.add_argument("--mode", metavar="MODE", help="followup, steer, collect or interrupt")
    made.add_argument("--priority", metavar="N", help="above 0: before others (0)")
    made.set_defaults(run=dispatch_verb)
    for parser in (run, status, stop, queue, dead, retry, drop, made):
        parser.add_argument("--json", action="store_true", help="print JSON")


# -- the process


def status_verb(options: Any) -> int:
    """``relay broker status``."""
    found = broker_status(Home.from_env())
    if options.json:
        names = ("running", "pid", "socket", "home", "version", "uptime_s", "problem")
        output.as_json({name: found[name] for name in names})
    else:
        print_broker(found)
    return 0


def run_verb(options: Any) -> int:
    """``relay broker run``."""
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
        question = f"{one.named} holds the broker's lock, and is no broker. End it?"
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


# -- dispatches


def list_verb(options: Any) -> int:
    """``relay broker queue`` and ``relay broker dead``."""
    fields = {"dead": options.dead, "which": options.which, "limit": _LIMIT}
    rows: list[Json] = request("dispatches", **fields, **output.speaker())["rows"]
    if options.json:
        output.as_json([_dispatch(row) for row in rows])
        return 0
    if not rows:
        output.note("nothing is dead" if options.dead else "nothing waits for a persona")
        return 0
    width = table.columns()
    table.table(
        ("SINCE", "ID", "PERSONA", "SESSION", "STATE", "FROM", "TEXT"),
        [
            (
                table.when(row["created_ms"]),
                row["id"] if width is None else row["id"][-8:],
                *(row["persona"], row["session"], _state(row), row["from"]),
                output.summary(row["body"]),
            )
            for row in rows
        ],
        width=width,
        remarks=[row["reason"] for row in rows],
    )
    if options.dead:
        output.note("relay broker retry ID tries one again, relay broker drop ID forgets it")
    return 0


def _state(row: Json) -> str:
    tried = f", try {row['tries'] + 1}" if row["tries"] and row["state"] != "dead" else ""
    return f"{row['state']}{tried}{' answer' if row['what'] == 'answer' else ''}"


def _dispatch(row: Json) -> Json:
    return output.shaped(row, [name.replace("_ms", "_at") for name in row])


def again_verb(options: Any) -> int:
    """``relay broker retry`` and ``relay broker drop``."""
    if bool(options.which) == options.all:
        raise UsageError("name dispatches or personas, or give --all", hint="relay broker dead")
    which = None if options.all else options.which
    fields = {"which": which, "drop": options.drop, **output.speaker()}
    rows = request("redispatch", **fields)["rows"]
    if options.json:
        output.as_json([_dispatch(row) for row in rows])
        return 0
    for row in rows:
        whom = f"channel {row['channel']}" if row["what"] == "answer" else row["persona"]
        done = "dropped" if options.drop else f"waits for {whom} again"
        output.data(f"{row['id'][-8:]}  {output.summary(row['body'])}: {done}")
    if not rows:
        output.note("nothing is dead")
    return 0


def dispatch_verb(options: Any) -> int:
    """``relay broker dispatch``."""
    import sys

    text = sys.stdin.read() if options.text == "-" else options.text
    try:
        priority = int(options.priority or 0)
    except ValueError as error:
        raise UsageError(f"a priority is a whole number, not {options.priority}") from error
    fields = {"session": options.session, "mode": options.mode, "priority": priority}
    made = request("dispatch", persona=options.persona, body=text, **fields, **output.speaker())
    if options.json:
        output.as_json({name: made[name] for name in ("id", "event", "waits")})
        return 0
    output.data(made["id"])
    if made["waits"]:
        output.note(f"it waits: {made['waits']}")
    return 0


def install_verb(options: Any) -> int:
    """``relay broker install``."""
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
    return path, plistlib.dumps(wanted).decode(), f"launchctl load -w {path}"
