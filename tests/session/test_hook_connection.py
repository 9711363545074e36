"""What a client may do with its connection, and what becomes of an answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from relay.session.hook_server import Reply
from tests.session.httpbench import Bench, post, read_answer, run


def test_takes_chunked_bodies_cut_anywhere() -> None:
    async def test(made: Bench) -> None:
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

    run(test)


def test_keeps_a_connection_for_the_next_request() -> None:
    async def test(made: Bench) -> None:
        reader, writer = await made.connect()
        async with asyncio.timeout(10):
            writer.write(post(b'{"n": 1}') + post(b'{"n": 2}'))
            assert (await read_answer(reader))[0] == 200
            assert (await read_answer(reader))[0] == 200
            writer.write(post(b'{"n": 3}'))
            assert (await read_answer(reader))[0] == 200
        writer.close()
        assert [event["n"] for event in made.events] == [1, 2, 3]

    run(test)


def test_expect_100_continue() -> None:
    async def test(made: Bench) -> None:
        reader, writer = await made.connect()
        async with asyncio.timeout(10):
            head, _, body = post(b"{}", "Expect: 100-continue").partition(b"\r\n\r\n")
            writer.write(head + b"\r\n\r\n")
            assert b"100" in await reader.readuntil(b"\r\n\r\n")
            writer.write(body)
            assert (await read_answer(reader))[0] == 200
        writer.close()

    run(test)


def test_refuses_a_body_that_is_too_long() -> None:
    async def test(made: Bench) -> None:
        assert (await made.exchange(post(b'"' + b"x" * 500_000 + b'"')))[0] == 413
        assert (await made.exchange(post(b'{"x": "' + b"x" * 900 + b'"}')))[0] == 200

    run(test, body_max=1000)


def test_a_client_that_goes_away_early_harms_nobody() -> None:
    async def test(made: Bench) -> None:
        whole = post(b'{"n": 1}')
        for length in (0, 1, len(whole) // 2, len(whole) - 1, len(whole)):
            _, writer = await made.connect()
            writer.write(whole[:length])
            writer.close()
        assert (await made.exchange(post(b'{"n": 2}')))[0] == 200

    run(test)


async def given_to(bench: Bench, ask: Callable[[], Awaitable[None]], size: int = 100) -> list[bool]:
    """What whoever gave an answer of so many characters is told of it, once ``ask`` is done."""
    fates: list[bool] = []
    bench.answer = Reply({"text": "x" * size}, fates.append)
    await ask()
    async with asyncio.timeout(10):
        while not fates:
            await asyncio.sleep(0.01)
    return fates


@pytest.mark.parametrize("headers", [(), ("Expect: 100-continue",)])
def test_who_gives_an_answer_learns_that_it_went_out(headers: tuple[str, ...]) -> None:
    async def test(bench: Bench) -> None:
        async def ask() -> None:
            reader, writer = await bench.connect()
            writer.write(post(b"{}", *headers))
            if headers:
                await reader.readuntil(b"\r\n\r\n")
            status, answer = await read_answer(reader)
            assert status == 200 and len(answer["text"]) == 100
            writer.close()

        assert await given_to(bench, ask) == [True]

    run(test)


def test_an_answer_that_is_not_taken_never_went_out() -> None:
    async def test(bench: Bench) -> None:
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

    run(test)
