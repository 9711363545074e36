"""Talking to the broker from an event loop, for as long as it takes: what a session uses.

It reconnects by itself, registers the agent again, and repeats the requests without an answer in
their order. That is safe: messages and events keep their id, and the other ops are idempotent,
except those in ``ONCE``, which fail with the news that the broker closed the connection.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relay.broker.start import DEADLINE, Starter, open_socket
from relay.core.build import build
from relay.core.errors import BrokerUnavailable, RelayError, Timeout
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.protocol.agent_ops import REGISTER, Register, Registered
from relay.protocol.broker import (
    IDENTIFIED,
    LINE_MAX,
    ONCE,
    PROTOCOL,
    Json,
    decode,
    encode,
    error_from,
)
from relay.protocol.broker_ops import HELLO
from relay.protocol.message_ops import SEND, MessageSent
from relay.protocol.op import Op

if TYPE_CHECKING:
    from relay.protocol.op import Answer, Fields

#: Requests without an answer. When it is full ``request`` waits for room until its deadline.
OUTBOX_MAX = 1024
#: Between tries to reach the broker, at most. Seconds.
_BACKOFF_MAX = 2.0

Push = Callable[[Json], None]


@dataclass(slots=True)
class _Request:
    n: int
    line: bytes
    future: asyncio.Future[Json]
    once: bool
    sent: bool = False


class AsyncClient:
    """A connection to the broker that repairs itself.

    ``on_push`` gets every push, in order, in the loop's thread. ``on_connected(True | False)``
    follows the connection (True: connected, and registered if ``register`` was ever called);
    ``on_problem`` gets what keeps it from coming back.
    """

    def __init__(
        self,
        home: Home,
        *,
        on_push: Push,
        on_connected: Callable[[bool], None] | None = None,
        on_problem: Callable[[RelayError], None] | None = None,
        start: bool = True,
    ) -> None:
        self.home = home
        self.connected = False
        self._on_push = on_push
        self._on_connected = on_connected or (lambda _: None)
        self._on_problem = on_problem or (lambda _: None)
        self._start = start
        self._last: Json = {}  # the fields of the broker's last hello
        self._n = 0
        self._registration: Mapping[str, object] | None = None
        self._requests: dict[int, _Request] = {}
        self._room = asyncio.Condition()
        self._link: _Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    # -- what a session calls

    async def open(self, deadline: float = DEADLINE) -> None:
        """Connect for the first time. Raises the reason where that fails."""
        link = await self._connect(deadline)
        self._task = asyncio.get_running_loop().create_task(self._stay(link))

    async def register(
        self,
        *,
        name: str,
        run: str,
        token: str,
        kind: str,
        pid: int | None,
        cwd: str,
        command: str,
        resume: bool = False,
        memory: Json | None = None,
        roles: Sequence[str] = (),
        join: Sequence[str] = (),
        deadline: float = 30.0,
    ) -> Registered:
        """Register this agent, now and after every reconnect, with its ``roles`` and the
        channels to ``join``. Raises NameTaken and others."""
        fields: Register = {
            "name": name,
            "run": run,
            "token": token,
            "kind": kind,
            "pid": pid,
            "cwd": cwd,
            "command": command,
            "resume": resume,
            "memory": memory,
            "roles": list(roles),
            "join": list(join),
            "version": build(),
            "deadline": deadline,
        }
        answer: Registered = await self.request(REGISTER, **fields)
        del fields["deadline"]
        self._registration = {**fields, "resume": True}
        return answer

    async def send(self, to: str | list[str], body: str, **fields: Any) -> MessageSent:
        return await self.request(SEND, to=to, body=body, **fields)

    async def request(
        self, op: Op[Fields, Any, Answer], *_: Fields.args, **asked: Fields.kwargs
    ) -> Answer:
        """Ask, and wait for the answer at most ``deadline`` seconds (30), reconnects included.

        Raises the broker's refusal, BrokerUnavailable when it could not be reached in that time,
        Timeout when it did not answer. After either of the last two the request may still have
        been carried out; asking again with the same ``id`` is always right.
        """
        fields: dict[str, Any] = dict(asked)
        deadline: float = fields.pop("deadline", 30.0)
        if op in IDENTIFIED:
            fields.setdefault("id", new_ulid(int(time.time() * 1000)))
        try:
            async with asyncio.timeout(deadline):
                request = await self._enqueue(op, fields)
                try:
                    answer: Any = await request.future
                    return answer  # type: ignore[no-any-return]
                finally:
                    await self._forget(request)
        except TimeoutError:
            if self.connected:
                raise Timeout("the broker did not answer in time") from None
            raise BrokerUnavailable(
                "the broker could not be reached in time", hint=f"look into {self.home.broker_log}"
            ) from None

    async def close(self) -> None:
        """Close the connection for good; requests without an answer raise BrokerUnavailable."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._link is not None:
            self._link.close()
            await self._link.lost.wait()
            self._link = None
        self._state(False)
        for request in list(self._requests.values()):
            if not request.future.done():
                request.future.set_exception(BrokerUnavailable("the connection is closed"))

    # -- requests

    async def _enqueue(self, op: str, fields: Mapping[str, object]) -> _Request:
        if self._closed:
            raise BrokerUnavailable("the connection is closed")
        async with self._room:
            await self._room.wait_for(lambda: len(self._requests) < OUTBOX_MAX)
            self._n += 1
            line = encode({"n": self._n, "op": op, **fields})
            if len(line) > LINE_MAX:
                raise RelayError("the request is too large", code="too_large", hint="send less")
            future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
            request = _Request(self._n, line, future, op in ONCE)
            self._requests[request.n] = request
        if self.connected and self._link is not None:
            request.sent = True
            self._link.write(line)
        return request

    async def _forget(self, request: _Request) -> None:
        self._requests.pop(request.n, None)
        async with self._room:
            self._room.notify()

    def _heard(self, record: Json) -> None:
        if "push" in record:
            self._on_push(record)
            return
        n = record.get("n")
        request = self._requests.get(n) if isinstance(n, int) else None
        if request is None or request.future.done():
            return
        if record.get("ok"):
            request.future.set_result(record)
        else:
            request.future.set_exception(error_from(record.get("error") or {}))

    # -- the connection

    async def _stay(self, link: _Link) -> None:
        backoff = 0.02
        while True:
            try:
                await self._resume(link)
                backoff = 0.02
                await link.lost.wait()
            except RelayError as error:
                self._on_problem(error)
            finally:
                self._state(False)
                link.close()
            while True:
                await asyncio.sleep(backoff * random.uniform(0.5, 1.0))
                backoff = min(backoff * 2, _BACKOFF_MAX)
                try:
                    link = await self._connect(DEADLINE)
                    break
                except RelayError as error:
                    self._on_problem(error)

    async def _connect(self, deadline: float) -> _Link:
        """A link whose broker has answered ``hello``."""
        loop = asyncio.get_running_loop()
        starter = Starter(self.home, start=self._start, deadline=deadline, last=self._last)
        while True:
            try:
                link, hello = await self._try(deadline)
                break
            except OSError as error:
                await asyncio.sleep(await loop.run_in_executor(None, starter.next_pause, error))
        if hello["protocol"] != PROTOCOL:
            link.close()
            raise BrokerUnavailable(
                f"the broker is of another version of relay ({hello['version']})",
                hint="relay broker stop; the next command starts one of this version",
            )
        self._last = hello
        self._link = link
        return link

    async def _try(self, deadline: float) -> tuple[_Link, Json]:
        """A link and its hello. Raises OSError when there is no broker, or it goes away."""
        connection = socket.socket(fileno=open_socket(self.home).detach())
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: _Link(self._heard), sock=connection)
        try:
            return link, await link.ask(HELLO, {}, deadline)
        except BaseException as error:
            link.close()
            if isinstance(error, BrokerUnavailable) and link.lost.is_set():
                raise ConnectionResetError(error.message) from error
            raise

    async def _resume(self, link: _Link) -> None:
        """Register again and repeat the requests without an answer."""
        if self._registration is not None:
            await link.ask(REGISTER, self._registration, DEADLINE)
        for request in list(self._requests.values()):
            if request.future.done():
                continue
            if request.once and request.sent:
                request.future.set_exception(BrokerUnavailable("the broker closed the connection"))
            else:
                request.sent = True
                link.write(request.line)
        self._state(True)

    def _state(self, connected: bool) -> None:
        if connected != self.connected:
            self.connected = connected
            self._on_connected(connected)


