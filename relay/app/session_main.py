"""The process behind one wrapped agent: ``python -m relay.app.session_main``, started by the pump.

Everything of relay's that may be slow, may fail or belongs to the user runs here, so that none of
it can touch the agent. What it is started with stands in two variables of the environment that
the pump sets; it is not a command for people.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
from dataclasses import replace
from typing import TextIO, cast

from relay.app.session_parts import SessionParts, Start, session_facts
from relay.config.load import LoadedConfig, load_for_session, with_hook_files
from relay.config.settings import Settings
from relay.core.errors import RelayError
from relay.core.log import Log, LogStream
from relay.core.paths import Home
from relay.core.processes import SESSION, name_process
from relay.hooks.events import HookEventName
from relay.hooks.registry import BUILTIN, Registry
from relay.session.handler_lanes import register
from relay.session.pump_link import PumpLink
from relay.session.session_events import EventQueue, PumpCheckpoint, PumpHello

#: Files of runs' logs that are kept; each has at most 1 MiB.
RUN_LOGS_MAX = 200
_RUN_LOG = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}\.log(?:\.1)?")
#: How long the pump may take to say hello.
HELLO_DEADLINE = 30.0
#: A pump that hangs up is about to end; how long that may take. Seconds.
PARENT_PATIENCE = 0.5


def main() -> int:
    """Run one session; the exit status is for the pump's log only."""
    fds = json.loads(os.environ.pop("RELAY_SESSION_FDS"))
    args = json.loads(os.environ.pop("RELAY_SESSION_ARGS"))
    name_process(SESSION)
    os.environ["RELAY_CALLED"] = "1"
    status = run(Start(fds.pop("pump"), fds, args))
    drop_empty_log(Home(args["home"]), args["run_id"])
    drop_old_logs(Home(args["home"]))
    return status


def run(start: Start) -> int:
    """Run a session in this process until its agent has ended."""
    # The person's Ctrl-C is for the agent; a broken socket is an error like any other.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # What a handler prints is for the log; there is no terminal here that it could go to.
    log = Log(log_path(Home(start.args["home"]), start.args["run_id"]), _masked)
    printed = LogStream(log)
    before = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = cast(TextIO, printed)
    try:
        asyncio.run(serve(start))
    except RelayError as error:
        print(f"relay session: {error.line}", file=sys.stderr)
        return 1
    except BaseException:
        log.fault()
        raise
    finally:
        sys.stdout, sys.stderr = before
        printed.close()
    return 0


def _masked(text: str) -> str:
    from relay.directive.redact import redact  # most sessions have nothing to log

    return redact(text)


def log_path(home: Home, run_id: str) -> str:
    """The log of one run; the pump has it open as its session's standard error."""
    return os.path.join(home.logs, f"{run_id}.log")


def drop_empty_log(home: Home, run_id: str) -> None:
    """Remove this run's log when nothing was written to it: most runs have nothing to say."""
    path = log_path(home, run_id)
    with contextlib.suppress(OSError):
        if os.stat(path).st_size == 0:
            os.unlink(path)


def drop_old_logs(home: Home) -> None:
    """Keep the logs of the latest ``RUN_LOGS_MAX`` runs that had something to say."""
    with contextlib.suppress(OSError):
        # Their names begin with the time: ULIDs, which are longer than the other logs' names.
        logs = sorted(name for name in os.listdir(home.logs) if _RUN_LOG.fullmatch(name))
        for name in logs[:-RUN_LOGS_MAX]:
            os.unlink(os.path.join(home.logs, name))


async def serve(start: Start) -> None:
    """Everything from the pump's hello to the last word of the agent."""
    loop = asyncio.get_running_loop()
    pump = os.getppid()
    queue = EventQueue()
    watchers = start.features.watchers(start.fds, start.args.get("profile") or "")
    link = PumpLink(queue, watchers)
    await loop.create_connection(lambda: link, sock=socket.socket(fileno=start.pump))
    async with asyncio.timeout(HELLO_DEADLINE):
        hello = await queue.next()
        checkpoint = await queue.next() if isinstance(hello, PumpHello) else None
    home = Home(start.args["home"])
    if not isinstance(hello, PumpHello) or not isinstance(checkpoint, PumpCheckpoint):
        if await _gone(pump):
            home.remove_run(start.args["run_id"])
        return
    config = await _configuration(start, home, guarded=bool(hello.facts.get("guarded", True)))
    start.features.register(config.registry, session_facts(start, hello, config))
    parts = SessionParts(start, hello, checkpoint, config, link, queue)
    driver = parts.driver
    running = loop.create_task(driver.run())
    over = False  # until then the pump needs what this run has on the disk for a next session
    try:
        await parts.begin()
        await driver.until_exit()
        if not driver.orderly and not await _gone(pump):
            return  # the pump is alive and has hung up on this session only
        over = True
        # First: the person should not have to wait for handlers and the broker.
        parts.restore_terminal()
        await parts.read_last_records()
        await driver.end()
    finally:
        running.cancel()
        await parts.close(over=over)
        for watcher in watchers:
            watcher.close()


async def _gone(parent: int) -> bool:
    """Whether our parent has died; its sockets close a moment before it is gone."""
    end = time.monotonic() + PARENT_PATIENCE
    while os.getppid() == parent:
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.01)
    return True


async def _configuration(start: Start, home: Home, *, guarded: bool = True) -> LoadedConfig:
    """The user's handlers with relay's own, and what is wrong with the configuration if anything.

    A configuration that cannot be used costs its handlers and, because it may have chosen where
    they are, the memories, never the agent or the messages. Where the agent was started with gates
    for it (``guarded``), they stay shut: what it guards nobody knows now.
    """
    config = start.config
    if config is None:
        try:
            config = await asyncio.to_thread(
                load_for_session, home, start.args["cwd"], start.args.get("config")
            )
        except RelayError as error:
            config = LoadedConfig(
                *(None, Registry(), Settings(), None),
                unusable=error,
                not_applied=(error.line,),
                unguarded=error.line,
            )
        if not config.files and not config.unguarded:
            gone = "the configuration with which this agent was started is gone"
            config = replace(config, unguarded=gone)
    else:
        config = await asyncio.to_thread(with_hook_files, config, start.args["cwd"], home)
    launch = start.args.get("launch") or {}
    gates = launch.get("gates", ()) if guarded else ()
    if HookEventName.BEFORE_TOOL.value in gates and config.unguarded:
        _stay_shut(config.registry, config.unguarded)
        if config.unguarded not in config.not_applied:
            config = replace(config, not_applied=(*config.not_applied, config.unguarded))
    register(config.registry)
    return config


def _stay_shut(registry: Registry, problem: str) -> None:
    """Refuse every tool: the hooks that may guard it could not be loaded."""
    reason = (
        f"no tool runs, because the hooks that may guard it could not be loaded: {problem}. A"
        " person has to mend that, and to start this agent again"
    )

    def refuse() -> dict[str, str]:
        return {"deny": reason}

    registry.add_hook(HookEventName.BEFORE_TOOL, refuse, name="relay", source=BUILTIN)


if __name__ == "__main__":
    sys.exit(main())
