"""Serves the person's web page on 127.0.0.1: the page, what it asks for, and what happens.

Without a key there is only the page itself, in which nothing of the person's stands. All else is
``POST /api/NAME`` with a JSON object and ``Authorization: Bearer KEY``. The page gets its key for
the code of a link (``/#CODE``; a browser sends no fragment), which is good for one use, so a code
that somebody else has read is noticed. Both are in this process's memory only.

A key is not enough: ``relay.core.loopback_guard`` tells who is connected. An agent that shows a key
or a code has read it somewhere, so all of them end, and the person is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import secrets
import socket
from base64 import b64encode
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

from relay.core.errors import RelayError, error_fields
from relay.core.http import JSON, Header, HttpRequest, Newcomers, Refused, ServerConnection
from relay.core.loopback_guard import ClientKind, admitted, check_host, check_origin, client_of
from relay.core.visible import cells

if TYPE_CHECKING:
    from relay.features.web.web_data import WebData

#: Bytes of what the page may send.
BODY_MAX = 64 * 1024
#: Connections that have shown a key, and that have not; browsers that have one; open streams.
PROVEN_MAX, UNPROVEN_MAX, KEYS_MAX, STREAMS_MAX = 64, 64, 16, 16
#: Seconds for a request to come and for its answer to go, and for what it asks for.
REQUEST_DEADLINE, WORK_DEADLINE = 10.0, 60.0
#: Seconds that a kept connection may stay silent, and after which a stream shows that it lives.
IDLE_DEADLINE, ALIVE_AFTER = 120.0, 15.0
#: What happens within this time goes to the page together. Seconds.
TOGETHER = 0.1
_ALWAYS: tuple[Header, ...] = (
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)
_STREAM = (*_ALWAYS, ("Content-Type", "text/event-stream"))
_API = b"/api/"

Json = dict[str, Any]


class AccessKeys:
    """The code of the next link, and the keys that earlier ones were exchanged for."""

    def __init__(self) -> None:
        self._code = ""
        self._keys: dict[bytes, None] = {}  # by their hashes, the oldest first

    def new_code(self) -> str:
        """A code for one use; the one before it is good no more."""
        self._code = secrets.token_urlsafe(24)
        return self._code

    def is_code(self, code: object) -> bool:
        given = code if isinstance(code, str) else ""
        return bool(self._code) and secrets.compare_digest(given.encode(), self._code.encode())

    def new_key(self) -> str:
        """The key that the code is exchanged for; of too many the oldest ends."""
        self._code = ""
        key = secrets.token_urlsafe(32)
        self._keys[_hash(key.encode())] = None
        while len(self._keys) > KEYS_MAX:
            del self._keys[next(iter(self._keys))]
        return key

    def is_key(self, authorization: bytes) -> bool:
        kind, _, key = authorization.partition(b" ")
        return kind == b"Bearer" and _hash(key) in self._keys

    def revoke(self) -> None:
        """Nothing that was given away counts any more."""
        self._code = ""
        self._keys.clear()


class WebServer:
    """Serves the page to the browsers that have come by one of its links."""

    def __init__(
        self,
        data: WebData,
        listener: socket.socket,
        *,
        on_link: Callable[[str], None],
        on_warning: Callable[[str], None],
        allow_tunnel: bool = False,
    ) -> None:
        """``listener`` is bound to 127.0.0.1. ``on_link`` gets the link that is good now, each time
        that there is a new one; ``on_warning`` what the person should know."""
        self._admitted = admitted(allow_tunnel)
        self._data = data
        self._listener = listener
        self._port: int = listener.getsockname()[1]
        self._on_link = on_link
        self._on_warning = on_warning
        self._keys = AccessKeys()
        page = resources.files("relay.features.web").joinpath("web_page.html").read_text("utf-8")
        self._page = page.encode()
        policy = ("Content-Security-Policy", content_policy(page))
        self._page_headers = (*_ALWAYS, ("Content-Type", "text/html; charset=utf-8"), policy)
        self._newcomers = Newcomers(UNPROVEN_MAX)
        self._proven: dict[ServerConnection, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams = 0

    async def run(self) -> None:
        """Serve until cancelled."""
        server = await asyncio.start_server(self._connected, sock=self._listener)
        try:
            self._offer_link()
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _offer_link(self) -> None:
        self._on_link(f"http://127.0.0.1:{self._port}/#{self._keys.new_code()}")

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = ServerConnection(reader, writer)
        self._newcomers.add(connection, writer.get_extra_info("sockname"))
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
                while await connection.wait_for_request(IDLE_DEADLINE):
                    await self._serve_request(connection)
                    if not await connection.start_next():
                        break
        finally:
            self._newcomers.remove(connection)
            self._proven.pop(connection, None)
            await connection.close()
            self._tasks.discard(task)

    async def _serve_request(self, connection: ServerConnection) -> None:
        headers, status = (*_ALWAYS, *JSON), 200
        try:
            async with asyncio.timeout(REQUEST_DEADLINE):
                request = await connection.request(BODY_MAX, self._admit)
            name = request.target.removeprefix(_API).decode("ascii", "replace")
            if request.method == b"GET":
                headers, body = self._page_headers, self._page
            elif name == "key":
                body = _encoded({"key": await self._exchange(connection, _fields(request))})
            else:
                await self._prove(connection)
                if name == "stream":
                    await self._stream(connection)
                    return
                async with asyncio.timeout(WORK_DEADLINE):
                    body = _encoded(await self._data.ask(name, _fields(request)))
        except Refused as refused:
            status, body = refused.status, _error(refused.reason)
        except RelayError as error:
            status, body = 409, _encoded({"error": error_fields(error)})
        except TimeoutError:
            status, body = 504, _error("it took too long")
        except Exception as error:
            if isinstance(error, OSError):
                raise  # the client has gone
            self._on_warning(f"the web page asked for something that failed: {error!r}")
            status, body = 500, _error("relay web could not do that; its terminal says more")
        async with asyncio.timeout(REQUEST_DEADLINE):
            await connection.answer(status, body, headers)

    def _admit(self, begun: HttpRequest) -> None:
        """Raises Refused for what is not served, before the body is read."""
        if begun.method == b"GET":
            check_host(begun.headers)  # a link may stand on any page
            if begun.target != b"/":
                raise Refused(404, "there is nothing here")
            return
        check_origin(begun.headers)
        if begun.method != b"POST" or not begun.target.startswith(_API):
            raise Refused(404, "there is nothing here")
        # No form can send that, and a page of another origin only after a question that we refuse.
        if begun.headers.get(b"content-type") != b"application/json":
            raise Refused(415, "the body must be JSON")
        shown = begun.headers.get(b"authorization", b"")
        if begun.target != b"/api/key" and not self._keys.is_key(shown):
            raise Refused(401, "this page's key is good no more: open the newest link")

    async def _exchange(self, connection: ServerConnection, fields: Json) -> str:
        """The key for a link's code. Raises Refused."""
        if not self._keys.is_code(fields.get("code")):
            raise Refused(401, "this link was used already, or is an older one")
        await self._prove(connection)
        if not self._keys.is_code(fields.get("code")):
            raise Refused(401, "this link was used already")  # while we looked
        key = self._keys.new_key()
        self._offer_link()
        return key

    async def _prove(self, connection: ServerConnection) -> None:
        """Raises Refused unless the person's own client is connected; looked at once."""
        if connection in self._proven:
            return
        kind = await asyncio.to_thread(client_of, self._port, *connection.client)
        if kind not in self._admitted:
            if kind is not ClientKind.UNKNOWN:
                self._revoke(kind)
            raise Refused(403, _WHY_NOT[kind])
        if len(self._proven) >= PROVEN_MAX:
            raise Refused(503, "too many connections")
        task = asyncio.current_task()
        assert task is not None
        self._newcomers.remove(connection)
        self._proven[connection] = task

    def _revoke(self, kind: ClientKind) -> None:
        """Somebody else has what opens the page."""
        self._keys.revoke()
        for task in self._proven.values():
            task.cancel()
        self._on_warning(
            f"{_WHO[kind]} has shown a key of this page, and was refused. All keys have ended: use"
            " the new link, in a browser that you have started yourself"
        )
        self._offer_link()

    async def _stream(self, connection: ServerConnection) -> None:
        """Tell the page what there is, then what happens, until it goes away."""
        if self._streams >= STREAMS_MAX:
            raise Refused(503, "the page is open too often: close some of it")
        self._streams += 1
        gone = asyncio.ensure_future(connection.wait_for_hangup())
        told = asyncio.ensure_future(self._tell(connection))
        both: set[asyncio.Future[None]] = {gone, told}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams -= 1
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        if told.done() and not told.cancelled() and (error := told.exception()) is not None:
            raise error
        raise ConnectionResetError("the page has gone")

    async def _tell(self, connection: ServerConnection) -> None:
        async with contextlib.aclosing(self._data.follow(TOGETHER, ALIVE_AFTER)) as events:
            event = await anext(events)  # what stands in the way is an answer of its own
            await connection.begin_answer(_STREAM)
            try:
                while True:
                    # A browser that does not read holds up its own stream alone; of what waits for
                    # it the oldest is dropped, and it is told so.
                    async with asyncio.timeout(WORK_DEADLINE):
                        await connection.continue_answer(_event(event))
                    event = await anext(events)
            except RelayError as error:
                raise ConnectionResetError(error.message) from error  # the page asks again


