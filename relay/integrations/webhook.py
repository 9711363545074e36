"""A channel for webhooks: what is posted to a local address becomes an event.

In ``relay.config.py``::

    from pathlib import Path

    from relay import Relay
    from relay.integrations import webhook

    relay = Relay()
    webhook.use(relay, port=8787, tokens={"stripe": Path("~/.config/relay/stripe.token")})

``POST http://127.0.0.1:8787/stripe`` with ``Authorization: Bearer TOKEN`` is answered with 202 and
{"id", "duplicate"} once the event is on the disk. The event's channel is ``webhook``, its sender
``stripe``, its content the body. Whoever can post may be anybody on this machine, a web page in a
browser too, and what is posted anything: see docs/security.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import re
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from relay.core import http
from relay.core.dispatch import read_event
from relay.core.errors import NotDelivered, RelayError, UsageError
from relay.core.files import read_file
from relay.core.http import HttpRequest, Refused, ServerConnection

if TYPE_CHECKING:
    from relay.app.relay import Relay
    from relay.core.dispatch import AnswerContext
    from relay.hooks.hook_types import ChannelInlet

#: The channel of its events.
CHANNEL = "webhook"
#: Bytes of a body: what an event's content may have.
BODY_MAX = 1024 * 1024
#: Seconds for one request, for a client that is silent, and for a callback to answer.
REQUEST_DEADLINE, IDLE_DEADLINE, CALLBACK_DEADLINE = 10.0, 15.0, 30.0
#: Connections at a time; a further one takes the place of the oldest without a token.
CONNECTIONS_MAX = 64
#: Characters of a token, and bytes of a file of one.
TOKEN_MIN, TOKEN_FILE_MAX = 16, 4096
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_LOCAL = ("127.0.0.1", "localhost", "[::1]")
#: Headers in which senders number what they send; the same number again is the same event.
_IDS = ("idempotency-key", "webhook-id", "x-github-delivery", "x-request-id")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WebhookRequest:
    """What was posted: ``name`` of the path, headers by lower-case names, the body."""

    name: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's JSON. Raises ValueError."""
        try:
            return json.loads(self.body)
        except RecursionError as error:
            raise ValueError("it is nested too deep") from error


#: Makes an event of a request; None: there is nothing to store.
Read = Callable[[WebhookRequest], Mapping[str, Any] | None]


def use(
    relay: Relay,
    *,
    port: int,
    tokens: Mapping[str, str | os.PathLike[str]],
    read: Read | None = None,
    callbacks: Mapping[str, str] | None = None,
    hosts: Collection[str] = (),
) -> None:
    """Register the channel: each sender by name, with the token that it shows, or the file of it.

    ``read`` makes the event, where the body as its content is not enough. ``callbacks`` are
    addresses, by sender's name, to which answers are posted as JSON. ``hosts``: names under which
    a tunnel passes requests on, beside this machine's own. Raises UsageError.
    """
    hook = _Webhook(dict(tokens), read or as_event, dict(callbacks or {}), (*_LOCAL, *hosts))

    async def events(inlet: ChannelInlet) -> None:
        with socket.create_server(("127.0.0.1", port)) as listener:
            await hook.serve(listener, inlet)

    relay.adapter(CHANNEL)(events)
    relay.adapter(CHANNEL).send(hook.send)


def as_event(request: WebhookRequest) -> Json:
    """The event of a request, as it is where nobody says otherwise."""
    try:
        content = request.body.decode()
    except UnicodeDecodeError:
        raise Refused(415, "the body is not text") from None
    return {"content": content}


