"""``relay broker run|status|stop``."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from relay.broker.client import connect
from relay.cli import output
from relay.cli.agents import broker_status, print_broker
from relay.cli.messages import verb
from relay.core.errors import EXIT_USAGE, BrokerUnavailable, Timeout, UsageError
from relay.core.paths import Home

#: Longer than a broker takes that must kill a store which hangs. Seconds.
_STOP_WITHIN = 30.0


def add(subparsers: Any) -> None:
    """Add the verb to the command line."""
    parser = verb(
        subparsers,
        "broker",
        "the process that keeps the messages: run, status, stop",
        "relay broker status --json\n  relay broker stop\n"
        "  relay broker run      (in the foreground; else it starts by itself)",
    )
    parser.add_argument("action", choices=("run", "status", "stop"), metavar="run|status|stop")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=broker_verb)


def broker_verb(options: Any) -> int:
    """``relay broker …``."""
    home = Home.from_env()
    if options.action == "status":
        return _status(home, options.json)
    if options.action == "stop":
        return _stop(home, options.json)
    if options.action == "run":
        return _run(home)
    return EXIT_USAGE


def _status(home: Home, in_json: bool) -> int:
    found = broker_status(home)
    if in_json:
        names = ("running", "pid", "socket", "home", "version", "uptime_s")
        output.as_json({name: found[name] for name in names})
    else:
        print_broker(found)
    return 0


def _run(home: Home) -> int:
    from relay.broker.main import run
    from relay.core.log import Log

    if broker_status(home)["running"]:
        raise UsageError("a broker is running already", hint="relay broker stop ends it")
    output.note(f"serving {home.root}; Ctrl-C ends it")
    return run(home, Log(home.broker_log))


def _stop(home: Home, in_json: bool) -> int:
    try:
        with connect(home, start=False) as client:
            pid = client.request("stop")["pid"]
    except BrokerUnavailable as error:
        if "no broker is running" not in error.message:
            raise
        pid = None
    if pid is not None:
        _wait_for_end(home, pid)
    if in_json:
        output.as_json({"stopped": pid is not None, "pid": pid})
    else:
        output.note(f"stopped (pid {pid})" if pid else "no broker is running")
    sys.stdout.flush()
    return 0


def _wait_for_end(home: Home, pid: int) -> None:
    """Return when the broker has let go of its lock, so that the next start finds it free."""
    import fcntl

    end = time.monotonic() + _STOP_WITHIN
    lock = os.open(home.broker_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if _succeeded(home, pid):
                    return
                if time.monotonic() > end:
                    raise Timeout(
                        f"the broker (pid {pid}) has not ended yet", hint=f"kill {pid}"
                    ) from None
                time.sleep(0.02)
    finally:
        os.close(lock)


def _succeeded(home: Home, pid: int) -> bool:
    """Whether another broker has the lock by now: a session may have started it at once."""
    try:
        with open(home.broker_lock, encoding="ascii") as file:
            return file.read().strip() not in (str(pid), "")
    except (OSError, UnicodeDecodeError):
        return False
