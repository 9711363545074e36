"""Asks one HTTP endpoint, as a hook: a POST with the input, and the answer's body.

HTTP/1.1, one connection a request; ``https`` checks the certificate like a browser does. Neither
redirects nor proxies nor compression: what a hook's address says is what is asked. ``h11`` is
imported when it is used.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

#: Bytes of an answer's body; a longer one is an error.
BODY_MAX = 1024 * 1024
_READ = 65536
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. ``error`` says in one line why there is no whole answer, "" when there is.

    ``status`` is None without an answer; ``timed_out`` is one of the reasons for an error.
    """

    status: int | None
    body: bytes = b""
    timed_out: bool = False
    error: str = ""


class _Unusable(Exception):
    """The address, or the answer, is nothing to go on with."""


async def post(
    url: str,
    headers: Iterable[tuple[str, str]],
    payload: bytes,
    *,
    timeout: float,
    body_max: int = BODY_MAX,
) -> Answer:
    """POST ``payload`` (JSON) to ``url``; ``timeout`` in seconds is for all of it.

    Whatever is wrong is in the answer; only CancelledError is raised, and then the connection is
    closed.
    """
    import h11

    try:
        target = _target(url)
        request = h11.Request(
            method="POST", target=_path(target), headers=_headers(target, headers, len(payload))
        )
        async with asyncio.timeout(timeout) as limit:
            return await _exchange(target, request, payload, body_max)
    except _Unusable as error:
        return Answer(None, error=str(error))
    except TimeoutError as error:
        if not limit.expired():  # the kernel's own, while connecting
            return Answer(None, error=f"{target.netloc} cannot be reached: {error}")
        return Answer(None, timed_out=True, error=f"it did not answer within {timeout:g} s")
    except h11.LocalProtocolError as error:
        return Answer(None, error=f"its address or headers cannot be sent: {error}")
    except h11.RemoteProtocolError as error:
        return Answer(
            None, error=f"{target.netloc} answered with something else than HTTP: {error}"
        )
    except UnicodeError:
        return Answer(None, error="its address or headers are not ASCII")
    except OSError as error:
        return Answer(None, error=f"{target.netloc} cannot be reached: {error.strerror or error}")


def _target(url: str) -> SplitResult:
    try:
        target = urlsplit(url)
        port = target.port
    except ValueError as error:
        raise _Unusable(f"its address is not valid: {error}") from None
    if target.scheme not in _PORTS or not target.hostname or port == 0:
        raise _Unusable("its address must be http://HOST[:PORT]/… or https://…")
    if "@" in target.netloc:
        raise _Unusable("its address has a password in it; give an Authorization header instead")
    return target


def _path(target: SplitResult) -> str:
    query = f"?{target.query}" if target.query else ""
    return quote(f"{target.path or '/'}{query}", safe="/?%&=+,;:@!$'()*~")


def _headers(
    target: SplitResult, own: Iterable[tuple[str, str]], length: int
) -> list[tuple[str, str]]:
    headers = {"host": target.netloc, "content-type": "application/json"}
    headers |= {name.lower(): value for name, value in own}
    headers |= {"content-length": str(length), "connection": "close"}
    return list(headers.items())


async def _exchange(target: SplitResult, request: Any, payload: bytes, body_max: int) -> Answer:
    import h11

    context = await asyncio.to_thread(_tls) if target.scheme == "https" else None
    port = target.port or _PORTS[target.scheme]
    reader, writer = await asyncio.open_connection(target.hostname, port, ssl=context)
    try:
        http = h11.Connection(h11.CLIENT)
        # Not drained: an endpoint that answers without reading would never be heard.
        for event in (request, h11.Data(data=payload), h11.EndOfMessage()):
            writer.write(http.send(event) or b"")
        return await _answer(http, reader, body_max)
    finally:
        writer.transport.abort()


async def _answer(http: Any, reader: asyncio.StreamReader, body_max: int) -> Answer:
    import h11

    status, body = 0, bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(_READ)
            if not data and not status:
                raise _Unusable("it closed the connection without an answer")
            http.receive_data(data)
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > body_max:
                raise _Unusable(f"it answered with more than {body_max} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return Answer(status, bytes(body))
        elif not isinstance(event, h11.InformationalResponse):
            raise _Unusable(f"it answered with {type(event).__name__}")


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
