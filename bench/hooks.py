"""What hooks cost an agent: a tool call that is asked about, and the engine behind it.

    python bench/hooks.py [--rounds N] [--case NAME] [--json]

``http``: an agent's http hook, 2 KB to the loopback port of a real session (a stand-in for Claude
Code runs under ``relay wrap``), with no Python hook registered and with one; beside it a bare HTTP
echo server. The client is the same for both, and nothing but a socket: it opens a connection for
each request, or keeps one. ``command``: the command line that Codex gets, beside ``sh -c true``,
both spawned alike. ``many``: 100 Python functions for one event beside one, through the whole
engine, until their answer is there (their records are made after it); such as do nothing, and such
as wait for 10 ms. ``unused``: an event that nothing is
registered for, beside a look-up in a dictionary and an awaited coroutine that does nothing.

Everything is measured in turn, a few samples at a time; the figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from harness import Terminal, command, deadline, home, relay, wait_ready, wait_until

from relay.agents.claude.launch import OLDEST, PACKAGE
from relay.agents.codex.launch import PATIENCE, UNASKED
from relay.agents.hook_install import asker
from relay.hooks.context import Context, Identity, recent_messages, recent_output
from relay.hooks.engine import HookEventHandler
from relay.hooks.events import HookEventName
from relay.hooks.registry import Registry
from relay.hooks.run_functions import FunctionRunner
from relay.session.background import Tasks
from relay.session.session_events import EventQueue
from relay.session.session_hooks import SessionConfig, SessionHookLog, make_engine

CASES = ("http", "command", "many", "unused")
HTTP_GOAL, COMMAND_GOAL, MANY_GOAL = 6.0, 3.0, 3.0
MANY = 100
BODY_SIZE = 2048
EVENT = HookEventName.BEFORE_TOOL
GAP = (0.002, 0.006)  # seconds before a request: the servers sleep when it comes
#: The reference of ``http``: reads a request to its end, and answers 200 with the same JSON body.
#: Streams of asyncio as in the session, nothing parsed but the length, no checks, no limits.
ECHO = r"""
import asyncio, json, socket, sys

async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            body = json.dumps(json.loads(await reader.readexactly(length))).encode()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d"
            writer.write((head + b"\r\n\r\n%s") % (len(body), body))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, sock=socket.create_server(("127.0.0.1", 0)))
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""
CLAUDE = """#!/bin/sh
printf '%s %s' "$RELAY_PORT" "$RELAY_TOKEN" > port.new && mv port.new port
exec sleep 3600
"""
CONFIG = """
from relay import Relay

relay = Relay()


@relay.on("before_tool")
def no_force(tool, input):
    if "push --force" in str(input.get("command", "")):
        return {"deny": "never force a push"}
"""


def event(folder: Path) -> bytes:
    """What Claude Code sends before a tool runs, of BODY_SIZE bytes."""
    said: dict[str, Any] = {
        "session_id": "0c5b9f3e-3a55-4f0e-9a51-7c1f2d5f8a10",
        "transcript_path": str(folder / "transcript.jsonl"),
        "cwd": str(folder),
        "permission_mode": "default",
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "", "description": "Say a few words"},
        "tool_use_id": "toolu_01A09q90qw90lq917835lq9",
    }
    said["tool_input"]["command"] = "echo " + "x" * (BODY_SIZE - 5 - len(json.dumps(said)))
    return json.dumps(said).encode()


