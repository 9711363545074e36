"""Answers to a context's actions that are still to come: sync handlers wait, async ones await."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Generic, TypeVar, overload

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


class Later(Generic[T]):
    """What will be answered: ``await`` it, or ``wait()`` for it in a sync handler."""

    def __init__(
        self, future: Future[Any], convert: Callable[[Any], T] = lambda answer: answer
    ) -> None:
        """``convert`` makes of the future's result what is answered."""
        self._future = future
        self._convert = convert

    def wait(self, timeout: float = WAIT_DEFAULT) -> T:
        """The answer. ``timeout`` in seconds; then errors.Timeout."""
        return self._convert(wait(self._future, timeout))

    def __await__(self) -> Generator[Any, None, T]:
        return self._convert((yield from awaitable(self._future)))


class LaterList(Later[list[T]], Sequence[T]):
    """A list that is on its way: a list in a sync handler, ``await`` it in an async one."""

    def __len__(self) -> int:
        return len(self.wait())

    def __iter__(self) -> Iterator[T]:
        return iter(self.wait())

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self.wait()[index]

    def __str__(self) -> str:
        return str(self.wait())
