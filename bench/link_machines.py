"""What one server of a link carries as machines come: ``python bench/link.py --machines 2,20,200``.

The server, its configuration, the stream, the keys, the subjects and the enrolment are relay's own.
The machines are light: all in this process, with relay's connection (``Wire``) and its presence,
but without a broker and a ledger of their own, so what a machine stores is not in the figures.

``--simulate 1000``: what can be measured of so many machines without them, and arithmetic.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import msgspec

from relay.broker.client import connect
from relay.core.errors import RelayError
from relay.core.files import is_locked
from relay.core.log import Log
from relay.core.paths import Home
from relay.features.link.link_files import STREAM, Link, LinkFolder, context_for
from relay.features.link.link_records import FarMessage, Presence, Receipts
from relay.features.link.machines import FEW, TELL, seconds_between
from relay.features.link.ops import LINK_NEW
from relay.features.link.wire import AWAY, Wire, enrol
from relay.protocol.agent_ops import AGENTS as AGENTS_OP
from relay.protocol.broker_ops import STOP
from relay.protocol.message_ops import SEND

#: Agents of each machine, and messages of which each waits for its receipt.
AGENTS, MESSAGES = 50, 50
#: Seconds until all machines must know each other; until a message is sent again.
_PATIENCE, _AGAIN = 300.0, 5.0

Figures = dict[str, float]


class LightMachine:
    """A machine of the link, as far as the server sees it."""

    def __init__(self, root: Path, link: Link) -> None:
        self.name = link.name
        self.wire = Wire(LinkFolder(str(root)), link, Log("/dev/null"))
        self.heard = 0  # presences, in all
        self._news = asyncio.Event()
        self._receipts: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Connect, and go on."""
        loop = asyncio.get_running_loop()
        work = (self.wire.run(), self._take(), self._tell())
        self._tasks = [loop.create_task(one) for one in work]

    async def end(self) -> None:
        """End it, and the server where that runs here."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self.wire.end_server)

    async def _take(self) -> None:
        while True:
            machine, kind, data, acknowledge = await self.wire.arrived.get()
            if acknowledge is not None:
                await acknowledge()
            if kind == "m":
                receipts = Receipts(stored=[msgspec.json.decode(data, type=FarMessage).id])
                with suppress(RelayError):  # it is asked for again
                    await self.wire.publish(machine, "r", msgspec.json.encode(receipts))
            elif kind == "r":
                for id_ in msgspec.json.decode(data, type=Receipts).stored:
                    self._receipts[id_].set()
            elif kind == "p":
                self.heard += 1
                if not self.wire.is_here(machine) and len(self.wire.heard) <= FEW:
                    self._news.set()
                self.wire.hear(machine, msgspec.json.decode(data, type=Presence).clock)
            else:
                self._news.set()  # a machine has joined

    async def _tell(self) -> None:
        agents = [f"agent-{number}" for number in range(AGENTS)]
        while True:
            await self.wire.connected.wait()
            fields: dict[str, Any] = {"agents": agents, "clock": time.time()}
            if self.wire.link.hosts:
                fields["machines"] = sorted(self.wire.link.machines)
            await self.wire.tell(fields)
            pause = seconds_between(len(self.wire.heard))
            self.wire.away = AWAY * pause / TELL
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()
            self._news.clear()

    def knows(self, others: Sequence[LightMachine]) -> bool:
        """Whether all others are here for it."""
        return all(self.wire.is_here(one.name) for one in others if one is not self)

    async def receipt(self, to: str, number: int) -> float:
        """Milliseconds from a message to its receipt."""
        id_ = f"{number:026}"
        message = FarMessage(number, 0, id_, "Ann", ["Bob"], "x" * 512)
        arrived = self._receipts[id_] = asyncio.Event()
        begin = time.perf_counter()
        while not arrived.is_set():
            with suppress(TimeoutError, RelayError):
                await self.wire.publish(to, "m", msgspec.json.encode(message))
                async with asyncio.timeout(_AGAIN):
                    await arrived.wait()
        return (time.perf_counter() - begin) * 1e3


async def _until_known(machines: Sequence[LightMachine]) -> None:
    async with asyncio.timeout(_PATIENCE):
        for one in machines:
            while not one.knows(machines):
                await asyncio.sleep(0.02)


@asynccontextmanager
async def linked(root: Path, count: int) -> AsyncIterator[list[LightMachine]]:
    """So many machines that know each other, the first with the server."""
    address = f"127.0.0.1:{free_port()}"
    names = [f"machine-{number}" for number in range(count)]
    folders = {name: LinkFolder(str(root / name)) for name in names}
    for name in names:
        (root / name).mkdir()
    certificate = folders[names[0]].certificate()
    keys = {name: folder.public_key() for name, folder in folders.items()}
    machines = []
    async with AsyncExitStack() as ends:
        for name in names:
            known = keys if name == names[0] else {}
            link = Link(name, address, names[0], certificate, dict(known))
            machines.append(LightMachine(root / name, link))
            machines[-1].begin()
            ends.push_async_callback(machines[-1].end)
            await machines[0].wire.connected.wait()
        await _until_known(machines)
        yield machines


async def _joined(root: Path, machines: list[LightMachine]) -> float:
    """Seconds until one more machine is taken in, and it and all others know each other."""
    host = machines[0].wire
    code, _ = await host.new_code(host.link.address)
    folder = LinkFolder(str(root))
    root.mkdir()
    begin = time.perf_counter()
    await enrol(code, host.link.certificate, root.name, folder)
    link = Link(root.name, code.address, code.host, host.link.certificate)
    new = LightMachine(root, link)
    new.begin()
    try:
        await _until_known([*machines, new])
        return time.perf_counter() - begin
    finally:
        await new.end()


def _memory(pid: int) -> float:
    [line] = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in one]
    return int(line.split()[1]) / 1024


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def _consumers(host: LightMachine) -> int:
    import nats

    link, folder = host.wire.link, host.wire.folder
    client = await nats.connect(
        f"tls://{link.address}",
        tls=context_for(link.certificate),
        tls_handshake_first=True,
        nkeys_seed_str=folder.seed().decode(),
    )
    try:
        return int((await client.jetstream().stream_info(STREAM)).state.consumer_count)
    finally:
        await client.close()


async def _measured(root: Path, count: int) -> Figures:
    async with linked(root, count) as machines:
        host = machines[0]
        pid = int(host.wire.folder.pid.read_text())
        times = [await host.receipt(machines[1].name, number + 1) for number in range(MESSAGES)]
        pause = seconds_between(count)
        await asyncio.sleep(pause)  # what the beginning has brought is over
        heard, cpu, begin = sum(one.heard for one in machines), _cpu(pid), time.perf_counter()
        await asyncio.sleep(pause)
        seconds = time.perf_counter() - begin
        heard, cpu = sum(one.heard for one in machines) - heard, _cpu(pid) - cpu
        figures = {
            "server MB": _memory(pid),
            "consumers": float(await _consumers(host)),
            "presences/s": heard / seconds,
            "server CPU %": 100 * cpu / seconds,
            "receipt ms": statistics.median(times),
            "users file kB": len(host.wire.folder.conf.read_bytes()) / 1024,
        }
        figures["one more, s"] = await _joined(root / "new", machines)
        return figures


async def _server_alone(root: Path, count: int) -> Figures:
    """The server with so many keys and consumers, and none of the machines but its own."""
    names = ["host", *(f"machine-{number}" for number in range(1, count))]
    keys = {}
    for name in names:
        (root / name).mkdir()
        keys[name] = LinkFolder(str(root / name)).public_key()
    folder = LinkFolder(str(root / "host"))
    link = Link("host", f"127.0.0.1:{free_port()}", "host", folder.certificate(), keys)
    host = LightMachine(root / "host", link)
    host.begin()
    try:
        async with asyncio.timeout(_PATIENCE):
            await host.wire.connected.wait()
        begin = time.perf_counter()
        await host.wire.users_changed()
        return {
            "server MB": _memory(int(folder.pid.read_text())),
            "users file kB": len(folder.conf.read_bytes()) / 1024,
            "a change of the users, s": time.perf_counter() - begin,
        }
    finally:
        await host.end()


def _broker_alone(root: Path, count: int) -> Figures:
    """What a broker does that knows so many machines with AGENTS each."""
    home = Home(str(root))
    home.create()
    with connect(home) as client:
        address = f"127.0.0.1:{free_port()}"
        client.request(LINK_NEW, deadline=60, name="host", address=address)
    stop(home)
    with closing(sqlite3.connect(home.ledger)) as ledger, ledger:
        for number in range(1, count):
            agents = [f"agent-{number}-{one}" for one in range(AGENTS)]
            row = f"machine-{number}", json.dumps(agents)
            ledger.execute("INSERT INTO link_machines (name, told) VALUES (?,?)", row)
    try:
        with connect(home) as client:

            def timed(op: Any, **fields: Any) -> tuple[float, Any]:
                begin = time.perf_counter()
                answer = client.request(op, deadline=60, **fields)
                return (time.perf_counter() - begin) * 1e3, answer

            client.request(AGENTS_OP)
            agents_ms, known = timed(AGENTS_OP)
            one_ms, _ = timed(SEND, to="agent-1-1", body="x")
            all_ms, sent = timed(SEND, to="*", body="x")
            return {
                "agents elsewhere": float(len(known["elsewhere"])),
                "relay agents: ms in the broker": agents_ms,
                "relay agents: MB": len(json.dumps(known)) / 2**20,
                "a message to one, ms": one_ms,
                "a message to *, ms": all_ms,
                "a message to *, copies": float(len(sent["deliveries"])),
            }
    finally:
        stop(home)


def simulate(count: int) -> None:
    """What can be told of a link of so many machines without them, and arithmetic for the rest."""
    pause = seconds_between(count)
    names = [f"agent-{number}-{number}" for number in range(AGENTS)]
    size = len(json.dumps({"agents": names, "clock": time.time()}))
    figures = {
        "seconds between presences": pause,
        "presences/s at the server": count * (count - 1) / pause,
        "presences/s at a machine": (count - 1) / pause,
        "presence MB/s at the server": count * (count - 1) / pause * size / 2**20,
    }
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        figures |= asyncio.run(_server_alone(Path(folder), count))
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        figures |= _broker_alone(Path(folder) / "home", count)
    for name, figure in figures.items():
        print(f"{name:<32}{figure:12,.1f}")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop(home: Home) -> None:
    """Stop the broker, and wait for its end."""
    with suppress(RelayError), connect(home, start=False) as client:
        client.request(STOP)
    while is_locked(home.broker_lock):  # it ends its server, too
        time.sleep(0.02)


def measure(sizes: Sequence[int], rounds: int, *, as_json: bool) -> None:
    """Measure each size in turn, and print the medians beside those of the first."""
    found: dict[int, list[Figures]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
                found[size].append(asyncio.run(_measured(Path(folder), size)))
    names = list(found[sizes[0]][0])
    medians = {
        size: {name: statistics.median(one[name] for one in rows) for name in names}
        for size, rows in found.items()
    }
    if as_json:
        print(json.dumps(medians))
        return
    print(f"{'machines':<16}" + "".join(f"{size:>20}" for size in sizes))
    for name in names:
        least = medians[sizes[0]][name]
        cells = [
            f"{medians[size][name]:10.1f} ({medians[size][name] / least:6.1f})" if least else "-"
            for size in sizes
        ]
        print(f"{name:<16}" + "".join(f"{cell:>20}" for cell in cells))