class _Link(asyncio.Protocol):
    """One connection's lines. The link's own requests have negative numbers."""

    def __init__(self, heard: Callable[[Json], None]) -> None:
        self.lost = asyncio.Event()
        self._heard = heard
        self._transport: asyncio.Transport | None = None
        self._part = bytearray()
        self._asked: dict[int, asyncio.Future[Json]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        first = len(self._part)
        self._part += data
        end = self._part.rfind(b"\n", first)
        if end < 0:
            if len(self._part) > LINE_MAX:
                self.close()
            return
        lines = bytes(self._part[:end]).split(b"\n")
        del self._part[: end + 1]
        for line in lines:
            try:
                self._line(decode(line))
            except ValueError:
                self.close()  # not a broker
                return

    def _line(self, record: Json) -> None:
        n: Any = record.get("n", 0)
        future = self._asked.pop(n, None) if isinstance(n, int) and n < 0 else None
        if n is None and self._asked:
            future = self._asked.pop(next(iter(self._asked)))  # refused before it was sent
        if future is None:
            self._heard(record)
        elif not future.done():
            if record.get("ok"):
                future.set_result(record)
            else:
                future.set_exception(error_from(record.get("error") or {}))

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        for future in self._asked.values():
            if not future.done():
                future.set_exception(BrokerUnavailable("the broker closed the connection"))
        self._asked.clear()

    def write(self, line: bytes) -> None:
        """Send one line. The outbox bounds how much can wait here."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(line)

    async def ask(self, op: str, fields: Mapping[str, object], deadline: float) -> Json:
        """Send a request of the link's own, and wait for its answer."""
        n = -1 - len(self._asked)
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._asked[n] = future
        self.write(encode({"n": n, "op": op, **fields}))
        try:
            async with asyncio.timeout(deadline):
                return await future
        except TimeoutError:
            raise BrokerUnavailable("the broker did not answer in time") from None

    def close(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
