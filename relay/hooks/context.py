"""Defines ``ctx`` for handlers: who the agent is, what was said, and what can be done.

A Context is used from any thread. Its actions never block: they hand the request over and return
an answer to come (Receipt, Later), which a sync handler may wait for, an async one may await, and
either may ignore.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, overload

from relay.core.errors import Timeout, UsageError, did_you_mean
from relay.core.features import named
from relay.core.message import BODY_MAX, MODES, Message, QueueMode
from relay.protocol.op import Op

#: How long a sync handler waits when it does not say, in seconds.
WAIT_DEFAULT = 10.0
T = TypeVar("T")
E = TypeVar("E", str, Message)
OUTPUT_ENTRIES_MAX = 1000
OUTPUT_BYTES_MAX = 1024 * 1024
MESSAGES_MAX = 1000
Agent = dict[str, Any]


class Actions(Protocol):
    """What the session does for handlers. Every method is thread-safe and returns at once.

    The futures end with the value, or with a RelayError that says why not.
    """

    def inject(self, text: str) -> tuple[str, Future[Any]]:
        """Give ``text`` to the agent. Returns the message's id; done once it is accepted."""

    def send(
        self, to: str, text: str, *, mode: QueueMode | None, thread: str | None
    ) -> tuple[str, Future[Any]]:
        """Send as this agent. Returns the message's id; done once the broker has it."""

    def notify(self, topic: str, text: str) -> tuple[str, Future[Any]]:
        """Report ``text`` under ``topic``. Returns the report's id."""

    def agents(self) -> Future[list[Agent]]:
        """The agents that the broker knows, as ``relay agents --json`` lists them."""

    def request(self, op: Op[..., Any, Any], fields: dict[str, Any]) -> Future[dict[str, Any]]:
        """Ask the broker, for what a feature adds; the future ends with the answer's fields."""

    def command(self, namespace: str, action: str, text: str) -> None:
        """Do what ``@namespace:action text`` of a feature does, and tell the agent what came of
        it."""


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


class Receipt(str):
    """The id of what was sent: a string, at once.

    ``await receipt`` (async) or ``receipt.wait()`` (sync) returns the id once the message is
    stored, and raises the RelayError when it is refused. Ignored, the refusal is in the log.
    """

    __slots__ = ("_future",)
    _future: Future[Any]

    def __new__(cls, identifier: str, future: Future[Any]) -> Receipt:
        receipt = super().__new__(cls, identifier)
        receipt._future = future
        return receipt

    @property
    def id(self) -> str:
        return str(self)

    def wait(self, timeout: float = WAIT_DEFAULT) -> str:
        """The id, once the message is stored. ``timeout`` in seconds; then errors.Timeout."""
        wait(self._future, timeout)
        return str(self)

    def __await__(self) -> Generator[Any, None, str]:
        yield from awaitable(self._future)
        return str(self)


class Recent(Generic[E]):
    """The last entries of something, bounded in number and size; thread-safe.

    When full, the oldest make room. An entry larger than the whole is not kept.
    """

    def __init__(self, max_entries: int, max_size: int) -> None:
        self._entries: deque[tuple[E, int]] = deque()
        self._max_entries = max_entries
        self._max_size = max_size
        self._size = 0
        self._lock = threading.Lock()

    def append(self, entry: E) -> None:
        text = entry if isinstance(entry, str) else entry.body
        size = _size(text)
        with self._lock:
            self._entries.append((entry, size))
            self._size += size
            while len(self._entries) > self._max_entries or self._size > self._max_size:
                self._size -= self._entries.popleft()[1]

    def snapshot(self) -> list[E]:
        """A list of what is held, oldest first; the caller's own."""
        with self._lock:
            return [entry for entry, _size in self._entries]


def recent_output() -> Recent[str]:
    """The agent's last output: at most 1000 entries and 1 MiB of UTF-8."""
    return Recent(OUTPUT_ENTRIES_MAX, OUTPUT_BYTES_MAX)


def recent_messages() -> Recent[Message]:
    """The last messages from and to the agent: at most 1000, and 8 MiB of bodies."""
    return Recent(MESSAGES_MAX, 8 * BODY_MAX)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class Identity:
    """Who runs. ``agent_id`` is stable for the name; ``session_id`` is this run's id."""

    agent_id: str
    agent_name: str
    session_id: str
    working_dir: str
    env: dict[str, str]
    task: str | None = None