@dataclass
class Server:
    """Somebody who answers HTTP requests on a loopback port."""

    port: int
    token: str
    body: bytes
    kept: socket.socket | None = None

    def __post_init__(self) -> None:
        head = (
            f"POST /hook HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
            f"Authorization: Bearer {self.token}\r\nContent-Type: application/json\r\n"
            f"X-Relay-Messaging-Socket: \r\nContent-Length: {len(self.body)}\r\n\r\n"
        )
        self.request = head.encode() + self.body

    def ask_anew(self) -> None:
        """One request on a connection of its own."""
        with self._connect() as connection:
            self._ask(connection)

    def ask_again(self) -> None:
        """One request on the connection that is kept."""
        if self.kept is None:
            self.kept = self._connect()
        self._ask(self.kept)

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), 30)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _ask(self, connection: socket.socket) -> None:
        connection.sendall(self.request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += _some(connection)
        head, _, rest = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the answer was {answer!r}")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        while len(rest) < length:
            rest += _some(connection)


def _some(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise SystemExit("the server hung up")
    return data


@contextlib.contextmanager
def echo_server(body: bytes) -> Iterator[Server]:
    argv = [sys.executable, "-c", ECHO]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield Server(int(process.stdout.readline()), "", body)
        finally:
            process.terminate()


@contextlib.contextmanager
def session(folder: Path, env: dict[str, str], config: str, body: bytes) -> Iterator[Server]:
    """A wrapped stand-in for Claude Code, whose session answers; ``config`` is its hooks'."""
    project = folder / ("hooked" if config else "bare")
    (project / ".git").mkdir(parents=True)
    if config:
        (project / "relay.config.py").write_text(config)
        relay(env, "trust", str(project / "relay.config.py"))
    program = folder / "claude-code" / "claude"
    if not program.exists():  # as npm would have installed it, for the version is asked for
        program.parent.mkdir()
        described = {"name": PACKAGE, "version": ".".join(map(str, OLDEST))}
        (program.parent / "package.json").write_text(json.dumps(described))
        program.write_text(CLAUDE)
        program.chmod(0o755)
    terminal = Terminal(
        command("wrap", [str(program)], ["--name", project.name]), env, str(project)
    )
    try:
        wait_ready(terminal, project.name, env)
        wait_until((project / "port").exists, "the stand-in to start")
        port, token = (project / "port").read_text().split()
        yield Server(int(port), token, body)
    finally:
        terminal.close()


def spawned(shell: str, env: dict[str, str], given: bytes) -> Callable[[], None]:
    """Runs ``shell`` as an agent runs a hook: ``given`` is its input, its output is read."""

    def run() -> None:
        done = subprocess.run(
            ["sh", "-c", shell], input=given, env=env, capture_output=True, timeout=30
        )
        if done.returncode or done.stderr:
            raise SystemExit(f"the hook ended with {done.returncode}: {done.stderr!r}")

    return run


def spend(action: Callable[[], object], count: int) -> list[float]:
    """Microseconds, ``count`` times."""
    taken = []
    for _ in range(count):
        time.sleep(random.uniform(*GAP))
        began = time.perf_counter_ns()
        action()
        taken.append((time.perf_counter_ns() - began) / 1000)
    return taken


async def spend_awaited(action: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Microseconds, ``count`` times."""
    taken = []
    for _ in range(count):
        began = time.perf_counter_ns()
        await action()
        taken.append((time.perf_counter_ns() - began) / 1000)
        await asyncio.sleep(0)  # the records of the hooks are made when the agent has its answer
    return taken


Samples = dict[str, list[float]]


def measure_outside(rounds: int, cases: list[str], samples: Samples) -> None:
    """``http`` and ``command``: both ask a real session."""
    with contextlib.ExitStack() as stack:
        folder, env = stack.enter_context(home())
        (folder / "transcript.jsonl").touch()
        body = event(folder)
        stack.enter_context(deadline(60 + 5 * rounds, "the servers do not answer"))
        echo = stack.enter_context(echo_server(body))
        bare = stack.enter_context(session(folder, env, "", body))
        hooked = stack.enter_context(session(folder, env, CONFIG, body))
        asking = {**env, "RELAY_PORT": str(hooked.port), "RELAY_TOKEN": hooked.token}
        actions: dict[str, tuple[Callable[[], None], int]] = {}
        if "http" in cases:
            for name, server in (("echo", echo), ("no hook", bare), ("one hook", hooked)):
                actions[f"{name}, new"] = (server.ask_anew, 20)
                actions[f"{name}, kept"] = (server.ask_again, 20)
        if "command" in cases:
            actions["sh -c true"] = (spawned("true", asking, body), 5)
            actions["asker"] = (spawned(asker(PATIENCE, UNASKED), asking, body), 5)
        collect(rounds, actions, samples)
        for server in (echo, bare, hooked):
            if server.kept is not None:
                server.kept.close()


def collect(
    rounds: int, actions: dict[str, tuple[Callable[[], None], int]], samples: Samples
) -> None:
    order = list(actions)
    for name in order:
        spend(actions[name][0], 3)
    for _ in range(rounds):
        for name in order:
            samples.setdefault(name, []).extend(spend(*actions[name]))
        order.append(order.pop(0))  # none always comes first


def quick(tool: str, input: dict[str, Any]) -> dict[str, Any] | None:
    if "push --force" in str(input.get("command", "")):
        return {"deny": "never force a push"}
    return None


async def quick_async(tool: str, input: dict[str, Any]) -> dict[str, Any] | None:
    return quick(tool, input)


def waiting(tool: str, input: dict[str, Any]) -> None:
    time.sleep(0.010)


async def waiting_async(tool: str, input: dict[str, Any]) -> None:
    await asyncio.sleep(0.010)


FUNCTIONS: dict[str, Callable[..., object]] = {
    "sync": quick,
    "async": quick_async,
    "sync, 10 ms": waiting,
    "async, 10 ms": waiting_async,
}


class WillingBroker:
    """A broker that takes everything."""

    async def request(self, op: str, *_: Any, **fields: Any) -> Any:
        return {}


def engine_of(registry: Registry, functions: FunctionRunner) -> HookEventHandler:
    """The engine of a session, whose records go to a broker that takes everything."""
    identity = Identity("bench", "bench", "run", os.getcwd(), dict(os.environ))
    context = Context(identity, cast(Any, None), recent_output(), recent_messages())
    events = EventQueue()
    log = SessionHookLog(WillingBroker(), events, Tasks(events))
    config = SessionConfig(identity, context, None)
    return make_engine(config, registry, functions, env=identity.env, log=log)


async def measure_engine(rounds: int, cases: list[str], samples: Samples) -> None:
    """``many`` and ``unused``: in this process."""
    fields = json.loads(event(Path.cwd()))
    given = {name: fields[name] for name in ("tool_name", "tool_input", "tool_use_id")}
    engines: dict[str, HookEventHandler] = {}
    runners: list[FunctionRunner] = []
    for name, function in FUNCTIONS.items():
        for count in (1, MANY):
            registry = Registry()
            for _ in range(count):
                registry.add_hook(EVENT, function)
            runners.append(FunctionRunner(registry))
            engines[f"{count} {name}"] = engine_of(registry, runners[-1])
    if "many" in cases:
        for turn in range(rounds + 1):
            for name, engine in engines.items():
                count = 3 if name.startswith(str(MANY)) else 10
                taken = await spend_awaited(lambda e=engine: e.fire(EVENT, given), count)  # type: ignore[misc]
                result = await engine.fire(EVENT, given)
                if not result.success or len(result.results) not in (1, MANY):
                    raise SystemExit(f"the hooks of {name} failed: {result.errors[:1]}")
                if turn:  # the first is to get warm
                    samples.setdefault(name, []).extend(taken)
    if "unused" in cases:
        for _ in range(rounds):
            await unused(engines["1 sync"], given, samples)
    for runner in runners:
        await runner.close()


async def unused(engine: HookEventHandler, given: dict[str, Any], samples: Samples) -> None:
    """Microseconds of one call, as a mean of many."""
    nothing, count = HookEventName.AFTER_TOOL, 2000
    table: dict[HookEventName, tuple[object, ...]] = {EVENT: ()}

    async def noop(event: HookEventName, fields: dict[str, Any]) -> None:
        return None

    def took(name: str) -> None:
        taken = (time.perf_counter_ns() - began) / 1000 / count
        samples.setdefault(name, []).append(taken)

    began = time.perf_counter_ns()
    for _ in range(count):
        bool(table.get(nothing, ()))
    took("dict")
    began = time.perf_counter_ns()
    for _ in range(count):
        engine.has(nothing)
    took("has")
    began = time.perf_counter_ns()
    for _ in range(count):
        if not table.get(nothing, ()):
            await noop(nothing, given)
    took("dict and coroutine")
    began = time.perf_counter_ns()
    for _ in range(count):
        await engine.fire(nothing, given)
    took("fire")


#: What is compared: case, measured, reference, the most that the ratio may be (None: none is set).
COMPARED: list[tuple[str, str, str, float | None]] = [
    ("http", "no hook, new", "echo, new", HTTP_GOAL),
    ("http", "no hook, kept", "echo, kept", HTTP_GOAL),
    ("http", "one hook, new", "echo, new", HTTP_GOAL),
    ("http", "one hook, kept", "echo, kept", HTTP_GOAL),
    ("command", "asker", "sh -c true", COMMAND_GOAL),
    # Those that do nothing have no goal: a thread's wake-up is most of what one of them takes.
    *(
        ("many", f"{MANY} {name}", f"1 {name}", MANY_GOAL if "ms" in name else None)
        for name in FUNCTIONS
    ),
    ("unused", "has", "dict", None),
    ("unused", "fire", "dict and coroutine", None),
]


def judge(samples: Samples, cases: list[str]) -> list[dict[str, Any]]:
    rows = []
    for case, name, reference, goal in COMPARED:
        if case in cases:
            took, beside = statistics.median(samples[name]), statistics.median(samples[reference])
            ratio = took / beside
            rows.append(
                {
                    "case": case,
                    "measured": name,
                    "us": round(took, 3),
                    "reference": reference,
                    "reference_us": round(beside, 3),
                    "ratio": round(ratio, 2),
                    "goal": goal,
                    "met": goal is None or ratio <= goal,
                }
            )
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'medians in µs':28} {'':>10} {'reference':>30} {'ratio':>7} {'goal':>6}")
    for row in rows:
        beside = f"{row['reference']} {row['reference_us']:.4g}"
        goal = "–" if row["goal"] is None else f"{row['goal']:g}"
        mark = "" if row["met"] else "  missed"
        print(
            f"{row['case'] + ': ' + row['measured']:28} {row['us']:10.4g} {beside:>30}"
            f" {row['ratio']:7.2f} {goal:>6}{mark}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--case", choices=CASES, action="append", help="only this one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases = options.case or list(CASES)
    samples: Samples = {}
    if {"http", "command"} & set(cases):
        measure_outside(options.rounds, cases, samples)
    if {"many", "unused"} & set(cases):
        asyncio.run(measure_engine(options.rounds, cases, samples))
    rows = judge(samples, cases)
    if options.json:
        print(json.dumps(rows))
    else:
        show(rows)
    return 0 if all(row["met"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
