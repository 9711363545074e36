"""The broker: the one process that writes the ledger, and routes every message."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from functools import partial

from relay import __version__
from relay.broker.batch import Batch, Committer, Handler
from relay.broker.connection import Connection
from relay.broker.delivery_window import Pushing
from relay.broker.directory import Directory, owner_login, person_name
from relay.broker.extracting import Extracting
from relay.broker.inner import Inner
from relay.broker.insert_messages import store
from relay.broker.invoking import Invoking
from relay.broker.loop_guard import LoopGuard
from relay.broker.ops_agents import Registering
from relay.broker.ops_delivery import SWEEP_EVERY, Reporting
from relay.broker.ops_held import Parking
from relay.broker.ops_hooks import Asking
from relay.broker.ops_memory import Memories
from relay.broker.ops_messages import Sending
from relay.broker.ops_query import Reading
from relay.core.errors import RelayError, UsageError
from relay.core.message import AgentState
from relay.core.paths import Home
from relay.ledger import queries
from relay.ledger.schema import AgentRecord
from relay.ledger.store import Ledger
from relay.protocol.broker import PROTOCOL, Json

CONNECTIONS_MAX = 1024
#: How long the broker stays without anybody who needs it. Seconds.
IDLE = 600.0
#: How long a broker that stops waits for clients to take their last answers. Seconds.
GOODBYE = 2.0


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)


class Broker:
    """Puts the parts together and lives as long as it is needed."""

    def __init__(
        self,
        home: Home,
        ledger: Ledger,
        *,
        log: Callable[[str], None],
        fault: Callable[[], RelayError],
        idle: float = IDLE,
        guard: LoopGuard | None = None,
        on_stop: Callable[[], None] = lambda: None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """``fault`` logs the exception in flight and returns what a client is told of it.

        Must be made inside a running event loop. Raises StorageError."""
        self.home = home
        self.log = log
        self.unflushed: list[Connection] = []
        self.stopped = asyncio.Event()
        self._ledger = ledger
        self._now_ms = now_ms
        self._idle = idle
        self._on_stop = on_stop
        self._started = time.monotonic()
        self._needed = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._left: asyncio.Event | None = None  # set when the last connection has closed
        self._timers: list[asyncio.TimerHandle] = []
        self._directory = Directory()
        self._committer = Committer(
            ledger,
            flush=self._flush_sends,
            done=self._done,
            log=log,
            fault=fault,
            now_ms=now_ms,
        )
        self._owner = person_name(owner_login())
        submit = self._submit
        self._sending = Sending(ledger, self._directory, self._owner)
        self._pushing = Pushing(ledger, self._directory, submit)
        self._registering = Registering(ledger, self._directory, self._pushing, submit)
        self._reading = Reading(
            ledger, self._directory, self._sending, self._pushing, self._owner, submit
        )
        self._reporting = Reporting(ledger, self._pushing, submit)
        self._parking = Parking(
            ledger,
            self._directory,
            self._pushing,
            self._owner,
            self._sending.authenticated,
            guard or LoopGuard(),
        )
        self._invoking = Invoking(ledger, self._sending.authenticated)
        self._asking = Asking(self._directory, self._sending.authenticated, self.flush_soon)
        self._memories = Memories(
            home, self._sending.authenticated, self.flush_soon, fault=fault, log=log
        )
        inner = Inner(submit, self._memories.handlers())
        self._extracting = Extracting(home, inner.ask, self.flush_soon, fault=fault, log=log)
        self._memories.extractions = self._extracting.stats
        self._sending.admit = self._parking.admit
        self._reporting.on_progress = self._parking.reached
        self._handlers = self._all_handlers()
        self._restore()

    def _all_handlers(self) -> dict[str, Handler]:
        return {
            "hello": self._hello,
            "register": self._with_sends(self._registering.register),
            "send": self._sending.send,
            "state": self._with_sends(self._reporting.state),
            "agent_state": self._registering.agent_state,
            "event": self._sending.event,
            "agents": self._with_sends(self._reading.agents),
            "inbox": self._with_sends(self._reading.inbox),
            "read": self._with_sends(self._reading.read),
            "sent": self._with_sends(self._reading.sent),
            "show": self._with_sends(self._reading.show),
            "history": self._with_sends(self._reading.history),
            "wait": self._with_sends(self._reporting.wait),
            "person": self._parking.person,
            "hooks_ran": self._invoking.hooks_ran,
            "hook_log": self._with_sends(self._invoking.hook_log),
            "hook": self._asking.hook,
            "hook_answer": self._asking.hook_answer,
            "held": self._with_sends(self._parking.held),
            "decide": self._with_sends(self._parking.decide),
            **self._memories.handlers(),
            **self._extracting.handlers(),
            "status": self._with_sends(self._status),
            "stop": self._stop,
        }

    def _restore(self) -> None:
        self._registering.restore()
        self._parking.restore()
        known = self._directory.get(self._owner)
        if known is None or known.record.kind != "owner":
            now_ms = self._now_ms()
            owner = AgentRecord(
                name=self._owner,
                person=True,
                kind="owner",
                state=AgentState.IDLE.value,
                since_ms=now_ms,
                last_seen_ms=now_ms,
            )
            self._ledger.begin()
            try:
                self._ledger.save_agent(owner)
                self._ledger.commit()
            except RelayError:
                self._ledger.rollback()
                raise
            self._directory.put(owner)

    # -- life

    async def serve(self, listener: socket.socket) -> None:
        """Serve until ``stop`` is asked for or nobody needs the broker any more."""
        server = await self._loop.create_unix_server(partial(Connection, self), sock=listener)
        self._needed = time.monotonic()  # not before anybody could come
        self._sweep()
        self._look_if_idle()
        self._extracting.start()
        try:
            await self.stopped.wait()
        finally:
            self._on_stop()
            server.close()
            for connection in self._connections:
                connection.stop_reading()
            await self._extracting.close()  # its saves are the memory's to do
            await self._committer.drain()
            await self._memories.close()
            await self._close_connections()
            for timer in self._timers:
                timer.cancel()
            self._registering.forget_graces()
            self._reporting.forget_waits()
            self._asking.forget_all()
            await server.wait_closed()

    async def _close_connections(self) -> None:
        """Give what is being written a moment, then cut it off."""
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            self._left = asyncio.Event()
            try:
                await asyncio.wait_for(self._left.wait(), GOODBYE)
            except TimeoutError:
                for connection in list(self._connections):
                    connection.abort()

    def stop(self) -> None:
        """End ``serve`` in an orderly way."""
        self.stopped.set()

    def _look_if_idle(self) -> None:
        now = time.monotonic()
        if self._connections or self._registering.graces:
            self._needed = now
        elif now - self._needed >= self._idle:
            self.log("nobody needs the broker; it ends")
            self.stop()
            return
        self._later(max(0.05, min(self._idle / 4, 30.0)), self._look_if_idle)

    def _sweep(self) -> None:
        self._submit(self._reporting.sweep, None, {"n": 0})
        self._later(SWEEP_EVERY, self._sweep)

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        now = self._loop.time()
        self._timers = [t for t in self._timers if not t.cancelled() and t.when() > now]
        self._timers.append(self._loop.call_later(seconds, call))

    # -- connections

    def has_room(self) -> bool:
        """Whether one more connection may come."""
        return len(self._connections) < CONNECTIONS_MAX

    def connected(self, connection: Connection) -> None:
        """A client of our own user is there."""
        self._needed = time.monotonic()
        self._connections.add(connection)

    def disconnected(self, connection: Connection) -> None:
        """A connection closed."""
        self._needed = time.monotonic()
        self._connections.discard(connection)
        if self._left is not None and not self._connections:
            self._left.set()
        self._needed = time.monotonic()
        self._pushing.unfollow(connection)
        self._reporting.gone(connection)
        self._asking.gone(connection)
        member, connection.member = connection.member, None
        if member is not None and member.connection is connection and not self.stopped.is_set():
            self._registering.lost(member)

    def writable(self, connection: Connection) -> None:
        """A client reads again."""
        if connection.member is not None:
            self._pushing.more(connection.member)

    def request(self, connection: Connection, request: Json) -> None:
        """Take one request. Raises RelayError when it is none."""
        op = request.get("op")
        handler = self._handlers.get(op) if isinstance(op, str) else None
        if handler is None:
            raise UsageError(
                f"this broker knows no op {str(op)[:100]!r}",
                hint="relay broker stop; the next command starts one of this version",
            )
        self._committer.submit(handler, connection, request)

    # -- batches

    def _submit(self, handler: Handler, connection: Connection | None, request: Json) -> None:
        self._committer.submit(handler, connection, request)

    def _with_sends(self, handler: Handler) -> Handler:
        """Handlers that read must find the messages that came before them in the batch."""

        def handle(connection: Connection | None, request: Json, batch: Batch) -> Json | None:
            if batch.sends:
                self._flush_sends(batch)
            return handler(connection, request, batch)

        return handle

    def _flush_sends(self, batch: Batch) -> None:
        if batch.sends:
            store(self._ledger, batch)

    def _done(self, batch: Batch) -> None:
        """A batch is on the disk, or refused: answer it and do what follows from it."""
        for connection, line in batch.answers:
            connection.send(line)
        for message in batch.stored:
            self._pushing.stored(message)
        for call in batch.after:
            call()
        self._reporting.committed(batch)
        for asker, request in batch.asked:
            if asker is not None and "size" in request:
                asker.answered(request["size"])
        self.flush()

    def flush(self) -> None:
        """Write to every connection what was collected for it."""
        unflushed, self.unflushed = self.unflushed, []
        for connection in unflushed:
            connection.flush()

    def flush_soon(self) -> None:
        """``flush``, once what is being handled now is over."""
        self._loop.call_soon(self.flush)

    # -- small ops

    def _hello(self, connection: Connection | None, request: Json, batch: Batch) -> Json:
        return {"protocol": PROTOCOL, "version": __version__, "pid": os.getpid()}

    def _status(self, connection: Connection | None, request: Json, batch: Batch) -> Json:
        return {
            "running": True,
            "pid": os.getpid(),
            # For people to read; a folder's name may be no Unicode.
            "socket": self.home.broker_socket.encode(errors="replace").decode(),
            "home": self.home.root.encode(errors="replace").decode(),
            "version": __version__,
            "uptime_s": round(time.monotonic() - self._started, 3),
            "connections": len(self._connections),
            "counts": queries.counts(self._ledger),
            "agents": self._reading.agent_list(),
            "parked": queries.parked_count(self._ledger),
        }

    def _stop(self, connection: Connection | None, request: Json, batch: Batch) -> Json:
        batch.after.append(self.stop)
        return {"stopping": True, "pid": os.getpid()}
