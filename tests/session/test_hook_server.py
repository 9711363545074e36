"""The hook server, over real sockets: what clients do right, wrong, slowly and not at all."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from relay.session.hook_server import HookServer
from tests.session.httpbench import TOKEN, Bench, post, read_answer, run


def test_answers_what_the_handler_returns() -> None:
    async def test(made: Bench) -> None:
        made.answer = {"ok": "é"}
        event = {"hook_event_name": "Stop"}
        answer = await made.exchange(post(json.dumps(event).encode(), "X-Relay-Door: /a/b"))
        assert answer == (200, {"ok": "é"})
        assert made.events == [{**event, "relay": {"door": "/a/b"}}]

    run(test)


def test_an_event_cannot_bring_its_own_relay_headers() -> None:
    async def test(made: Bench) -> None:
        await made.exchange(post(b'{"relay": {"door": "/forged"}}'))
        assert made.events == [{"relay": {}}]

    run(test)


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
)
def test_refuses(data: bytes, status: int) -> None:
    async def test(made: Bench) -> None:
        assert (await made.exchange(data))[0] == status
        assert made.events == []
        assert (await made.exchange(post(b"{}")))[0] == 200

    run(test)


def test_a_handler_that_raises_is_reported_and_the_server_goes_on() -> None:
    async def test(made: Bench) -> None:
        made.answer = ValueError("no")
        assert (await made.exchange(post(b"{}")))[0] == 500
        assert [str(error) for error in made.errors] == ["no"]
        made.answer = {}
        assert (await made.exchange(post(b"{}")))[0] == 200

    run(test)


def test_a_request_that_never_ends_is_dropped() -> None:
    async def test(made: Bench) -> None:
        reader, writer = await made.connect()
        writer.write(post(b"{}")[:-1])
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()

    run(test, request_deadline=0.05)


def test_a_silent_connection_is_dropped() -> None:
    async def test(made: Bench) -> None:
        reader, writer = await made.connect()
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()

    run(test, idle_deadline=0.05)


def test_connections_are_bounded() -> None:
    async def test(made: Bench) -> None:
        held = [await made.connect() for _ in range(2)]
        for reader, writer in held:
            writer.write(post(b"{}"))
            await read_answer(reader)
        assert (await made.exchange(post(b"{}")))[0] == 503
        for reader, writer in held:
            writer.write(post(b"{}"))
            assert (await read_answer(reader))[0] == 200
            writer.close()

    run(test, connections_max=2)


class Slow:
    """A server whose handler waits for those events that say so, until it is told to go on."""

    def __init__(self, **limits: Any) -> None:
        self.go_on = asyncio.Event()
        self.ended: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.server = HookServer(self.handler, TOKEN, **limits)
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


def run_slow(test: Callable[[Slow], Awaitable[None]], **limits: Any) -> None:
    async def main() -> None:
        slow = Slow(**limits)
        await slow.server.serve(slow.listener)
        try:
            await test(slow)
        finally:
            await slow.server.close()

    asyncio.run(main())


def test_those_that_wait_keep_no_report_out() -> None:
    async def test(slow: Slow) -> None:
        held = await slow.waiting(4)
        assert await slow.bench.exchange(post(b"{}")) == (200, {"waited": False})
        slow.go_on.set()
        for reader, writer in held:
            async with asyncio.timeout(10):
                assert await read_answer(reader) == (200, {"waited": True})
            writer.close()

    run_slow(test, connections_max=2, request_deadline=0.2)


def test_a_client_that_hangs_up_ends_what_was_asked_for_it() -> None:
    async def test(slow: Slow) -> None:
        [(_, writer)] = await slow.waiting(1)
        writer.close()
        async with asyncio.timeout(10):
            while slow.ended != ["cancelled"]:
                await asyncio.sleep(0.01)
        assert slow.server.waiting == 0

    run_slow(test)


def test_what_comes_while_one_waits_is_the_next_request() -> None:
    async def test(slow: Slow) -> None:
        [(reader, writer)] = await slow.waiting(1)
        writer.write(post(b"{}"))
        await writer.drain()
        slow.go_on.set()
        async with asyncio.timeout(10):
            assert await read_answer(reader) == (200, {"waited": True})
            assert await read_answer(reader) == (200, {"waited": False})
        writer.close()

    run_slow(test)


def test_a_handler_has_its_time() -> None:
    async def test(slow: Slow) -> None:
        status, _ = await slow.bench.exchange(post(b'{"wait": true}'))
        assert (status, slow.ended) == (503, ["cancelled"])

    run_slow(test, handler_deadline=0.05)


def test_those_that_wait_are_bounded() -> None:
    async def test(slow: Slow) -> None:
        held = await slow.waiting(2)
        assert (await slow.bench.exchange(post(b'{"wait": true}')))[0] == 503
        assert slow.ended == ["cancelled"]
        slow.go_on.set()
        for reader, writer in held:
            async with asyncio.timeout(10):
                assert (await read_answer(reader))[0] == 200
            writer.close()

    run_slow(test, waiting_max=2)


def test_serves_a_unix_socket_and_leaves_its_file(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    path = tmp_path / "s"
    listener.bind(str(path))
    listener.listen(8)

    async def test(made: Bench) -> None:
        assert (await made.exchange(post(b'{"n": 1}')))[0] == 200

    run(test, listener=listener)
    assert path.exists()


def test_what_was_sent_before_the_server_ran_is_served() -> None:
    """The pump binds the socket; hooks may call while the session still starts."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    early = socket.create_connection(listener.getsockname())
    early.sendall(post(b'{"n": 1}', "Connection: close"))
    early.close()

    async def test(made: Bench) -> None:
        await made.exchange(post(b'{"n": 2}'))
        assert sorted(event["n"] for event in made.events) == [1, 2]

    run(test, listener=listener)
