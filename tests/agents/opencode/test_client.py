"""Requests to opencode's server: what it is asked with, and what a failure says."""

from __future__ import annotations

import asyncio
import base64
import socket

import pytest

from relay.agents.opencode import adapter
from relay.agents.opencode.adapter import OpencodeClient, ServerError, client_from
from tests.agents.opencode.fake_server import NOTHING, FakeServer, client_of, ok


async def get(server: FakeServer, password: str = "", deadline: float = 5.0) -> object:
    async with client_of(server, password) as client:
        return await client.request("GET", "/x", deadline=deadline)


def test_json_comes_back_and_no_body_is_nothing() -> None:
    assert asyncio.run(get(FakeServer(lambda asked: ok({"a": 1})))) == {"a": 1}
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


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_a_server_may_have_an_ipv6_address() -> None:
    async def main() -> object:
        async with client_of(FakeServer(lambda asked: ok({"a": 1})), host="::1") as client:
            return await client.request("GET", "/x")

    assert asyncio.run(main()) == {"a": 1}


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n{broken"],
    ids=["nothing", "no HTTP", "no JSON"],
)
def test_what_is_no_answer_may_have_been_understood(answer: bytes) -> None:
    with pytest.raises(ServerError, match="opencode's server: ") as caught:
        asyncio.run(get(FakeServer(lambda asked: answer)))
    assert caught.value.sent


def test_a_refusal_says_what_was_refused() -> None:
    refusal = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno"
    with pytest.raises(ServerError, match="401 no") as caught:
        asyncio.run(get(FakeServer(lambda asked: refusal)))
    assert (caught.value.sent, caught.value.status) == (False, 401)


def test_a_server_that_says_nothing_is_given_up() -> None:
    with pytest.raises(ServerError, match="did not answer within") as caught:
        asyncio.run(get(FakeServer(lambda asked: b"", stays=True), deadline=0.05))
    assert caught.value.sent


def test_nobody_there_means_nothing_was_sent() -> None:
    async def main() -> None:
        listening = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        listening.close()
        await listening.wait_closed()
        await OpencodeClient("127.0.0.1", port).request("GET", "/x")

    with pytest.raises(ServerError) as caught:
        asyncio.run(main())
    assert not caught.value.sent


def test_an_answer_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "ANSWER_MAX", 10)
    with pytest.raises(ServerError, match="more than 10 bytes"):
        asyncio.run(get(FakeServer(lambda asked: ok("x" * 20))))


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", 401),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab", 0),
    ],
    ids=["refused", "broken off"],
)
def test_a_stream_that_does_not_go_on_is_an_error(answer: bytes, status: int) -> None:
    async def main() -> None:
        server = FakeServer(lambda asked: answer)
        async with client_of(server) as client, client.stream("/event") as events:
            while await events.read():
                pass

    with pytest.raises(ServerError) as caught:
        asyncio.run(main())
    assert caught.value.status == status


def test_the_server_is_read_from_the_plan() -> None:
    assert client_from({}) is None
    assert client_from({"port": 0}) is None
    server = FakeServer(lambda asked: NOTHING)

    async def main() -> None:
        async with client_of(server) as known:
            port = int(known.address.rpartition(":")[2])
            client = client_from({"port": port, "username": "u", "password": "p"})
            assert client is not None
            await client.request("GET", "/x")

    asyncio.run(main())
    pair = base64.b64encode(b"u:p").decode()
    assert server.asked[0].headers["authorization"] == f"Basic {pair}"
