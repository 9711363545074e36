"""The hook server, over real sockets: what clients do right, wrong, slowly and not at all.

And what becomes of an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relay.core import http
from relay.session import hook_server
from relay.session.hook_server import HookServer, Reply

TOKEN = "a-token"


class Bench:
    """A running server, what its handler got, and clients for it."""

    def __init__(self, server: HookServer, listener: socket.socket) -> None:
        self.server = server
        self.listener = listener
        self.events: list[dict[str, Any]] = []
        self.answer: dict[str, Any] | Exception = {}

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self.listener.getsockname()
        if isinstance(address, str):
            return await asyncio.open_unix_connection(address)
        return await asyncio.open_connection(*address[:2])

    async def exchange(self, data: bytes) -> tuple[int, dict[str, Any]]:
        reader, writer = await self.connect()
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
            answer = await read_answer(reader)
        writer.close()
        return answer


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
    return int(head.split(" ")[1]), json.loads(await reader.readexactly(length))


def post(body: bytes, *headers: str, token: str = TOKEN, method: str = "POST") -> bytes:
    lines = [f"{method} /hook HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", *headers]
    if not any(h.startswith("Transfer-Encoding") for h in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextlib.contextmanager
def limited(limits: dict[str, Any]) -> Iterator[None]:
    """The server has these limits."""
    with pytest.MonkeyPatch.context() as patch:
        for name, most in limits.items():
            patch.setattr(hook_server, name.upper(), most)
        yield


@contextlib.asynccontextmanager
async def serving(listener: socket.socket | None = None, **limits: Any) -> AsyncIterator[Bench]:
    if listener is None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    async def handler(event: dict[str, Any]) -> dict[str, Any]:
        made.events.append(event)
        if isinstance(made.answer, Exception):
            raise made.answer
        return made.answer

    with limited(limits):
        server = HookServer(handler, TOKEN)
        made = Bench(server, listener)
        await server.serve(listener)
        try:
            yield made
        finally:
            await server.close()


async def test_answers_what_the_handler_returns() -> None:
    async with serving() as made:
        made.answer = {"ok": "é"}
        event = {"hook_event_name": "Stop"}
        answer = await made.exchange(
            post(json.dumps(event).encode(), "X-Relay-Messaging-Socket: /a/b")
        )
        assert answer == (200, {"ok": "é"})
        assert made.events == [{**event, "relay": {"messaging-socket": "/a/b"}}]


async def test_an_event_cannot_bring_its_own_relay_headers() -> None:
    async with serving() as made:
        await made.exchange(post(b'{"relay": {"messaging-socket": "/forged"}}'))
        assert made.events == [{"relay": {}}]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (post(b"{}", token="another"), 403),
        (b"POST /hook HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", 403),
        (post(b"", method="GET"), 405),
        (post(b"{not json"), 400),
        (post(b"[1]"), 400),
        (post(b"[" * 100_000), 400),
        (post(b"\xff\xfe"), 400),
        (b"\x16\x03\x01 nonsense\r\n\r\n", 400),
        (b"POST /hook HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", 431),
    ],
    ids=[
        "another-token",
        "no-token",
        "get",
        "no-json",
        "list",
        "deep",
        "no-utf8",
        "no-http",
        "long-header",
    ],
)
async def test_refuses(data: bytes, status: int) -> None:
    async with serving() as made:
        assert (await made.exchange(data))[0] == status
        assert made.events == []
        assert (await made.exchange(post(b"{}")))[0] == 200


async def test_a_handler_that_raises_ends_its_request_and_the_server_goes_on() -> None:
    async with serving() as made:
        made.answer = ValueError("no")
        assert (await made.exchange(post(b"{}")))[0] == 500
        made.answer = {}
        assert (await made.exchange(post(b"{}")))[0] == 200


@pytest.mark.parametrize(
    ("said", "limit"),
    [(post(b"{}")[:-1], "request_deadline"), (b"", "idle_deadline")],
    ids=["a request that never ends", "silence"],
)
async def test_a_connection_that_only_waits_is_dropped(said: bytes, limit: str) -> None:
    limits: dict[str, Any] = {limit: 0.05}
    async with serving(**limits) as made:
        reader, writer = await made.connect()
        writer.write(said)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_connections_are_bounded() -> None:
    async with serving(connections_max=2) as made:
        held = [await made.connect() for _ in range(2)]
        for reader, writer in held:
            writer.write(post(b"{}"))
            await read_answer(reader)
        assert (await made.exchange(post(b"{}")))[0] == 503
        for reader, writer in held:
            writer.write(post(b"{}"))
            assert (await read_answer(reader))[0] == 200
            writer.close()


async def test_those_without_the_token_keep_nobody_out() -> None:
    async with serving(connections_max=2, unproven_max=8) as made:
        silent = [await made.connect() for _ in range(20)]
        begun = [await made.connect() for _ in range(20)]
        for _, writer in begun:
            writer.write(b"POST /hook HTTP/1.1\r\nContent-Length: 9\r\n")
            await writer.drain()
        for _ in range(10):
            assert (await made.exchange(post(b"{}")))[0] == 200
        async with asyncio.timeout(10):  # the oldest had to go
            assert await silent[0][0].read() == b""
        for _, writer in silent + begun:
            writer.close()


async def test_other_users_connections_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    others: set[int] = set()
    owners = partial(dict.fromkeys, others, os.getuid() + 1)
    monkeypatch.setattr(http, "loopback_owners", lambda port: owners())
    async with serving(unproven_max=8) as made:
        mine = await made.connect()
        writers = [(await made.connect())[1] for _ in range(7)]
        others.update(writer.get_extra_info("sockname")[1] for writer in writers)
        await asyncio.sleep(0)  # the server has accepted them
        assert (await made.exchange(post(b"{}")))[0] == 200
        mine[1].write(post(b"{}"))  # it was the oldest
        assert (await read_answer(mine[0]))[0] == 200
        for writer in [mine[1], *writers]:
            writer.close()


async def test_a_body_without_the_token_is_not_read() -> None:
    async with serving() as made:
        reader, writer = await made.connect()
        writer.write(post(b"", token="another").replace(b"Length: 0", b"Length: 8000000"))
        async with asyncio.timeout(10):
            assert (await read_answer(reader))[0] == 403
        writer.close()


class Slow:
    """A server whose handler waits for those events that say so, until it is told to go on."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.ended: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.server = HookServer(self.handler, TOKEN)
        self.bench = Bench(self.server, self.listener)

    async def handler(self, event: dict[str, Any]) -> dict[str, Any]:
        if event.get("wait"):
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.ended.append("cancelled")
                raise
        self.ended.append("answered")
        return {"waited": bool(event.get("wait"))}

    async def waiting(self, number: int) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """So many clients that wait, and are counted as such."""
        held = []
        for counted in range(number):
            held.append(await self.bench.connect())
            held[-1][1].write(post(b'{"wait": true}'))
            async with asyncio.timeout(10):
                while self.server.waiting <= counted:
                    await asyncio.sleep(0.01)
        return held