class _Webhook:
    """Answers requests, each from a sender that shows its token."""

    def __init__(
        self,
        tokens: dict[str, str | os.PathLike[str]],
        read: Read,
        callbacks: dict[str, str],
        hosts: Collection[str],
    ) -> None:
        self._given = tokens
        for name in tokens:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise UsageError(f"{name!r} cannot be a webhook's sender", hint="a-z, 0-9, _ -")
            if isinstance(tokens[name], str):
                self._token(name)
        self._tokens: dict[str, bytes] = {}
        self._read = read
        self._callbacks = callbacks
        self._hosts = frozenset(one.lower().encode() for one in hosts)
        #: The connections, the oldest first, and whether they have shown a token.
        self._connections: dict[ServerConnection, bool] = {}

    async def serve(self, listener: socket.socket, inlet: ChannelInlet) -> None:
        """Serve until this is cancelled. Raises UsageError for a token that is none."""
        self._tokens = {name: _digest(self._token(name).encode()) for name in self._given}
        server = await asyncio.start_server(partial(self._connected, inlet), sock=listener)
        async with server:
            await server.serve_forever()

    def _token(self, name: str) -> str:
        """The token of a sender."""
        given = self._given[name]
        token = given if isinstance(given, str) else _read_token(os.path.expanduser(given))
        if len(token) < TOKEN_MIN:
            raise UsageError(
                f"the token of the webhook {name} has fewer than {TOKEN_MIN} characters",
                hint="openssl rand -hex 32 makes one",
            )
        return token

    async def _connected(
        self, inlet: ChannelInlet, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        connection = ServerConnection(reader, writer)
        self._make_room()
        self._connections[connection] = False
        try:
            with contextlib.suppress(OSError, TimeoutError):
                while await connection.wait_for_request(IDLE_DEADLINE):
                    async with asyncio.timeout(REQUEST_DEADLINE):
                        await self._serve_request(connection, inlet)
                    if not await connection.start_next():
                        break
        finally:
            self._connections.pop(connection, None)
            await connection.close()

    def _make_room(self) -> None:
        """Who only connects, or sends slowly, keeps nobody out who has a token."""
        if len(self._connections) < CONNECTIONS_MAX:
            return
        strangers = (one for one, shown in self._connections.items() if not shown)
        oldest = next(strangers, next(iter(self._connections)))
        del self._connections[oldest]
        oldest.abort()

    async def _serve_request(self, connection: ServerConnection, inlet: ChannelInlet) -> None:
        try:
            admit = partial(self._admit, connection)
            request = await connection.request(BODY_MAX, admit)
            status, answer = await self._store(_name(request), request, inlet)
        except Refused as refused:
            status, answer = refused.status, {"error": refused.reason}
        await connection.answer(status, json.dumps(answer).encode())

    def _admit(self, connection: ServerConnection, begun: HttpRequest) -> None:
        """Raises Refused for what no sender of ours has sent, before its body is read."""
        headers = begun.headers
        host, _, _ = headers.get(b"host", b"").lower().rpartition(b":")
        if headers.get(b"host", b"").lower() not in self._hosts and host not in self._hosts:
            # A web page whose name was made to lead here: it may read what it is answered.
            raise Refused(421, "this address is served under this machine's own names")
        if b"origin" in headers or headers.get(b"sec-fetch-site", b"none") != b"none":
            raise Refused(403, "web pages may not post here")
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        # Of a name that nobody has as well: how long it takes tells nothing.
        known = self._tokens.get(_name(begun), bytes(32))
        right = hmac.compare_digest(_digest(token.strip()), known)
        if kind.lower() != b"bearer" or not right:
            raise Refused(401, "no sender of this name has this token")
        if begun.method != b"POST":
            raise Refused(405, "only POST is served")
        if connection in self._connections:
            self._connections[connection] = True

    async def _store(
        self, name: str, request: HttpRequest, inlet: ChannelInlet
    ) -> tuple[int, Json]:
        headers = {
            key.decode("latin-1"): value.decode("latin-1")
            for key, value in request.headers.items()
            if key != b"authorization"
        }
        try:
            read = await asyncio.to_thread(self._read, WebhookRequest(name, headers, request.body))
            if read is None:
                return 202, {"id": None, "duplicate": False}
            # Which of the senders it was is said by the token, not by what was posted.
            event: Json = {"sender": name, "sender_type": "webhook", **read_event(read)}
            event["account"] = name
            own = (headers[one] for one in _IDS if one in headers)
            numbers = (event.pop("source_id", None), event.pop("id", None), *own)
            number = next((one for one in numbers if one not in (None, "")), None)
            if number is not None:
                event["source_id"] = f"{name}:{number}"  # a sender's numbers are its own
            return 202, await inlet.put(event)
        except Refused:
            raise
        except (UsageError, ValueError, KeyError, TypeError) as error:
            raise Refused(400, f"it makes no event: {error}"[:300]) from None
        except RelayError as error:
            raise Refused(503, error.message) from None

    async def send(self, context: AnswerContext, text: str) -> None:
        """Post an answer to the sender's callback."""
        name = context.account or ""
        url = self._callbacks.get(name)
        if url is None:
            raise NotDelivered(f"the webhook {name} has no callback for answers")
        answer = {
            "id": context.id,
            "attempt": context.attempt,
            "text": text,
            "persona": context.persona,
            "reply_to": context.reply_to,
            "thread": context.thread,
            "to": context.to,
        }
        headers = [("Authorization", f"Bearer {self._token(name)}")]
        body = json.dumps(answer).encode()
        response = await http.request("POST", url, headers, body, timeout=CALLBACK_DEADLINE)
        if not 200 <= response.status < 300:
            raise RelayError(f"the callback answered with status {response.status}")


def _name(request: HttpRequest) -> str:
    return request.target.partition(b"?")[0].removeprefix(b"/").decode("latin-1")


def _read_token(path: str) -> str:
    try:
        return read_file(path, TOKEN_FILE_MAX).decode().strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"the token in {path} cannot be read: {error}") from error


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
