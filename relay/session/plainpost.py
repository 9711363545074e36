"""The requests that agents' hooks make, read without a state machine. Pure.

Nearly all of them are plain: a POST with a length, that came in one piece. Whatever is not
unmistakably that (chunked, cut, pipelined, a header twice, a method or a version that is another
one) is left to an HTTP parser, which knows what it means or why it is wrong.
"""

from __future__ import annotations

import re

_FIRST = re.compile(rb"POST /[!-~]* HTTP/1\.1")
_HEADER = re.compile(
    rb"([A-Za-z0-9_-]+):[ \t]*([!-~\x80-\xff](?:[ -~\t\x80-\xff]*[!-~\x80-\xff])?|)"
)
_LENGTH = re.compile(rb"[0-9]{1,9}")
#: They change how a request ends, or what is expected next.
_PECULIAR = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"))
_HEAD_MAX = 16 * 1024

Headers = dict[bytes, bytes]


def read(data: bytes, limit: int) -> tuple[Headers, bytes] | None:
    """The headers, by their names in lower case, and the body of the one request in ``data``.

    None where it is not plain, or its body is longer than ``limit`` bytes.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    if not end or len(head) > _HEAD_MAX:
        return None
    first, *lines = head.split(b"\r\n")
    headers: Headers = {}
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None:
            return None
        headers[found[1].lower()] = found[2]
    if len(headers) < len(lines) or not _FIRST.fullmatch(first) or b"host" not in headers:
        return None
    if not _PECULIAR.isdisjoint(headers):
        return None
    if headers.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    length = headers.get(b"content-length", b"")
    if not _LENGTH.fullmatch(length) or int(length) != len(body) or len(body) > limit:
        return None
    return headers, body


def answer(status: int, body: bytes) -> bytes:
    """The response that has this JSON as its body; the connection stays open after it."""
    return b"HTTP/1.1 %d \r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status,
        len(body),
        body,
    )