class RelayService:
    """``ctx.relay``: messages to other agents."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions

    def send(
        self, to: str, text: str, *, mode: str | None = None, thread: str | None = None
    ) -> Receipt:
        """Send ``text`` to an agent's name, ``*``, or names separated by commas."""
        if not isinstance(to, str) or not to.strip():
            raise UsageError(f"a message needs a receiver's name, not {to!r}")
        chosen = None if mode is None else _mode(mode)
        identifier, future = self._actions.send(
            to.strip(), checked_body(text), mode=chosen, thread=thread
        )
        return Receipt(identifier, future)

    def broadcast(self, text: str, *, mode: str | None = None) -> Receipt:
        """Send ``text`` to everyone else."""
        return self.send("*", text, mode=mode)

    def agents(self) -> LaterList[Agent]:
        """Who is there; dicts as ``relay agents --json`` shows them."""
        return LaterList(self._actions.agents())


class Context:
    """What a handler may know and do. ``agentId`` and so on are the same as ``agent_id``.

    ``env`` is a copy: what a handler changes there changes nothing. What features add, such as
    ``memory``, is made on first use: a feature's package has ``CONTEXT = {name: (module, function
    of it)}``; the function gets the Actions.
    """

    def __init__(
        self,
        identity: Identity,
        actions: Actions,
        output: Recent[str] | None = None,
        messages: Recent[Message] | None = None,
    ) -> None:
        self.agent_id = identity.agent_id
        self.agent_name = identity.agent_name
        self.session_id = identity.session_id
        self.working_dir = identity.working_dir
        self.task = identity.task
        self.relay = RelayService(actions)
        self._env = dict(identity.env)
        self._actions = actions
        self._output = recent_output() if output is None else output
        self._messages = recent_messages() if messages is None else messages

    @property
    def env(self) -> dict[str, str]:
        """The agent's environment, as a copy."""
        return dict(self._env)

    @property
    def output(self) -> list[str]:
        """The agent's last output, oldest first: at most 1000 entries and 1 MiB."""
        return self._output.snapshot()

    @property
    def messages(self) -> list[Message]:
        """The last messages from and to this agent, oldest first: at most 1000."""
        return self._messages.snapshot()

    def inject(self, text: str) -> Receipt:
        """Give ``text`` to the agent, when it can take it."""
        return Receipt(*self._actions.inject(checked_body(text)))

    def send(
        self, to: str, text: str, *, mode: str | None = None, thread: str | None = None
    ) -> Receipt:
        """Send ``text`` as this agent; see RelayService.send."""
        return self.relay.send(to, text, mode=mode, thread=thread)

    def notify(self, topic: str, text: str) -> Receipt:
        """Report ``text`` under ``topic``."""
        if not isinstance(topic, str) or not topic.strip():
            raise UsageError(f"a notification needs a topic, not {topic!r}")
        return Receipt(*self._actions.notify(topic.strip(), checked_body(text)))

    def __getattr__(self, name: str) -> Any:
        # Only called for what is not there: the camelCase names of the design document.
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        known = sorted(n for n in (*self.__dict__, *dir(type(self))) if not n.startswith("_"))
        if snake != name and snake in known:
            return getattr(self, snake)
        if not name.startswith("_") and (make := named("CONTEXT", name)) is not None:
            self.__dict__[name] = made = make(self._actions)
            return made
        hint = "" if name.startswith("_") else did_you_mean(snake, known)
        raise AttributeError(
            f"ctx has no {name!r}: neither relay nor a feature that is installed here has it"
            + (f"; {hint}" if hint else "")
        )


def checked_body(text: object) -> str:
    """Return ``text`` if a message can have it as its body. Raises UsageError."""
    if not isinstance(text, str):
        raise UsageError(f"the text is a {type(text).__name__}", hint="give a string")
    if not text.strip():
        raise UsageError("the text is empty", hint="give at least one visible character")
    if _size(text) > BODY_MAX:
        raise UsageError(
            f"the text is longer than {BODY_MAX} bytes", hint="send the name of a file instead"
        )
    return text


def _mode(text: str) -> QueueMode:
    if text not in MODES:
        raise UsageError(f"there is no mode {text!r}", hint=did_you_mean(str(text), MODES))
    return QueueMode(text)
