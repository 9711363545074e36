"""Messages from one agent to another: across a link, on one machine, and the bare engine beside it.

Two machines are two RELAY_HOMEs of this one, so the figures are of the software, not of a network.
In turns, in one run:

- ``here``: two agents of one broker, from ``send`` until the receiver has reported it as seen;
- ``link``: the same with the receiver on another machine, through nats-server with TLS;
- ``nats``: nats-py alone on that very server: publish, acknowledged, and given to a consumer.

Each is measured one message at a time (latency) and 64 under way (messages a second).

``--json`` prints the figures. ``--count N``: messages of each round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

os.environ["RELAY_RATE_MAX"] = os.environ["RELAY_STORED_MAX"] = "0"  # a burst here is no loop

from relay.broker.async_client import AsyncClient
from relay.broker.client import connect
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.features.link.link_files import LinkFolder, context_for
from relay.features.link.ops import LINK, LINK_JOIN, LINK_NEW
from relay.protocol.broker import Json
from relay.protocol.broker_ops import STOP
from relay.protocol.message_ops import STATE

BODY = "x" * 512
UNDER_WAY = 64
ROUNDS = 5
#: A message across a link passes two brokers and the server, and so does its receipt.
GOAL_RATE, GOAL_LATENCY = 0.1, 8.0


class Agent:
    """A session that reports each message as seen, as fast as it can."""

    def __init__(self, home: Home, name: str) -> None:
        self.name = name
        self._client = AsyncClient(home, on_push=self._push)
        self._arrivals: dict[str, asyncio.Event] = {}
        self._work: set[asyncio.Task[Any]] = set()

    async def begin(self) -> None:
        """Register it."""
        await self._client.open()
        await self._client.register(
            name=self.name,
            run=f"run-{self.name}",
            token="t",
            kind="bench",
            pid=None,
            cwd="/",
            command="bench",
        )

    async def end(self) -> None:
        """Close its connection."""
        await self._client.close()

    def _push(self, push: Json) -> None:
        if push.get("push") == "deliver":
            task = asyncio.get_running_loop().create_task(self._see(push["id"], push["body"]))
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    async def _see(self, id_: str, body: str) -> None:
        for state in ("delivering", "submitted", "seen"):
            await self._client.request(STATE, id=id_, state=state, attempt=1, proof="bench")
        number = body.partition(" ")[0]
        self._arrivals.setdefault(number, asyncio.Event()).set()

    async def seen(self, number: str) -> None:
        """Wait until the message with this number was seen."""
        await self._arrivals.setdefault(number, asyncio.Event()).wait()

    async def send(self, to: str, number: str) -> None:
        """Send the message with this number."""
        await self._client.send(to, f"{number} {BODY}")


class Between:
    """One message after the other from ``sender`` to ``receiver``."""

    def __init__(self, sender: Agent, receiver: Agent, to: str) -> None:
        self._sender, self._receiver, self._to = sender, receiver, to
        self._count = 0

    async def __call__(self) -> None:
        self._count += 1
        number = f"{self._to}.{self._count}"
        await self._sender.send(self._to, number)
        await self._receiver.seen(number)


class Bare:
    """nats-py alone, on the server of the link."""

    def __init__(self, folder: LinkFolder) -> None:
        self._folder = folder
        self._arrivals: dict[bytes, asyncio.Event] = {}
        self._count = 0

    async def begin(self) -> None:
        """Connect, and make a stream with a consumer."""
        import nats
        from nats.js import api

        link = self._folder.read()
        self._client = await nats.connect(
            f"tls://{link.address}",
            tls=context_for(link.certificate),
            tls_handshake_first=True,
            nkeys_seed_str=self._folder.seed().decode(),
        )
        self._stream = self._client.jetstream()
        await self._stream.add_stream(api.StreamConfig(name="BENCH", subjects=["bench"]))
        await self._stream.subscribe("bench", durable="bench", cb=self._take, manual_ack=True)

    async def _take(self, message: Any) -> None:
        await message.ack()
        number = message.data.partition(b" ")[0]
        self._arrivals.setdefault(number, asyncio.Event()).set()

    async def __call__(self) -> None:
        self._count += 1
        number = str(self._count).encode()
        await self._stream.publish("bench", number + b" " + BODY.encode())
        await self._arrivals.setdefault(number, asyncio.Event()).wait()

    async def end(self) -> None:
        """Close the connection."""
        await self._client.close()


async def latency(send: Callable[[], Awaitable[None]], count: int) -> float:
    """The median time of a message. Milliseconds."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        await send()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


