"""The broker: puts its parts together, and lives as long as it is needed."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial

from relay.broker.agent_rights import Rights
from relay.broker.answers import AnswerDeliveries
from relay.broker.automations import Automations
from relay.broker.batch import Batch, Handler
from relay.broker.channels import AdapterEvents, Channels
from relay.broker.clock import Clock
from relay.broker.committer import Committer
from relay.broker.connection import ClientConnection
from relay.broker.delivery_window import DeliveryWindows
from relay.broker.directory import Directory, Member
from relay.broker.dispatch_ends import DispatchEnds
from relay.broker.evaluation import Evaluations
from relay.broker.headless_turns import HeadlessTurns
from relay.broker.hook_observer import HookObserver
from relay.broker.identity import WrappedRuns
from relay.broker.kernel import Kernel
from relay.broker.known_personas import Personas
from relay.broker.loop_guard import HeldMessages, LoopGuard
from relay.broker.memory_proxy import MemoryProxy
from relay.broker.notifier_process import NotifierProcess
from relay.broker.obligations import Obligations
from relay.broker.open_connections import CONNECTIONS_MAX, OpenConnections
from relay.broker.open_items import OpenItems
from relay.broker.ops_agents import GRACE, AgentOps
from relay.broker.ops_approvals import ApprovalOps
from relay.broker.ops_automations import AutomationOps
from relay.broker.ops_channels import ChannelOps
from relay.broker.ops_delivery import DeliveryOps
from relay.broker.ops_dispatches import DispatchOps
from relay.broker.ops_event_marks import EventMarkOps
from relay.broker.ops_events import EventOps
from relay.broker.ops_hooks import HookRuns, SessionRequests
from relay.broker.ops_ingest import IngestOps
from relay.broker.ops_items import ItemOps
from relay.broker.ops_ledger import LedgerOps
from relay.broker.ops_messages import MessageOps
from relay.broker.ops_persons import PersonOps
from relay.broker.ops_query import QueryOps
from relay.broker.ops_routes import RouteOps
from relay.broker.ops_spawn import SpawnOps
from relay.broker.ops_status import StatusOps
from relay.broker.ops_turns import TurnOps
from relay.broker.ops_usage import UsageOps
from relay.broker.stored_bytes import StorageGuard, StoredBytes
from relay.broker.trusted_configs import USER, TrustedConfigs
from relay.broker.turn_engine import TurnEngine
from relay.broker.watchers import Watchers
from relay.broker.workers import ConfigWorkers
from relay.broker.wrapped_turns import WrappedTurns
from relay.core.errors import DamagedFile, FileLost, RelayError, StorageError
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


class BrokerServer:
    """The broker's process, without what makes a process of it: see relay.broker.main."""

    def __init__(
        self,
        home: Home,
        ledger: Ledger,
        *,
        log: Callable[[str], None],
        fault: Callable[[], RelayError],
        idle: float = IDLE,
        grace: float = GRACE,
        guard: LoopGuard | None = None,
        stored: StoredBytes | None = None,
        on_stop: Callable[[], None] = lambda: None,
        connections_max: int = CONNECTIONS_MAX,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """``fault`` logs the exception in flight and returns what a client is told of it;
        ``on_stop`` is called before the broker stops listening.

        Must be made inside a running event loop. Raises StorageError."""
        self._idle = idle
        self._on_stop = on_stop
        self._needed = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._timers: list[asyncio.TimerHandle] = []
        self._servers: list[asyncio.Server] = []
        around = tuple(marks_above(os.getpid()))
        directory = Directory(WrappedRuns(around, read_process(os.getpid())))
        committer = Committer(
            ledger, log=log, fault=fault, ledger_failed=self._ledger_failed, now_ms=now_ms
        )
        configs = TrustedConfigs(home)
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
            items=OpenItems(watchers),
            log=log,
            fault=fault,
            now_ms=now_ms,
            stop=self.stop,
        )
        self._connections = OpenConnections(directory, connections_max, log=log)
        members = self._members = ChannelOps(kernel)
        usage = self._usage = UsageOps(kernel)
        self._agents = AgentOps(kernel, members, usage, self, grace)
        self._deliveries = DeliveryOps(
            kernel,
            lambda id_, reason, batch: self._engine.delivery_ended(id_, reason, batch),
            members.news,
        )
        self._ledgers = LedgerOps(kernel, SearchIndex(home.search, home.ledger))
        self._ingest = IngestOps(kernel)
        self._queries = QueryOps(kernel, self._ledgers)
        self._held = HeldMessages(
            kernel,
            self._deliveries,
            guard or LoopGuard(),
            lambda seq, batch: self._evaluations.decided(seq, batch),
        )
        self._workers = ConfigWorkers(
            home, log=log, asked=lambda key, said: self._adapter_events.asked(key, said)
        )
        self._hook_log = HookRuns(kernel)
        self._observer = HookObserver(kernel, self._workers, self._hook_log)
        committer.observer = self._observer
        self._channels = Channels(kernel, self._workers)
        self._answers = AnswerDeliveries(kernel, self._held, self._channels)
        personas = self._personas = Personas(home, configs, directory)
        ends = DispatchEnds(kernel, self._held, self._answers.wake)
        self._engine = TurnEngine(
            kernel,
            personas,
            WrappedTurns(kernel, self._held),
            HeadlessTurns(kernel),
            ends,
            self._deliveries.answered,
        )
        self._dispatches = DispatchOps(kernel, self._engine, ends, self._answers, personas)
        self._automations = Automations(
            kernel,
            dispatched=self._engine.wake,
            released=lambda seq: self._evaluations.release(seq),
        )
        self._evaluations = Evaluations(
            kernel, self._workers, self._automations, dispatched=self._engine.wake
        )
        registry = self._automations.runs.registry
        self._clock = Clock(kernel, registry, self._evaluations, self._workers)
        self._messages = MessageOps(kernel, self._held, usage, self._evaluations, self._dispatches)
        self._events = EventOps(kernel, self._messages, self._evaluations)
        self._routes = RouteOps(kernel, self._evaluations)
        self._automation_ops = AutomationOps(kernel, self._automations, self._clock)
        self._adapter_events = AdapterEvents(self._events, committer, self._channels)
        self._persons = PersonOps(kernel, self._engine)
        self._marks = EventMarkOps(kernel)
        owed = Obligations(kernel, self._held, self._deliveries, self._evaluations)
        self._spawns = SpawnOps(kernel, self._held)
        self._turns = TurnOps(kernel, self._deliveries, self._engine, owed, self._spawns)
        self._hooks = SessionRequests(kernel)
        self._approvals = ApprovalOps(kernel)
        self._items = ItemOps(kernel, self._approvals, self._held, self._hooks)
        self._memory = MemoryProxy(home, directory, log=log)
        self._notifier = NotifierProcess(home, configs, log=log)
        storage = StorageGuard(directory, stored or StoredBytes())
        self._status = StatusOps(
            kernel, self._agents, self._channels, self._evaluations, storage, self._connections
        )
        self._handlers = storage.guarded(self._table())
        self._agents.restore(now_ms())
        members.restore()
        self._held.restore(now_ms())
        self._engine.restore()

    def _table(self) -> Mapping[str, Handler]:
        """Every op; see relay.protocol.broker."""
        return {
            **self._status.handlers(),
            **self._agents.handlers(),
            **self._held.handlers(),
            **self._usage.handlers(),
            "send": self._messages.send,
            "event": self._events.event,
            **self._marks.handlers(),
            **self._members.handlers(),
            **self._persons.handlers(),
            **self._deliveries.handlers(),
            "turn": self._turns.turn,
            **self._spawns.handlers(),
            **self._kernel.watchers.handlers(),
            **self._queries.handlers(),
            **self._ledgers.handlers(),
            "ingested": self._ingest.ingested,
            "ingest": self._ingest.ingest,
            **self._dispatches.handlers(),
            **self._hook_log.handlers(),
            **self._routes.handlers(),
            **self._hooks.handlers(),
            **self._approvals.handlers(),
            **self._items.handlers(),
            **self._automation_ops.handlers(),
            **self._memory.handlers(),
        }

    # -- life

    async def serve(self, listener: socket.socket) -> None:
        """Serve until ``stop`` is asked for or nobody needs the broker any more."""
        await self.listen_at(listener)
        self._needed = time.monotonic()  # not before anybody could come
        self._sweep()
        self._look_if_idle()
        self._ledgers.start()
        self._memory.start()
        self._answers.wake()
        self._automations.start()
        self._evaluations.start()
        self._clock.look()
        self._channels.start()
        try:
            await self._stopped.wait()
        finally:
            self._on_stop()
            for server in self._servers:
                server.close()
            self._connections.stop_reading()
            self._channels.close()
            self._clock.close()
            await self._answers.close()
            self._ledgers.close()
            await self._kernel.committer.drain()
            self._evaluations.close()
            self._observer.close()
            await self._automations.close()
            await self._workers.close()
            await self._engine.close()
            await self._memory.close()
            await self._notifier.close()
            await self._connections.close()
            for timer in self._timers:
                timer.cancel()
            self._agents.forget_graces()
            self._deliveries.forget_waits()
            self._hooks.forget_all()
            self._approvals.forget_all()
            for server in self._servers:
                await server.wait_closed()

    async def listen_at(self, listener: socket.socket) -> None:
        """Take connections there, and no more where they were taken before."""
        accept = partial(ClientConnection, self, self._handlers, self._kernel.committer)
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
                self._kernel.log(worse.message)
        if isinstance(error, DamagedFile | FileLost):
            self._kernel.log("the broker ends, as its ledger is not what it was")
            self.stop()

    def _look_if_idle(self) -> None:
        now = time.monotonic()
        # What goes on though no client waits for it.
        parts = (self._answers, self._evaluations, self._automations, self._engine, self._clock)
        works = self._channels.connected or any(one.busy for one in parts)
        self._notifier.look()
        clients = len(self._connections) - self._notifier.connections
        if clients > 0 or self._agents.waits_for_agents or works:
            self._needed = now
        elif now - self._needed >= self._idle:
            self._kernel.log("nobody needs the broker; it ends")
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

    # -- what the ops of agents tell: see relay.broker.ops_agents.MemberHost

    def came(self, member: Member) -> None:
        """An agent is there."""
        self._personas.came(member.name)

    def gone(self, member: Member, batch: Batch) -> None:
        """An agent has ended, which is stored with the batch."""
        self._turns.agent_gone(member, batch)

    def wants(self, member: Member) -> list[str]:
        """The kinds of events that its session is to tell of only because something listens."""
        return self._evaluations.wants(member)

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
        self._kernel.ledger.redacts = own is None or own.manifest is None or own.manifest.redact
        self._connections.add(client)

    def disconnected(self, client: ClientConnection) -> None:
        """A connection closed."""
        self._needed = time.monotonic()
        self._connections.discard(client)
        self._kernel.windows.unfollow(client)
        self._kernel.watchers.gone(client)
        self._deliveries.gone(client)
        self._hooks.gone(client)
        self._approvals.gone(client)
        if not self.stopping:
            self._agents.lost(client)

    def writable(self, client: ClientConnection) -> None:
        """A client reads again."""
        self._kernel.watchers.writable(client)
        member = self._kernel.directory.member_of(client)
        if member is not None:
            self._kernel.windows.writable(member.name)

    def log(self, text: str) -> None:
        """Add a line to the broker's log."""
        self._kernel.log(text)
