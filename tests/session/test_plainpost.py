"""Plain requests: what is read without an HTTP parser is what the parser would have read."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.session import plainpost

LIMIT = 1000
BODY = b'{"a": 1}'
LINES = [
    b"POST /hook HTTP/1.1",
    b"Host: 127.0.0.1:4000",
    b"Authorization: Bearer t",
    b"X-Relay-Door: ",
    b"Content-Type:application/json",
    b"Connection: keep-alive",
    b"Content-Length: 8",
]


def request(lines: list[bytes], body: bytes = BODY) -> bytes:
    return b"\r\n".join([*lines, b"", b""]) + body


def parsed(data: bytes) -> tuple[bytes, plainpost.Headers, bytes] | None:
    """What h11 reads in ``data``; None unless that is one whole request and no more."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    body = b""
    try:
        first = connection.next_event()
        if not isinstance(first, h11.Request):
            return None
        while isinstance(part := connection.next_event(), h11.Data):
            body += part.data
    except h11.RemoteProtocolError:
        return None
    if not isinstance(part, h11.EndOfMessage) or connection.trailing_data[0]:
        return None
    headers = {bytes(name): bytes(value) for name, value in first.headers}
    return bytes(first.method), headers, body


def test_reads_what_agents_send() -> None:
    found = plainpost.read(request(LINES), LIMIT)
    assert found is not None
    headers, body = found
    assert headers[b"authorization"] == b"Bearer t"
    assert headers[b"x-relay-door"] == b""
    assert body == BODY
    assert parsed(request(LINES)) == (b"POST", headers, body)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        request(LINES)[:-1],
        request(LINES) + b"P",
        request(LINES) + request(LINES),
        request(LINES)[:40],
        request(LINES, b"x" * 8)[: -8 - 2],
        request([b"GET /hook HTTP/1.1", *LINES[1:]]),
        request([b"POST /hook HTTP/1.0", *LINES[1:]]),
        request([b"POST /a b HTTP/1.1", *LINES[1:]]),
        request([LINES[0], *LINES[2:]]),
        request(LINES[:-1], b""),
        request([*LINES, b"Content-Length: 8"]),
        request([*LINES, b"content-length: 9"]),
        request([*LINES, b"Transfer-Encoding: chunked"]),
        request([*LINES, b"Expect: 100-continue"]),
        request([*LINES, b" folded"]),
        request([*LINES, b"Bad Name: x"]),
        request([*LINES, b"No-Colon"]),
        request([*LINES, b"Control: a\x00b"]),
        request([*LINES, b"Line: a\nTransfer-Encoding: chunked"]),
        request([*LINES, b"Return: a\rb"]),
        request([*LINES[:-2], b"Connection: close", LINES[-1]]),
        request([*LINES[:-1], b"Content-Length: +8"]),
        request([*LINES[:-1], b"Content-Length: 8, 8"]),
        request([*LINES[:-1], b"Content-Length: 1001"], b"x" * 1001),
        request([*LINES, b"Long: " + b"x" * 17000]),
    ],
)
def test_leaves_everything_else_to_the_parser(data: bytes) -> None:
    assert plainpost.read(data, LIMIT) is None


@given(
    st.lists(
        st.tuples(
            st.integers(0, len(request(LINES))),
            st.integers(0, 3),
            st.sampled_from(
                [b"", b" ", b"\t", b"\r", b"\n", b"\r\n", b"\r\n\r\n", b":", b"\x00", b"\xe9", b"8"]
                + [b"Host: x\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 8\r\n"]
            ),
        ),
        max_size=4,
    )
)
def test_never_reads_anything_else_than_the_parser(edits: list[tuple[int, int, bytes]]) -> None:
    data = request(LINES)
    for at, cut, put in edits:
        data = data[:at] + put + data[at + cut :]
    found = plainpost.read(data, LIMIT)
    if found is not None:
        assert parsed(data) == (b"POST", *found)


@pytest.mark.parametrize("body", [b"{}", b'{"error": "\xc3\xa9"}'])
def test_answers_so_that_a_client_understands_it(body: bytes) -> None:
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/hook", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(plainpost.answer(403, body))
    response = client.next_event()
    assert isinstance(response, h11.Response)
    assert response.status_code == 403
    data = client.next_event()
    assert isinstance(data, h11.Data)
    assert data.data == body
    assert isinstance(client.next_event(), h11.EndOfMessage)
    assert client.their_state is h11.DONE