@asynccontextmanager
async def run_slow(**limits: Any) -> AsyncIterator[Slow]:
    with limited(limits):
        slow = Slow()
        await slow.server.serve(slow.listener)
        try:
            yield slow
        finally:
            await slow.server.close()


async def test_those_that_wait_keep_no_report_out() -> None:
    async with run_slow(connections_max=2, request_deadline=0.2) as slow:
        held = await slow.waiting(4)
        assert await slow.bench.exchange(post(b"{}")) == (200, {"waited": False})
        slow.go_on.set()
        for reader, writer in held:
            async with asyncio.timeout(10):
                assert await read_answer(reader) == (200, {"waited": True})
            writer.close()


async def test_a_client_that_hangs_up_ends_what_was_asked_for_it() -> None:
    async with run_slow() as slow:
        [(_, writer)] = await slow.waiting(1)
        writer.close()
        async with asyncio.timeout(10):
            while slow.ended != ["cancelled"]:
                await asyncio.sleep(0.01)
        assert slow.server.waiting == 0


async def test_what_comes_while_one_waits_is_the_next_request() -> None:
    async with run_slow() as slow:
        [(reader, writer)] = await slow.waiting(1)
        writer.write(post(b"{}"))
        await writer.drain()
        slow.go_on.set()
        async with asyncio.timeout(10):
            assert await read_answer(reader) == (200, {"waited": True})
            assert await read_answer(reader) == (200, {"waited": False})
        writer.close()


