"""The broker: puts its parts together, and lives as long as it is needed."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from relay.broker.agent_rights import Rights
from relay.broker.batch import Served
from relay.broker.committer import Committer
from relay.broker.connection import CONNECTIONS_MAX, ClientConnection, OpenConnections
from relay.broker.delivery_window import DeliveryWindows
from relay.broker.directory import Directory
from relay.broker.door import BrokerFeature, Features
from relay.broker.identity import WrappedRuns
from relay.broker.kernel import Kernel
from relay.broker.loop_guard import HeldMessages, LoopGuard
from relay.broker.obligations import Obligations, TurnOps
from relay.broker.open_items import ItemOps, ScreenQuestions
from relay.broker.ops_agents import GRACE, AgentOps
from relay.broker.ops_delivery import DeliveryOps
from relay.broker.ops_hooks import HookRuns, SessionRequests
from relay.broker.ops_ledger import LedgerOps
from relay.broker.ops_messages import MessageOps
from relay.broker.ops_query import QueryOps
from relay.broker.ops_spawn import SpawnOps
from relay.broker.ops_status import StatusOps
from relay.broker.parts import BrokerParts, open_features
from relay.broker.stored_bytes import StorageGuard, StoredBytes
from relay.broker.trusted_configs import USER, TrustedConfigs
from relay.broker.watchers import Watchers
from relay.core.errors import DamagedFile, FileLost, StorageError
from relay.core.files import unlink_if_there
from relay.core.log import Log
from relay.core.paths import Home
from relay.core.processes import marks_above, read_process
from relay.ledger.search_index import SearchIndex
from relay.ledger.store import Ledger

#: Descriptors that are not clients': the ledger's, the memory service's, the log's.
DESCRIPTORS = 64
#: How long the broker stays without anybody who needs it. Seconds.
IDLE = 600.0
#: Between two looks for messages that expire. Seconds.
SWEEP_EVERY = 3600.0


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)


@dataclass
class BrokerLimits:
    """How long and for how much a broker is there."""

    idle: float = IDLE  # seconds that it stays without anybody who needs it
    grace: float = GRACE  # seconds that an agent without a connection still counts as there
    connections_max: int = CONNECTIONS_MAX
    guard: LoopGuard = field(default_factory=LoopGuard)
    stored: StoredBytes = field(default_factory=StoredBytes)


class BrokerServer:
    """The broker's process, without what makes a process of it: see relay.broker.main."""

    def __init__(
        self,
        home: Home,
        ledger: Ledger,
        log: Log,
        limits: BrokerLimits | None = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """Must be made inside a running event loop. Raises StorageError."""
        limits = limits or BrokerLimits()
        self._idle = limits.idle
        self._needed = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._timers: list[asyncio.TimerHandle] = []
        self._servers: list[asyncio.Server] = []
        around = tuple(marks_above(os.getpid()))
        directory = Directory(WrappedRuns(around, read_process(os.getpid())))
        features = Features(ledger, log)
        committer = Committer(
            ledger,
            features,
            log=log,
            ledger_failed=self._ledger_failed,
            now_ms=now_ms,
        )
        configs = TrustedConfigs(home, self._loop.call_soon)
        rights = Rights(directory, configs)
        watchers = Watchers(ledger, directory, rights, now_ms)
        kernel = self._kernel = Kernel(
            home=home,
            ledger=ledger,
            committer=committer,
            directory=directory,
            configs=configs,
            rights=rights,
            windows=DeliveryWindows(ledger, directory, committer, watchers),
            watchers=watchers,
            features=features,
            log=log,
            now_ms=now_ms,
            stop=self.stop,
        )
        self._connections = OpenConnections(directory, limits.connections_max, log=log)
        self._hooks = SessionRequests(kernel)
        questions = ScreenQuestions(kernel, self._hooks)
        self._deliveries = DeliveryOps(kernel)
        self._ledgers = LedgerOps(kernel, SearchIndex(home.search, home.ledger))
        self._queries = QueryOps(kernel, self._ledgers)
        self._held = HeldMessages(kernel, self._deliveries, limits.guard)
        self._hook_log = HookRuns(kernel)
        self._messages = MessageOps(kernel, self._held)
        owed = Obligations(kernel, self._held, self._deliveries)
        self._spawns = SpawnOps(kernel, self._held)
        self._turns = TurnOps(kernel, self._deliveries, owed, self._spawns)
        self._agents = AgentOps(kernel, self._turns, questions, limits.grace)
        storage = StorageGuard(directory, limits.stored)
        self._status = StatusOps(kernel, self._agents, storage, self._connections)
        parts = (self._messages, self._deliveries, self._held, self._hooks, self._hook_log)
        features.use(open_features(BrokerParts(kernel, *parts)))
        watchers.kinds |= set(features.row_kinds())
        self._items = ItemOps(kernel, {"held": self._held, "question": questions})
        # Of two ops of one name the first counts.
        served = [*self.kernel_ops(), *features.ops()]
        self._ops = storage.guarded({one.op: one for one in reversed(served)})
        self._agents.restore(now_ms())
        self._held.restore(now_ms())
        features.restore(now_ms())

    def kernel_ops(self) -> list[Served]:
        """Every op that is no feature's; see relay.protocol.op."""
        return [
            *self._status.ops(),
            *self._agents.ops(),
            *self._held.ops(),
            *self._messages.ops(),
            *self._deliveries.ops(),
            *self._turns.ops(),
            *self._spawns.ops(),
            *self._kernel.watchers.ops(),
            *self._queries.ops(),
            *self._ledgers.ops(),
            *self._hook_log.ops(),
            *self._hooks.ops(),
            *self._items.ops(),
        ]

    @property
    def features(self) -> Sequence[BrokerFeature]:
        """Those that are open."""
        return self._kernel.features.opened

    # -- life

    async def serve(self, listener: socket.socket) -> None:
        """Serve until ``stop`` is asked for or nobody needs the broker any more."""
        await self.listen_at(listener)
        self._needed = time.monotonic()  # not before anybody could come
        self._sweep()
        self._look_if_idle()
        self._ledgers.start()
        self._kernel.features.start()
        try:
            await self._stopped.wait()
        finally:
            # Before it stops listening: a new client must not find a socket that closes.
            unlink_if_there(self._kernel.home.broker_socket)
            for server in self._servers:
                server.close()
            self._connections.stop_reading()
            await self._kernel.features.stop()
            self._ledgers.close()
            await self._kernel.committer.drain()
            await self._kernel.features.close()
            await self._connections.close()
            for timer in self._timers:
                timer.cancel()
            self._agents.forget_graces()
            self._deliveries.forget_waits()
            self._hooks.forget_all()
            for server in self._servers:
                await server.wait_closed()

    async def listen_at(self, listener: socket.socket) -> None:
        """Take connections there, and no more where they were taken before."""
        accept = partial(ClientConnection, self, self._ops, self._kernel.committer)
        server = await self._loop.create_unix_server(accept, sock=listener)
        for before in self._servers:
            before.close()
        self._servers.append(server)

    def stop(self) -> None:
        """End ``serve`` in an orderly way."""
        self._stopped.set()

    def _ledger_failed(self, error: StorageError) -> None:
        """Where the ledger is not what it was, the next broker begins with what there is then."""
        if isinstance(error, DamagedFile):
            try:
                self._kernel.ledger.mend()
            except StorageError as worse:
                self._kernel.log.write(worse.message)
        if isinstance(error, DamagedFile | FileLost):
            self._kernel.log.write("the broker ends, as its ledger is not what it was")
            self.stop()

    def _look_if_idle(self) -> None:
        now = time.monotonic()
        features = self._kernel.features
        if len(self._connections) or self._agents.waits_for_agents or features.busy:
            self._needed = now
        elif now - self._needed >= self._idle:
            self._kernel.log.write("nobody needs the broker; it ends")
            self.stop()
            return
        self._later(max(0.05, min(self._idle / 4, 30.0)), self._look_if_idle)

    def _sweep(self) -> None:
        self._kernel.committer.submit_job(self._deliveries.sweep)
        self._later(SWEEP_EVERY, self._sweep)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        now = self._loop.time()
        self._timers = [t for t in self._timers if not t.cancelled() and t.when() > now]
        self._timers.append(self._loop.call_later(seconds, call))

    # -- what connections tell: see relay.broker.connection.Host

    @property
    def stopping(self) -> bool:
        """Whether no more connections are taken."""
        return self._stopped.is_set()

    def has_room(self) -> bool:
        """Whether one more connection may come; one that has been silent for long may go for it."""
        return self._connections.has_room()

    def connected(self, client: ClientConnection) -> None:
        """A client of our own user is there."""
        self._needed = time.monotonic()
        own = self._kernel.configs.by_key(USER)
        self._kernel.ledger.redacts = (
            own is None or own.manifest is None or own.manifest.settings["redact"]
        )
        self._connections.add(client)

    def disconnected(self, client: ClientConnection) -> None:
        self._needed = time.monotonic()
        self._connections.discard(client)
        self._kernel.windows.unfollow(client)
        self._kernel.watchers.gone(client)
        self._deliveries.gone(client)
        self._hooks.gone(client)
        self._kernel.features.lost(client)
        if not self.stopping:
            self._agents.lost(client)

    def writable(self, client: ClientConnection) -> None:
        self._kernel.watchers.writable(client)
        member = self._kernel.directory.member_of(client)
        if member is not None:
            self._kernel.windows.writable(member.name)

    @property
    def log(self) -> Log:
        return self._kernel.log