async def rate(send: Callable[[], Awaitable[None]], count: int) -> float:
    """Messages a second, UNDER_WAY of them under way."""
    room = asyncio.Semaphore(UNDER_WAY)

    async def one() -> None:
        async with room:
            await send()

    begin = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return count / (time.perf_counter() - begin)


def linked(root: Path) -> tuple[Home, Home]:
    """Two machines, joined."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    homes = Home(str(root / "a")), Home(str(root / "b"))
    for home in homes:
        home.create()
    with connect(homes[0]) as here, connect(homes[1]) as there:
        address = f"127.0.0.1:{port}"
        code = here.request(LINK_NEW, deadline=60, name="a", address=address)["code"]
        there.request(LINK_JOIN, deadline=60, code=code, name="b")
        while not all(
            one["here"] for client in (here, there) for one in client.request(LINK)["machines"]
        ):
            time.sleep(0.05)
    return homes


async def measured(homes: tuple[Home, Home], count: int) -> dict[str, dict[str, float]]:
    """Latency and rate of each, the median of the rounds."""
    async with AsyncExitStack() as ends:
        ann, bob, cid = Agent(homes[0], "Ann"), Agent(homes[0], "Bob"), Agent(homes[1], "Cid")
        bare = Bare(LinkFolder(homes[0].root))
        for part in (ann, bob, cid, bare):
            await part.begin()
            ends.push_async_callback(part.end)
        ways: dict[str, Callable[[], Awaitable[None]]] = {
            "here": Between(ann, bob, "Bob"),
            "link": Between(ann, cid, "Cid@b"),
            "nats": bare,
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for send in ways.values():
            await rate(send, UNDER_WAY)  # warm
        for _ in range(ROUNDS):
            for name, send in ways.items():
                times[name].append(await latency(send, max(1, count // 10)))
                rates[name].append(await rate(send, count))
    return {
        name: {"ms": statistics.median(times[name]), "rate": statistics.median(rates[name])}
        for name in ways
    }


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--machines", metavar="N,N,…", help="see bench/link_machines.py")
    parser.add_argument("--simulate", metavar="N", type=int, help="the same")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    logging.getLogger("asyncio").setLevel(
        logging.ERROR
    )  # nats-py ends TLS in a way that it warns of
    if options.machines or options.simulate:
        import link_machines

        if options.simulate:
            link_machines.simulate(options.simulate)
            return
        sizes = [int(one) for one in options.machines.split(",")]
        link_machines.measure(sizes, options.rounds, as_json=options.json)
        return
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        homes = linked(Path(folder))
        try:
            figures = asyncio.run(measured(homes, options.count))
        finally:
            for home in homes:
                with suppress(RelayError), connect(home, start=False) as client:
                    client.request(STOP)
    here, link, nats = (figures[name] for name in ("here", "link", "nats"))
    if options.json:
        print(json.dumps(figures))
        return
    for name, one in figures.items():
        print(f"{name:<5} {one['ms']:7.1f} ms   {one['rate']:7.0f} a second")
    print(
        f"a message over a link: {link['ms'] / here['ms']:.1f} times as long as on one machine",
        end="",
    )
    print(f" (goal: {GOAL_LATENCY:g}), {link['ms'] / nats['ms']:.1f} times as long as bare NATS")
    print(f"messages a second: {link['rate'] / here['rate']:.2f} of one machine", end="")
    print(f" (goal: {GOAL_RATE:g}), {link['rate'] / nats['rate']:.2f} of bare NATS")


if __name__ == "__main__":
    main()
