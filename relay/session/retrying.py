"""Asking the broker until it has an answer: what it cannot take now must not get lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from relay.core.errors import BrokerUnavailable, RelayError, StorageError, Timeout

T = TypeVar("T")

#: Not refused, only not accepted yet: the same request may be accepted later.
NOT_NOW: tuple[type[RelayError], ...] = (BrokerUnavailable, Timeout, StorageError)
#: Between tries while the broker is away or cannot store.
RETRY_SECONDS = 1.0


async def until_answered(ask: Callable[[], Awaitable[T]], waits: Callable[[RelayError], None]) -> T:
    """What ``ask`` returns, asked again for as long as the broker is away or cannot store.

    ``waits(error)`` is called after each try that has to be repeated. Raises what the broker
    refuses for good.
    """
    while True:
        try:
            return await ask()
        except NOT_NOW as error:
            waits(error)
            await asyncio.sleep(RETRY_SECONDS)
