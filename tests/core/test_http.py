"""HTTP: what a client is answered by servers of every kind, and events however they are cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core import http
from relay.core.http import EVENT_MAX, EventStreamParser, RequestFailed, Response, request, stream

LONG = 30.0
SHORT = 0.05
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

T = TypeVar("T")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _read_request(reader: asyncio.StreamReader) -> tuple[list[str], bytes]:
    """The lines of its head, and its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
    sizes = [line for line in head if line.lower().startswith("content-length:")]
    return head, await reader.readexactly(int(sizes[0].partition(":")[2]))


def _says(answer: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read_request(reader)
        writer.write(answer)
        await writer.drain()

    return serve


def _ask(
    serve: Serve,
    ask: Callable[[str], Awaitable[T]],
    *,
    tls: ssl.SSLContext | None = None,
    connects: bool = True,
) -> T:
    """What ``ask`` makes of a server that does ``serve`` with its one connection and closes it."""
    ended = asyncio.Queue[None]()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        ended.put_nowait(None)

    async def whole() -> T:
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
        try:
            return await ask(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        finally:
            server.close()
            if connects:
                await asyncio.wait_for(ended.get(), LONG)

    return asyncio.run(whole())


def _post(
    serve: Serve,
    payload: bytes = b'{"a": 1}',
    *,
    url: str = "http://{}/hook",
    headers: tuple[tuple[str, str], ...] = (),
    timeout: float = LONG,
    tls: ssl.SSLContext | None = None,
    **options: Any,
) -> Response:
    return _ask(
        serve,
        lambda host: request(
            "POST", url.format(host), headers, payload, timeout=timeout, **options
        ),
        tls=tls,
    )


def _refused(url: str, *headers: tuple[str, str]) -> RequestFailed:
    """Why nothing can be asked of ``url``."""
    with pytest.raises(RequestFailed) as caught:
        asyncio.run(request("POST", url, headers, b"", timeout=LONG))
    assert (caught.value.sent, caught.value.timed_out) == (False, False)
    return caught.value


def test_the_input_is_posted_and_the_body_is_the_answer() -> None:
    asked: list[tuple[list[str], bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await _read_request(reader))
        writer.write(FINE)

    own = (("Authorization", "Bearer word"), ("Content-Type", "text/plain"))
    url = "http://{}/a b/ü?x=%20&y=1#part"
    assert _post(serve, url=url, headers=own) == Response(200, b"{}")
    ((first, *lines), body) = asked[0]
    assert first == "POST /a%20b/%C3%BC?x=%20&y=1 HTTP/1.1"
    assert body == b'{"a": 1}'
    given = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert given.pop("host").startswith("127.0.0.1:")
    assert given == {
        "content-type": "text/plain",
        "authorization": "Bearer word",
        "content-length": "8",
        "connection": "close",
    }


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", Response(204)),
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 3\r\n\r\nbad", Response(500, b"bad")),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", Response(302)),
        (b"HTTP/1.1 103 Early\r\n\r\n" + FINE, Response(200, b"{}")),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", Response(200, b"to the end")),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
            Response(200, b"{}"),
        ),
    ],
    ids=["204", "500", "302", "early-hints", "http-1.0", "chunked"],
)
def test_every_kind_of_answer_is_read(said: bytes, answer: Response) -> None:
    assert _post(_says(said)) == answer


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", "it closed the connection without an answer"),
        (b"hello\r\n\r\n", "something else than HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "something else than HTTP"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "something else than HTTP"),
        (b"\0" * 200_000, "something else than HTTP"),
    ],
    ids=["nothing", "no-http", "cut", "long-header", "zeros"],
)
def test_what_is_no_whole_answer_is_an_error(said: bytes, error: str) -> None:
    with pytest.raises(RequestFailed) as caught:
        _post(_says(said))
    assert (caught.value.sent, caught.value.timed_out) == (True, False)
    assert error in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n"],
    ids=["to-the-end", "with-a-length"],
)
def test_an_endless_answer_is_an_error_and_takes_no_memory(head: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read_request(reader)
        writer.write(head)
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    tracemalloc.start()
    try:
        with pytest.raises(RequestFailed, match="it answered with more than 100000 bytes"):
            _post(serve, body_max=100_000)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"], ids=len
)
def test_one_that_does_not_answer_is_left_when_its_time_is_over(said: bytes) -> None:
    closed: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read_request(reader)
        writer.write(said)
        await writer.drain()
        with contextlib.suppress(ConnectionError):
            closed.append(await reader.read())

    with pytest.raises(RequestFailed, match="it did not answer within 0.05 s") as caught:
        _post(serve, timeout=SHORT)
    assert (caught.value.sent, caught.value.timed_out) == (True, True)