_WHO = {ClientKind.AGENT: "An agent", ClientKind.STRANGER: "Another user of this machine"}
_WHY_NOT = {
    ClientKind.AGENT: "this browser was started by an agent: open the link in one of your own",
    ClientKind.STRANGER: "this page is for the user who has started relay web",
    ClientKind.UNKNOWN: "relay cannot tell who is connected. For clients through a tunnel (ssh -L)"
    " or in a container, start relay web with --allow-tunnel",
}


def content_policy(page: str) -> str:
    """The Content-Security-Policy of ``page``: its own script and style, and nothing else. No text
    becomes markup, and it is in no frame."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_inline(page, 'script')}'",
            f"style-src '{_inline(page, 'style')}'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _inline(page: str, tag: str) -> str:
    """The hash of the only element ``tag`` of the page."""
    (text,) = (part.split(f"</{tag}>", 1)[0] for part in page.split(f"<{tag}>")[1:])
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _fields(request: HttpRequest) -> Json:
    """The object in a request's body. Raises Refused."""
    try:
        fields = json.loads(request.body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise Refused(400, "the body must be a JSON object")
    return fields


def _encoded(record: Json) -> bytes:
    """A record as the page may show it: nothing in it is hidden, or turns what stands beside it."""
    return json.dumps(_shown(record)).encode()


def _event(record: Json) -> bytes:
    return b"data: " + _encoded(record) + b"\n\n"


def _shown(value: object) -> object:
    if isinstance(value, str):
        return "\n".join("\t".join(map(cells, line.split("\t"))) for line in value.split("\n"))
    if isinstance(value, dict):
        return {_shown(str(name)): _shown(one) for name, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, list | tuple) else value


def _error(reason: str) -> bytes:
    return _encoded({"error": {"code": "refused", "message": reason, "hint": ""}})