async def test_a_handler_has_its_time() -> None:
    async with run_slow(handler_deadline=0.05) as slow:
        status, _ = await slow.bench.exchange(post(b'{"wait": true}'))
        assert (status, slow.ended) == (503, ["cancelled"])


async def test_those_that_wait_are_bounded() -> None:
    async with run_slow(waiting_max=2) as slow:
        held = await slow.waiting(2)
        assert (await slow.bench.exchange(post(b'{"wait": true}')))[0] == 503
        assert slow.ended == ["cancelled"]
        slow.go_on.set()
        for reader, writer in held:
            async with asyncio.timeout(10):
                assert (await read_answer(reader))[0] == 200
            writer.close()


async def test_what_was_sent_before_the_server_ran_is_served() -> None:
    """The pump binds the socket; hooks may call while the session still starts."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    early = socket.create_connection(listener.getsockname())
    early.sendall(post(b'{"n": 1}', "Connection: close"))
    early.close()
    async with serving(listener=listener) as made:
        await made.exchange(post(b'{"n": 2}'))
        assert sorted(event["n"] for event in made.events) == [1, 2]


async def test_takes_chunked_bodies_cut_anywhere() -> None:
    async with serving() as made:
        chunks = b'3\r\n{"a\r\n1;x=y\r\n"\r\n4\r\n: 1}\r\n0\r\n\r\n'
        data = post(chunks, "Transfer-Encoding: chunked")
        reader, writer = await made.connect()
        async with asyncio.timeout(10):
            for byte in data:
                writer.write(bytes([byte]))
                await writer.drain()
            assert (await read_answer(reader))[0] == 200
        writer.close()
        assert made.events == [{"a": 1, "relay": {}}]


async def test_refuses_a_body_that_is_too_long() -> None:
    async with serving(body_max=1000) as made:
        assert (await made.exchange(post(b'"' + b"x" * 500_000 + b'"')))[0] == 413
        assert (await made.exchange(post(b'{"x": "' + b"x" * 900 + b'"}')))[0] == 200


async def test_a_client_that_goes_away_early_harms_nobody() -> None:
    async with serving() as made:
        whole = post(b'{"n": 1}')
        for length in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
            _, writer = await made.connect()
            writer.write(whole[:length])
            writer.close()
        assert (await made.exchange(post(b'{"n": 2}')))[0] == 200


async def given_to(bench: Bench, ask: Callable[[], Awaitable[None]], size: int = 100) -> list[bool]:
    """What whoever gave an answer of so many characters is told of it, once ``ask`` is done."""
    fates: list[bool] = []
    bench.answer = Reply({"text": "x" * size}, fates.append)
    await ask()
    async with asyncio.timeout(10):
        while not fates:
            await asyncio.sleep(0.01)
    return fates


@pytest.mark.parametrize("headers", [(), ("Expect: 100-continue",)], ids=["plain", "expect"])
async def test_who_gives_an_answer_learns_that_it_went_out(headers: tuple[str, ...]) -> None:
    async with serving() as bench:

        async def ask() -> None:
            reader, writer = await bench.connect()
            writer.write(post(b"{}", *headers))
            if headers:
                await reader.readuntil(b"\r\n\r\n")
            status, answer = await read_answer(reader)
            assert status == 200 and len(answer["text"]) == 100
            writer.close()

        assert await given_to(bench, ask) == [True]


async def test_an_answer_that_is_not_taken_never_went_out() -> None:
    async with serving() as bench:

        async def ask() -> None:
            address = bench.listener.getsockname()[:2]
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, address)
            await loop.sock_sendall(client, post(b"{}"))
            assert await loop.sock_recv(client, 1)  # it has begun to come, and is read no further
            client.close()

        # More than the kernel keeps for a client that does not read.
        assert await given_to(bench, ask, 50_000_000) == [False]


async def test_serves_a_unix_socket_and_leaves_its_file(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    path = tmp_path / "s"
    listener.bind(str(path))
    listener.listen(8)
    async with serving(listener=listener) as made:
        assert (await made.exchange(post(b'{"n": 1}')))[0] == 200
    assert path.exists()