def test_one_that_answers_without_reading_is_heard() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(FINE)
        await writer.drain()
        await reader.read(1)  # the answer is on its way before the rest is refused
        with contextlib.suppress(ConnectionError):
            await reader.read()

    assert _post(serve, b"x" * 20_000_000) == Response(200, b"{}")


def test_nobody_there_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    why = _refused(f"http://127.0.0.1:{port}/").message
    assert why == f"127.0.0.1:{port} cannot be reached: Connection refused"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hook",
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "http://",
        "http://127.0.0.1:0/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:port/",
        "http://[::1/",
        "http://user:word@127.0.0.1/",
        "http://a\0b/",
        "http://a b/",
        "http://" + "a" * 300 + "/",
        "http://ü\udc80/",
    ],
)
def test_what_is_no_address_is_an_error(url: str) -> None:
    assert "word" not in _refused(url).message.replace("password", "")


@pytest.mark.parametrize(
    "header", [("A b", "c"), ("A", "b\r\nC: d"), ("A", "b\0"), ("Ä", "b"), ("A", "ü")]
)
def test_a_header_that_cannot_be_sent_is_an_error(header: tuple[str, str]) -> None:
    assert "headers" in _refused("http://127.0.0.1:9/", header).message


async def test_giving_up_closes_the_connection() -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read_request(reader)
        asked.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        closed.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    call = asyncio.ensure_future(request("POST", url, (), b"{}", timeout=LONG))
    await asyncio.wait_for(asked.wait(), LONG)
    call.cancel()
    await asyncio.wait_for(closed.wait(), LONG)
    assert call.cancelled()
    server.close()


def _anonymous(side: int) -> ssl.SSLContext:
    """TLS without certificates, which only those agree on who both say so."""
    context = ssl.SSLContext(side)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("aNULL:@SECLEVEL=0")
    return context


def test_https_is_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    client = _anonymous(ssl.PROTOCOL_TLS_CLIENT)
    monkeypatch.setattr(http, "_tls", lambda: client)
    tls = _anonymous(ssl.PROTOCOL_TLS_SERVER)
    assert _post(_says(FINE), url="https://{}/", tls=tls) == Response(200, b"{}")


def test_one_without_a_certificate_is_not_spoken_to() -> None:
    context = http._tls()
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    tls = _anonymous(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(RequestFailed, match="cannot be reached") as caught:
        _ask(
            _says(FINE),
            lambda host: request("GET", f"https://{host}/", timeout=LONG),
            tls=tls,
            connects=False,
        )
    assert not caught.value.sent


# -- an answer that is read as it comes


def _streamed(said: bytes) -> bytes:
    async def ask(host: str) -> bytes:
        found = b""
        async with stream("GET", f"http://{host}/", timeout=LONG) as answer:
            while piece := await answer.read():
                found += piece
        return found

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET / HTTP/1.1\r\n") and b"content" not in head
        writer.write(said)
        await writer.drain()

    return _ask(serve, ask)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_stream_comes_in_pieces_and_ends() -> None:
    assert _streamed(CHUNKED + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n") == b"abc"


@pytest.mark.parametrize("said", [b"", CHUNKED + b"9\r\nab", CHUNKED + b"-5\r\n"], ids=len)
def test_a_stream_that_breaks_off_is_an_error(said: bytes) -> None:
    with pytest.raises(RequestFailed) as caught:
        _streamed(said)
    assert caught.value.sent


# -- server-sent events


EVENTS = [{"type": "a", "properties": {"x": "é\n\r"}}, {"type": "b"}, {"type": "c", "n": 1}]
STREAM = b": hello\n\n" + b"".join(
    b"event: message\ndata: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"
    for event in EVENTS
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8), st.booleans())
def test_any_cut_gives_the_same_events(cuts: list[int], crlf: bool) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    if crlf:
        pieces = [STREAM.replace(b"\n", b"\r\n")]
    parser = EventStreamParser()
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS
    assert parser.dropped == 0


def test_what_is_no_event_is_passed_over() -> None:
    parser = EventStreamParser()
    deep = b"[" * 100_000
    broken = b"data: {broken\n\ndata: [1]\n\ndata: " + deep + b"\n\n"
    assert parser.feed(broken + b"data: {}\n\n") == [{}]
    assert parser.dropped == 3


def test_data_of_several_lines_is_one_event() -> None:
    assert EventStreamParser().feed(b'data: {"a":\ndata: 1}\n\n') == [{"a": 1}]


def test_an_event_that_is_too_long_costs_only_itself() -> None:
    parser = EventStreamParser()
    assert parser.feed(b"data: " + b"x" * EVENT_MAX) == []
    assert parser.feed(b"x" * 100) == []
    assert parser.feed(b'x\n\ndata: {"a": 1}\n\n') == [{"a": 1}]
    assert parser.dropped == 1
