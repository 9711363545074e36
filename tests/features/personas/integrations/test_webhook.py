"""The channel for webhooks: what is posted by those who may, and by those who may not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relay import Relay
from relay.core.dispatch import AnswerContext, DeliveryContext
from relay.core.errors import NotDelivered, RelayError, UsageError
from relay.core.http import request
from relay.integrations import webhook

Json = dict[str, Any]
TOKEN, OTHER = "t" * 32, "o" * 32
EVENT = b'{"type": "charge", "amount": 120}'


class Inlet:
    """Stores events as the broker does: by their source ids."""

    def __init__(self) -> None:
        self.events: list[Json] = []
        self.fails: RelayError | None = None

    async def put(self, event: Json) -> Json:
        if self.fails is not None:
            raise self.fails
        known = [one.get("source_id") for one in self.events]
        duplicate = event.get("source_id") is not None and event["source_id"] in known
        if not duplicate:
            self.events.append(event)
        return {"id": "01ID", "duplicate": duplicate}


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[int, Inlet]]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    relay = Relay()
    webhook.use(relay, port=port, tokens={"stripe": TOKEN, "git": OTHER}, **options)
    [adapter] = relay.registry.channel_adapters()
    inlet = Inlet()
    events: Callable[[Inlet], Coroutine[Any, Any, None]] = adapter.events  # type: ignore[assignment]
    task = asyncio.ensure_future(events(inlet))
    try:
        async with asyncio.timeout(20):
            while not await _listens(port):
                assert not task.done(), task.exception()
        yield port, inlet
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def post(
    port: int, path: str = "stripe", body: bytes = EVENT, headers: dict[str, str] | None = None
) -> tuple[int, Json]:
    named = {"authorization": f"Bearer {TOKEN}", **(headers or {})}
    method = named.pop("method", "POST")
    url = f"http://127.0.0.1:{port}/{path}"
    answer = await request(method, url, list(named.items()), body, timeout=20)
    return answer.status, json.loads(answer.body)


async def test_what_is_posted_is_an_event_once_it_is_stored() -> None:
    async with served() as (port, inlet):
        assert await post(port) == (202, {"id": "01ID", "duplicate": False})
        [event] = inlet.events
        assert event == {
            "sender": "stripe",
            "sender_type": "webhook",
            "account": "stripe",
            "content": EVENT.decode(),
        }
        # Its sender's own number is the event's; another sender may have the same one.
        for path, token, duplicate in (
            ("stripe", TOKEN, False),
            ("stripe", TOKEN, True),
            ("git", OTHER, False),
        ):
            key = {"idempotency-key": "n-1", "authorization": f"Bearer {token}"}
            assert (await post(port, path, headers=key))[1]["duplicate"] is duplicate
        inlet.fails = RelayError("the ledger's disk is full", code="storage")
        assert await post(port) == (503, {"error": "the ledger's disk is full"})


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("stripe", {"authorization": "Bearer " + "x" * 32}, 401),
        ("stripe", {"authorization": f"Bearer {OTHER}"}, 401),
        ("stripe", {"authorization": "Bearer"}, 401),
        ("stripe", {"authorization": f"Basic {TOKEN}"}, 401),
        ("nobody", {}, 401),
        ("", {}, 401),
        ("stripe/../git", {}, 401),
        ("stripe", {"method": "GET"}, 405),
        ("stripe", {"method": "OPTIONS", "authorization": ""}, 401),
        ("stripe", {"host": "evil.example"}, 421),
        ("stripe", {"host": "127.0.0.1.evil.example:80"}, 421),
        ("stripe", {"origin": "https://evil.example"}, 403),
        ("stripe", {"origin": "null"}, 403),
        ("stripe", {"sec-fetch-site": "same-origin"}, 403),
        ("stripe", {"body": "x" * (1024 * 1024 + 1)}, 413),
        ("stripe", {"body": "\udcff"}, 415),
    ],
    ids=(
        *("wrong", "others", "empty", "basic", "nobody", "none", "dots", "get", "preflight"),
        *("rebound", "suffix", "page", "file", "fetched", "large", "binary"),
    ),
)  # fmt: skip
async def test_what_may_not_come_in_does_not(
    path: str, headers: dict[str, str], status: int
) -> None:
    async with served() as (port, inlet):
        given = dict(headers)
        body = given.pop("body", EVENT.decode()).encode(errors="surrogateescape")
        found, answer = await post(port, path, body, given)
        assert (found, inlet.events) == (status, [])
        assert "access" not in json.dumps(answer)
        assert (await post(port))[0] == 202  # and the next one is served


async def test_one_answer_for_every_wrong_token() -> None:
    """Nothing tells who has a token from who has none."""

    async with served() as (port, _):
        wrong = {"authorization": "Bearer nope"}
        answers = [await post(port, path, headers=wrong) for path in ("stripe", "git", "nobody")]
        assert len({json.dumps(one) for one in answers}) == 1


async def test_who_only_connects_or_is_slow_keeps_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhook, "CONNECTIONS_MAX", 4)

    async with served() as (port, inlet):
        head = b"POST /stripe HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
        for _, writer in slow:
            writer.write(head)
        assert (await post(port))[0] == 202
        # Of the slow ones at most as many are there as there is room.
        async with asyncio.timeout(20):
            for reader, _ in slow[:8]:
                with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                    assert await reader.readexactly(1)
        for _, writer in slow:
            writer.close()
        assert len(inlet.events) == 1


async def test_a_request_that_takes_too_long_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "REQUEST_DEADLINE", 0.1)

    async with served() as (port, inlet):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /stripe HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        writer.write(head.encode() + b"Content-Length: 100\r\n\r\n{")
        async with asyncio.timeout(20):
            assert b"202" not in await reader.read()
        writer.close()
        assert inlet.events == []


async def test_a_function_of_yours_reads_what_is_posted() -> None:
    def read(asked: webhook.WebhookRequest) -> Json | None:
        said = asked.json()
        if said["type"] == "ping":
            return None
        return {
            "kind": said["type"],
            "source_id": said["id"],
            "content": f"a charge of {said['amount']}",
            "account": "somebody else's",
            "metadata": {"signed": asked.headers.get("x-signature")},
        }

    async with served(read=read, hosts=["hooks.example.org"]) as (port, inlet):
        charge = {"type": "charge", "id": 7, "amount": 120}
        tunnel = {"host": "hooks.example.org", "x-signature": "s"}
        assert (await post(port, body=json.dumps(charge).encode(), headers=tunnel))[0] == 202
        assert (await post(port, body=b'{"type": "ping"}'))[1]["id"] is None
        for bad in (b"[" * 100_000, b"{}", b'{"type": 1'):
            assert (await post(port, body=bad))[0] == 400
        inlet.fails = UsageError("sender_type cannot be 'owner'")
        assert (await post(port, body=json.dumps(charge).encode()))[0] == 400
        [event] = inlet.events
        assert (event["account"], event["source_id"]) == ("stripe", "stripe:7")
        assert event["metadata"] == {"signed": "s"}


@pytest.mark.parametrize("key", ["source_id", "sourceId", "id"])
async def test_a_senders_numbers_are_its_own_however_they_are_read(key: str) -> None:
    async with served(read=lambda asked: {key: 7, "from": "ann"}) as (port, inlet):
        assert (await post(port))[0] == 202
        other = {"authorization": f"Bearer {OTHER}"}
        assert (await post(port, "git", headers=other))[1]["duplicate"] is False
        found = [(one["source_id"], one["sender"]) for one in inlet.events]
        assert found == [("stripe:7", "ann"), ("git:7", "ann")]
        assert all("id" not in one for one in inlet.events)


async def test_answers_are_posted_back(tmp_path: Path) -> None:
    """To a callback, which is another such server here."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")

    async with served() as (port, inlet):
        relay = Relay()
        webhook.use(
            relay,
            port=1,
            tokens={"stripe": file, "git": OTHER},
            callbacks={"stripe": f"http://127.0.0.1:{port}/stripe", "git": "http://127.0.0.1:1/"},
        )
        [adapter] = relay.registry.channel_adapters()
        send: Any = adapter.send

        def context(name: str) -> AnswerContext:
            at = DeliveryContext("webhook", name, reply_to="stripe:7")
            return AnswerContext(
                at.channel, at.account, reply_to=at.reply_to, to="x", persona="atlas", id="01A"
            )

        await send(context("stripe"), "refunded")
        said = json.loads(inlet.events[0]["content"])
        assert (said["text"], said["reply_to"], said["attempt"]) == ("refunded", "stripe:7", 0)
        with pytest.raises(RelayError, match="cannot be reached"):
            await send(context("git"), "x")
        with pytest.raises(NotDelivered, match="no callback"):
            await send(context("unknown"), "x")
        inlet.fails = RelayError("not now")
        with pytest.raises(RelayError, match="status 503"):
            await send(context("stripe"), "x")


@pytest.mark.parametrize(
    ("tokens", "said"),
    [({"a b": TOKEN}, "cannot be a webhook's sender"), ({"x": "short"}, "fewer than 16")],
    ids=("name", "short"),
)
def test_a_token_that_is_none_is_refused(tokens: dict[str, str], said: str) -> None:
    relay = Relay()
    with pytest.raises(UsageError, match=said):
        webhook.use(relay, port=1, tokens=tokens)
