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
from relay.broker.batch import Handler
from relay.broker.channels import AdapterEvents, Channels
from relay.broker.clock import Clock
from relay.broker.committer import Committer
from relay.broker.connection import ClientConnection
from relay.broker.delivery_window import DeliveryWindows
from relay.broker.directory import Directory
from relay.broker.dispatch_ends import DispatchEnds
from relay.broker.evaluation import Evaluations
from relay.broker.headless_turns import HeadlessTurns
from relay.broker.identity import WrappedRuns
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
from relay.broker.stages import Stages
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
        self._ledger = ledger
        self._log = log
        self._idle = idle
        self._on_stop = on_stop
        self._needed = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._timers: list[asyncio.TimerHandle] = []
        self._servers: list[asyncio.Server] = []
        around = tuple(marks_above(os.getpid()))
        runs = WrappedRuns(around, read_process(os.getpid()))
        directory = self._directory = Directory(runs)
        self._connections = OpenConnections(directory, connections_max, log=log)
        committer = self._committer = Committer(
            ledger, log=log, fault=fault, ledger_failed=self._ledger_failed, now_ms=now_ms
        )
        configs = self._configs = TrustedConfigs(home)
        rights = self._rights = Rights(directory, configs)
        watchers = self._watchers = Watchers(ledger, directory, rights, now_ms)
        windows = self._windows = DeliveryWindows(ledger, directory, committer, watchers)
        members = self._members = ChannelOps(ledger, directory)
        usage = self._usage = UsageOps(ledger, directory, configs)
        items = OpenItems(watchers)
        self._agents = AgentOps(
            *(ledger, directory, windows, watchers, items, committer, home),
            *(members, usage, grace),
            came=lambda member: self._personas.came(member.name),
            gone=lambda member, batch: self._turns.agent_gone(member, batch),
            wants=lambda member: self._evaluations.wants(member),
        )
        self._deliveries = DeliveryOps(
            ledger,
            directory,
            rights,
            windows,
            committer,
            lambda id_, reason, batch: self._engine.delivery_ended(id_, reason, batch),
            members.news,
        )
        index = SearchIndex(home.search, home.ledger)
        self._ledgers = LedgerOps(ledger, directory, committer, index, log=log, fault=fault)
        self._ingest = IngestOps(ledger, directory)
        self._queries = QueryOps(ledger, directory, rights, windows, committer, self._ledgers)
        self._held = HeldMessages(
            *(ledger, directory, windows, self._deliveries, guard or LoopGuard(), items),
            lambda seq, batch: self._evaluations.decided(seq, batch),
        )
        self._workers = ConfigWorkers(
            home, log=log, asked=lambda key, said: self._adapter_events.asked(key, said)
        )
        self._hook_log = HookRuns(ledger, directory, rights)
        stages = self._stages = Stages(
            ledger, home, configs, self._workers, committer, self._hook_log, log=log
        )
        self._channels = Channels(configs, self._workers, log=log)
        self._answers = AnswerDeliveries(
            ledger, directory, windows, committer, self._held, self._channels, stages, log=log
        )
        personas = self._personas = Personas(home, configs, directory)
        ends = DispatchEnds(ledger, directory, windows, self._held, stages, self._answers.wake)
        self._engine = TurnEngine(
            ledger,
            committer,
            personas,
            WrappedTurns(ledger, directory, windows, self._held, stages),
            HeadlessTurns(home, ledger, committer, stages),
            ends,
            self._deliveries.answered,
        )
        self._dispatches = DispatchOps(
            ledger, directory, self._engine, ends, self._answers, personas
        )
        self._automations = Automations(
            ledger,
            committer,
            configs,
            directory,
            home,
            stages,
            log=log,
            dispatched=self._engine.wake,
            released=lambda seq: self._evaluations.release(seq),
        )
        self._evaluations = Evaluations(
            ledger,
            committer,
            configs,
            self._workers,
            self._automations,
            home,
            stages,
            log=log,
            dispatched=self._engine.wake,
        )
        self._clock = Clock(
            ledger,
            committer,
            self._automations.runs.registry,
            self._evaluations,
            windows,
            wants_minute=self._evaluations.wants_ticks,
            minutely=self._workers.end_idle,
            now_ms=now_ms,
        )
        self._messages = MessageOps(
            *(ledger, directory, windows, self._held, usage, self._evaluations, self._dispatches)
        )
        self._events = EventOps(directory, windows, self._messages, self._evaluations)
        self._routes = RouteOps(ledger, directory, configs, self._evaluations)
        self._automation_ops = AutomationOps(
            home,
            ledger,
            directory,
            windows,
            committer,
            configs,
            self._automations,
            fault=fault,
            changed=self._automation_changed,
        )
        self._adapter_events = AdapterEvents(self._events, committer, self._channels)
        self._persons = PersonOps(ledger, directory, self._engine)
        self._marks = EventMarkOps(ledger, directory)
        owed = Obligations(
            *(ledger, directory, windows, committer, self._held),
            *(self._deliveries, self._evaluations, stages, watchers),
        )
        spawns = self._spawns = SpawnOps(home, ledger, directory, self._rights, self._held, windows)
        self._turns = TurnOps(
            *(ledger, directory, self._deliveries, self._engine, owed, watchers, spawns)
        )
        self._hooks = SessionRequests(directory, self._rights)
        self._approvals = ApprovalOps(directory, windows, watchers, items)
        self._items = ItemOps(
            *(ledger, directory, windows, committer, items),
            *(self._approvals, self._held, self._hooks),
        )
        self._memory = MemoryProxy(home, directory, log=log)
        self._notifier = NotifierProcess(home, configs, log=log)
        storage = StorageGuard(directory, stored or StoredBytes())
        self._status = StatusOps(
            *(home, ledger, directory, self._agents, self._channels, self._evaluations),
            storage=storage,
            connections=lambda: len(self._connections),
            stop=self.stop,
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
            **self._watchers.handlers(),
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
            await self._committer.drain()
            self._evaluations.close()
            self._stages.close()
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
        accept = partial(ClientConnection, self, self._handlers, self._committer)
        server = await self._loop.create_unix_server(accept, sock=listener)
        for before in self._servers:
            before.close()
        self._servers.append(server)

    def _automation_changed(self, id_: str) -> None:
        self._automations.changed(id_)
        self._clock.look()

    def stop(self) -> None:
        """End ``serve`` in an orderly way."""
        self._stopped.set()

    def _ledger_failed(self, error: StorageError) -> None:
        """Where the ledger is not what it was, the next broker begins with what there is then."""
        if isinstance(error, DamagedFile):
            try:
                self._ledger.mend()
            except StorageError as worse:
                self._log(worse.message)
        if isinstance(error, DamagedFile | FileLost):
            self._log("the broker ends, as its ledger is not what it was")
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
            self._log("nobody needs the broker; it ends")
            self.stop()
            return
        self._later(max(0.05, min(self._idle / 4, 30.0)), self._look_if_idle)

    def _sweep(self) -> None:
        self._committer.submit_job(self._deliveries.sweep)
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
        own = self._configs.by_key(USER)
        self._ledger.redacts = (
            own is None or own.manifest is None or own.manifest.settings["redact"]
        )
        self._connections.add(client)

    def disconnected(self, client: ClientConnection) -> None:
        """A connection closed."""
        self._needed = time.monotonic()
        self._connections.discard(client)
        self._windows.unfollow(client)
        self._watchers.gone(client)
        self._deliveries.gone(client)
        self._hooks.gone(client)
        self._approvals.gone(client)
        if not self.stopping:
            self._agents.lost(client)

    def writable(self, client: ClientConnection) -> None:
        """A client reads again."""
        self._watchers.writable(client)
        member = self._directory.member_of(client)
        if member is not None:
            self._windows.writable(member.name)

    def log(self, text: str) -> None:
        """Add a line to the broker's log."""
        self._log(text)
