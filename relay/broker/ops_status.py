"""The ops ``hello``, ``status`` and ``stop``: the broker as a whole."""

from __future__ import annotations

import os
import time
from typing import cast

from relay.broker.batch import AnyRequest, Batch, Served, serve
from relay.broker.connection import OpenConnections
from relay.broker.kernel import Kernel
from relay.broker.ops_agents import AgentOps
from relay.broker.stored_bytes import StorageGuard
from relay.core.build import build, program
from relay.ledger import queries
from relay.protocol.agent_ops import AgentRow
from relay.protocol.broker import PROTOCOL
from relay.protocol.broker_ops import HELLO, STATUS, STOP, BrokerStatus, Hello, Stop


class StatusOps:
    """Answers for the broker as a whole."""

    def __init__(
        self,
        kernel: Kernel,
        agents: AgentOps,
        storage: StorageGuard,
        connections: OpenConnections,
    ) -> None:
        self._home = kernel.home
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._agents = agents
        self._features = kernel.features
        self._storage = storage
        self._connections = connections
        self._stop_broker = kernel.stop
        self._started = time.monotonic()
        build()  # now, before anybody replaces the files of this process

    def ops(self) -> list[Served]:
        return [serve(HELLO, self._hello), serve(STATUS, self._status), serve(STOP, self._stop)]

    def _hello(self, request: AnyRequest, batch: Batch) -> Hello:
        return {
            "protocol": PROTOCOL,
            "version": build(),
            "program": program(),
            "pid": os.getpid(),
            "person": self._directory.is_outside(request.client),
        }

    def _status(self, request: AnyRequest, batch: Batch) -> BrokerStatus:
        status: BrokerStatus = {
            "running": True,
            "pid": os.getpid(),
            # For people to read; a folder's name may be no Unicode.
            "socket": self._home.broker_socket.encode(errors="replace").decode(),
            "home": self._home.root.encode(errors="replace").decode(),
            "version": build(),
            "uptime_s": round(time.monotonic() - self._started, 3),
            "connections": len(self._connections),
            "counts": queries.counts(self._ledger),
            "agents": [self._agent(row, batch.now_ms) for row in self._agents.agent_list()],
            "parked": queries.parked_count(self._ledger),
            "inbox": queries.unread(self._ledger, self._directory.owner),
        }
        return cast(BrokerStatus, {**self._features.status(batch.now_ms), **status})

    def _agent(self, row: AgentRow, now_ms: int) -> AgentRow:
        note = self._storage.note(row["run"] or "", now_ms)
        return {**row, "notes": [*row["notes"], note]} if note else row

    def _stop(self, request: AnyRequest, batch: Batch) -> Stop:
        self._directory.check_person(request, "stop the broker")
        batch.after.append(self._stop_broker)
        return {"stopping": True, "pid": os.getpid()}
