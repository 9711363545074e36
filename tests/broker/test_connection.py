"""What the broker's side of a connection does before there are requests."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from relay.broker.connection import Connection
from relay.broker.protocol import decode


def first_words(**broker: Any) -> bytes:
    """All that a client gets from a broker that takes no requests."""

    async def talk() -> bytes:
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        gone = asyncio.Event()
        stub: Any = SimpleNamespace(disconnected=lambda _: gone.set(), **broker)
        await loop.connect_accepted_socket(partial(Connection, stub), far)
        async with asyncio.timeout(20):
            await gone.wait()
        with near:
            return near.recv(4096)

    return asyncio.run(talk())


@pytest.fixture
def stopped() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def test_a_broker_that_is_full_says_so() -> None:
    answer = decode(first_words(stopped=asyncio.Event(), has_room=lambda: False))
    assert answer["error"]["code"] == "busy"


def test_a_broker_that_ends_closes_without_a_word(stopped: asyncio.Event) -> None:
    assert first_words(stopped=stopped, has_room=lambda: True) == b""
