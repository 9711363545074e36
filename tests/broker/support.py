"""A broker of the test's own, and sessions that are scripts."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from typing import Any

from relay.broker.async_client import AsyncClient
from relay.broker.client import BrokerClient, connect
from relay.broker.connection import CONNECTIONS_MAX
from relay.broker.kernel import Kernel
from relay.broker.loop_guard import LoopGuard
from relay.broker.main import listen
from relay.broker.ops_agents import GRACE
from relay.broker.server import IDLE, BrokerLimits, BrokerServer, wall_ms
from relay.core.build import build
from relay.core.errors import RelayError
from relay.core.files import is_locked, sign_lock, take_lock, unlink_if_there
from relay.core.ids import new_ulid
from relay.core.log import Log
from relay.core.paths import Home
from relay.ledger.store import Ledger
from relay.protocol.agent_ops import REGISTER
from relay.protocol.broker import encode
from relay.protocol.broker_ops import STATUS, STOP
from relay.protocol.item_ops import ITEM_ANSWER, ITEMS
from tests.support import PATIENCE, wait_until

Json = dict[str, Any]


def stop_broker(home: Home) -> None:
    """Stop the broker of ``home``, if one runs, and wait until it has ended."""
    try:
        with connect(home, start=False) as client:
            client.request(STOP)
    except RelayError:
        pass
    wait_until(lambda: lock_is_free(home), what="the broker to end")


def kill_broker(home: Home) -> None:
    """Kill the broker of ``home``, a process, with SIGKILL."""
    with connect(home, start=False) as client:
        os.kill(client.request(STATUS)["pid"], signal.SIGKILL)
    wait_until(lambda: lock_is_free(home), what="the broker to end")


def lock_is_free(home: Home) -> bool:
    """Whether nobody is the broker of ``home``."""
    return not is_locked(home.broker_lock)


@contextmanager
def lock_kept(home: Home) -> Iterator[subprocess.Popen[bytes]]:
    """A process that was left with the broker's lock, which another one took, and is no broker."""
    with open(home.broker_lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(["sleep", "600"], pass_fds=(lock.fileno(),))
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=30)


class LineLog(Log):
    """A log whose lines a test reads: in ``lines`` and on its output."""

    def __init__(self) -> None:
        super().__init__(os.devnull)
        self.lines: list[str] = []

    def write(self, text: str) -> None:
        """Keep one line."""
        self.lines.append(text)
        print(text)


def kernel_of(**parts: Any) -> Kernel:
    """What a part is given that a test makes alone: ``parts``, and None for the rest."""
    nothing: dict[str, Any] = dict.fromkeys(one.name for one in fields(Kernel))
    return Kernel(**{**nothing, **parts})


@contextmanager
def broker_thread(
    home: Home,
    grace: float = GRACE,
    connections_max: int = CONNECTIONS_MAX,
    idle: float = IDLE,
    now_ms: Callable[[], int] = wall_ms,
) -> Iterator[None]:
    """A broker in a thread of this process: what a test needs that kills nothing."""
    home.create()
    lock = take_lock(home.broker_lock)
    assert lock is not None and sign_lock(lock), "another broker is running"
    log = Log(home.broker_log)
    listening = threading.Event()
    stops: list[Callable[[], object]] = []

    async def serve() -> None:
        ledger = Ledger(home.ledger)
        loop = asyncio.get_running_loop()
        guard = LoopGuard(rate_max=0)  # a test's burst is no loop
        limits = BrokerLimits(idle, grace, connections_max, guard)
        broker = BrokerServer(home, ledger, log, limits, now_ms)
        stops.append(partial(loop.call_soon_threadsafe, broker.stop))
        listener = listen(home)
        log.write("serving")
        listening.set()
        try:
            await broker.serve(listener)
        finally:
            listener.close()
            unlink_if_there(home.broker_socket)
            ledger.close()
            os.close(lock)

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert listening.wait(20)
    try:
        yield
    finally:
        with suppress(RuntimeError):  # it has been stopped
            stops[0]()
        thread.join(20)
        assert not thread.is_alive()


def broker_process(home: Home, **kwargs: Any) -> subprocess.Popen[bytes]:
    """A broker as a child of the test."""
    command = [sys.executable, "-m", "relay.broker", "--home", home.root]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **kwargs)


def wait_for_broker(home: Home) -> None:
    """Return once a broker answers: the socket of one that was killed may still be there."""

    def answers() -> bool:
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            probe.settimeout(20)
            probe.connect(home.broker_socket)
            probe.sendall(encode({"n": 0, "op": "hello"}))
            return bool(probe.recv(1))
        return False

    wait_until(answers, what="the broker to listen")


#: Where agents are registered, as far as memories go.
PROJECT = "/src/shop"


def registration(
    name: str, run: str = "run-1", token: str = "secret", store: Json | None = None, cwd: str = "/"
) -> Json:
    """The fields of ``register``; ``store``: of its memories."""
    return {
        "name": name,
        "run": run,
        "token": token,
        "kind": "screen",
        "pid": os.getpid(),
        "cwd": cwd,
        "command": "true",
        "memory": {"project": PROJECT, **({"store": store} if store else {})},
    }


def register(
    home: Home,
    name: str,
    run: str = "run-1",
    token: str = "secret",
    store: Json | None = None,
    cwd: str = "/",
) -> BrokerClient:
    """A connection of its own that is registered as ``name``."""
    client = connect(home)
    try:
        fields = registration(name, run, token, store, cwd)
        client.request(REGISTER, **fields, version=build())
    except BaseException:
        client.close()
        raise
    return client


class Session:
    """A session of an agent that records what is pushed, and may answer it."""

    def __init__(self, home: Home, name: str, run: str = "run-1") -> None:
        self.name = name
        self.run = run
        self.pushes: list[Json] = []
        self.problems: list[RelayError] = []
        self.news = asyncio.Event()
        self.client = AsyncClient(home, on_push=self._pushed, on_problem=self.problems.append)
        self.on_deliver: Callable[[Json], None] = lambda _: None

    def _pushed(self, push: Json) -> None:
        self.pushes.append(push)
        if push["push"] == "deliver":
            self.on_deliver(push)
        self.news.set()

    async def __aenter__(self) -> Session:
        await self.client.open()
        try:
            await self.client.register(**registration(self.name, self.run))
        except BaseException:
            await self.client.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    def delivered(self) -> list[Json]:
        """The deliveries so far."""
        return [push for push in self.pushes if push["push"] == "deliver"]

    async def until(self, check: Callable[[], Any], timeout: float = 30.0) -> Any:
        """Wait for pushes until ``check`` returns something true."""
        async with asyncio.timeout(PATIENCE * timeout):
            while not (value := check()):
                self.news.clear()
                await self.news.wait()
            return value


def held(person: BrokerClient) -> list[Json]:
    """The messages that are held for the person."""
    return [dict(item) for item in person.request(ITEMS)["rows"] if item["kind"] == "held"]


def decide(person: BrokerClient, choice: str, *ids: str) -> None:
    """Answer these held messages, or all."""
    every = [item["id"] for item in held(person)]
    person.request(ITEM_ANSWER, id=list(ids) or every, choice=choice)


def message_id(number: int) -> str:
    """A valid id that belongs to a number."""
    return new_ulid(number, number.to_bytes(10, "big"))
