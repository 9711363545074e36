"""Delivering by a message interface of the agent's own."""

from __future__ import annotations

import asyncio

from relay.session.native_channel import NativeChannel
from tests.session.test_typing_channel import NAMESPACES, message


def test_a_channel_hands_over_one_message_and_says_when_it_is_closed() -> None:
    sent: list[str] = []

    async def submit(text: str, marker: str) -> None:
        if not sent:
            sent.append(text)
        else:
            raise ConnectionRefusedError("refused")

    open_now = True
    door = NativeChannel(
        submit,
        lambda: open_now,
        lambda: NAMESPACES,
        heard=lambda marker: False,
        seen=lambda marker: False,
    )
    assert door.hold(0.0) is None
    assert asyncio.run(door.submit([message("hello")])).count == 1
    refused = asyncio.run(door.submit([message("hello")]))
    assert refused.count == 0 and refused.hold is not None
    open_now = False
    assert door.hold(0.0) is not None


def test_a_try_that_only_seemed_to_fail_is_not_repeated() -> None:
    taken: list[str] = []

    async def submit(text: str, marker: str) -> None:
        taken.append(text)
        raise TimeoutError("no answer")

    door = NativeChannel(
        submit,
        lambda: True,
        lambda: NAMESPACES,
        heard=lambda marker: any(marker in text for text in taken),
        seen=lambda marker: False,
    )
    assert asyncio.run(door.submit([message("hello")])).count == 0
    assert asyncio.run(door.submit([message("hello")])).count == 1
    assert len(taken) == 1
