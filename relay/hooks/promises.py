"""Waiting for what a context's action will answer: in a sync handler, or in an async one."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from relay.core.errors import Timeout, UsageError

T = TypeVar("T")

#: How long a sync handler waits when it does not say, in seconds.
WAIT_DEFAULT = 10.0


def wait(future: Future[T], timeout: float) -> T:
    """What ``future`` ends with. ``timeout`` in seconds; then errors.Timeout."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        if not future.done():
            # Waiting here would stop the very loop that runs every async handler.
            raise UsageError("this would block an async handler", hint="use await")
    try:
        return future.result(timeout)
    except FutureTimeout:
        raise Timeout(f"no answer within {timeout:g} s") from None


def awaitable(future: Future[T]) -> Generator[Any, None, T]:
    """The same for ``await``."""
    # Shielded: a handler that is cancelled while it waits does not cancel what it has sent.
    return (yield from asyncio.shield(asyncio.wrap_future(future)).__await__())
