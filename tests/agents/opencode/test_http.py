"""The small HTTP client, against a server that answers what a test says."""

from __future__ import annotations

import asyncio
import base64

import pytest

from relay.agents.opencode import http
from relay.agents.opencode.http import Client, ServerError
from relay.agents.opencode.server import Server, server_from
from tests.agents.opencode.fake_server import NOTHING, FakeServer, client_of, ok

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def get(server: FakeServer, password: str = "", deadline: float = 5.0) -> object:
    async with client_of(server, password) as client:
        return await client.request("GET", "/x", deadline=deadline)


@pytest.mark.parametrize(
    "answer",
    [
        ok({"a": 1}),
        CHUNKED + b'3\r\n{"a\r\n4;x=y\r\n": 1\r\n1\r\n}\r\n0\r\n\r\n',
        b'HTTP/1.1 200 OK\r\n\r\n{"a": 1}',
    ],
)
def test_json_comes_back_whichever_way_it_is_framed(answer: bytes) -> None:
    assert asyncio.run(get(FakeServer(lambda asked: answer))) == {"a": 1}


def test_an_answer_without_a_body_is_nothing() -> None:
    assert asyncio.run(get(FakeServer(lambda asked: NOTHING))) is None


def test_a_request_carries_its_body_and_the_password() -> None:
    server = FakeServer(lambda asked: NOTHING)

    async def main() -> None:
        async with client_of(server, "secret") as client:
            await client.request("POST", "/say", {"text": "é"})

    asyncio.run(main())
    [asked] = server.asked
    assert (asked.method, asked.path, asked.body) == ("POST", "/say", {"text": "é"})
    pair = base64.b64encode(b"opencode:secret").decode()
    assert asked.headers["authorization"] == f"Basic {pair}"
    server = FakeServer(lambda asked: NOTHING)
    asyncio.run(get(server))
    assert "authorization" not in server.asked[0].headers


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
        CHUNKED + b"5\r\nab",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"-5\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n{broken",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000,
    ],
)
def test_what_is_no_answer_may_have_been_understood(answer: bytes) -> None:
    with pytest.raises(ServerError) as caught:
        asyncio.run(get(FakeServer(lambda asked: answer)))
    assert caught.value.sent


def test_a_refusal_says_what_was_refused() -> None:
    refusal = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno"
    with pytest.raises(ServerError, match="401 no") as caught:
        asyncio.run(get(FakeServer(lambda asked: refusal)))
    assert (caught.value.sent, caught.value.status) == (False, 401)


def test_a_server_that_says_nothing_is_given_up() -> None:
    with pytest.raises(ServerError, match="no answer in time") as caught:
        asyncio.run(get(FakeServer(lambda asked: b"", stays=True), deadline=0.05))
    assert caught.value.sent


def test_nobody_there_means_nothing_was_sent() -> None:
    async def main() -> None:
        listening = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        listening.close()
        await listening.wait_closed()
        await Client(Server("127.0.0.1", port)).request("GET", "/x")

    with pytest.raises(ServerError) as caught:
        asyncio.run(main())
    assert not caught.value.sent


def test_an_answer_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "BODY_MAX", 10)
    with pytest.raises(ServerError, match="too long"):
        asyncio.run(get(FakeServer(lambda asked: ok("x" * 20))))


def test_a_stream_comes_in_pieces_and_ends() -> None:
    async def main() -> list[bytes]:
        answer = CHUNKED + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
        server = FakeServer(lambda asked: answer)
        async with client_of(server) as client, client.stream("/event") as pieces:
            return [piece async for piece in pieces]

    assert b"".join(asyncio.run(main())) == b"abc"


def test_a_stream_that_is_refused_or_breaks_off_is_an_error() -> None:
    async def main(answer: bytes) -> None:
        server = FakeServer(lambda asked: answer)
        async with client_of(server) as client, client.stream("/event") as pieces:
            async for _ in pieces:
                pass

    with pytest.raises(ServerError, match="401") as caught:
        asyncio.run(main(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"))
    assert caught.value.status == 401
    with pytest.raises(ServerError, match="hung up"):
        asyncio.run(main(CHUNKED + b"9\r\nab"))


def test_the_server_is_read_from_the_plan() -> None:
    assert server_from({}) is None
    assert server_from({"port": 0}) is None
    assert server_from({"port": 20001}) == Server("127.0.0.1", 20001)
    told = {"port": 1, "host": "h", "username": "u", "password": "p"}
    assert server_from(told) == Server("h", 1, "u", "p")
