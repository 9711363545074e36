"""Requests that the broker itself makes of its own ops, for an agent that is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from relay.broker.batch import ClientRequest, Committer, Handler
from relay.broker.directory import Directory, Member
from relay.core.errors import UsageError
from relay.core.message import AgentState
from relay.ledger.schema import AgentRecord
from relay.protocol.broker import Json, decode, error_from


class _Inner:
    """Stands in for a connection: one request, whose answer is a future."""

    closed = paused = False
    unsent = 0

    def __init__(self) -> None:
        self.answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()

    def send(self, line: bytes) -> None:
        if self.answer.done():
            return
        record = decode(line)
        if record.get("ok"):
            self.answer.set_result(record)
        else:
            self.answer.set_exception(error_from(record.get("error") or {}))

    def defer(self) -> None:
        """One request only: there is nothing to bound."""

    def undefer(self) -> None:
        """See ``defer``."""

    def answered(self, size: int) -> None:
        """See ``defer``."""

    def close(self) -> None:
        """See ``defer``."""


class Inner:
    """``ask`` goes the way of any client's request, its bounds and deadlines included."""

    def __init__(
        self, committer: Committer, directory: Directory, handlers: Mapping[str, Handler]
    ) -> None:
        self._committer = committer
        self._directory = directory
        self._handlers = handlers

    async def ask(self, request: Json, agent: str, run: str) -> Json:
        """The answer's fields to what ``agent`` asks in ``run``. Raises RelayError."""
        handler = self._handlers.get(request["op"])
        if handler is None:
            raise UsageError(f"this broker knows no op {request['op']!r}")
        now_ms = int(time.time() * 1000)
        record = AgentRecord(
            name=agent,
            person=False,
            kind="relay",
            state=AgentState.GONE.value,
            since_ms=now_ms,
            last_seen_ms=now_ms,
            run=run,
        )
        inner = _Inner()
        size = sum(len(value) for value in request.values() if isinstance(value, str))
        self._directory.bind(inner, Member(record))
        try:
            self._committer.submit(handler, ClientRequest(inner, 0, request["op"], request, size))
            return await inner.answer
        finally:
            self._directory.unbind(inner)
