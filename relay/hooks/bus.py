"""The message bus of one process: channels, to which anybody may publish and subscribe.

It belongs to one event loop (or to one thread without a loop). Subscribers are plain functions
that are called at once, in the order in which they subscribed, and hand longer work over to a
task of their own. What one of them raises reaches neither the publisher nor the others.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from relay.core.errors import RelayError, Timeout, UsageError

#: Requests of one bus that may wait for their responses at once; a further one is refused.
REQUESTS_MAX = 1024

Subscriber = Callable[[Any], object]
#: Told of every failure: the channel, and what the subscriber raised.
Report = Callable[[str, Exception], object]


class BusError(RelayError):
    """A request that the bus cannot make."""

    code = "bus"


@dataclass(eq=False, slots=True)
class Subscription:
    """A handle. Once ``unsubscribe`` has returned, the subscriber is not called again."""

    bus: MessageBus
    channel: str
    subscriber: Subscriber
    active: bool = field(default=True)

    def unsubscribe(self) -> None:
        """End it; a second time does nothing."""
        if self.active:
            self.active = False
            self.bus._forget(self)


class MessageBus:
    """Channels by name. ``report`` hears of subscribers that fail, and may fail itself."""

    def __init__(self, report: Report | None = None) -> None:
        self._report = report or (lambda _channel, _error: None)
        self._subscriptions: dict[str, tuple[Subscription, ...]] = {}
        self._waiting: dict[tuple[str, str], asyncio.Future[Any]] = {}

    def subscribe(self, channel: str, subscriber: Subscriber) -> Subscription:
        """Call ``subscriber(message)`` for every message that is published from now on.

        Raises UsageError for an async function: nobody would await it.
        """
        if inspect.iscoroutinefunction(subscriber):
            raise UsageError(
                f"a subscriber of {channel} cannot be async",
                hint="give a plain function that starts a task",
            )
        subscription = Subscription(self, channel, subscriber)
        self._subscriptions[channel] = (*self._subscriptions.get(channel, ()), subscription)
        return subscription

    def publish(self, channel: str, message: Any) -> int:
        """Give ``message`` to everybody on ``channel``. Returns how many took it; never raises.

        All of them get the same object: who wants to change it makes a copy.
        """
        taken = 0
        for subscription in self._subscriptions.get(channel, ()):
            if subscription.active:  # an earlier one may have ended it just now
                taken += self._deliver(subscription, message)
        if not self._waiting:
            return taken
        waiter = self._waiting.pop((channel, correlation_id(message)), None)
        if waiter is not None and not waiter.done():
            waiter.set_result(message)
        return taken

    async def request(
        self, channel: str, message: Mapping[str, Any], timeout: float, *, replies: str = ""
    ) -> Any:
        """Publish ``message`` and return the response with the same correlation id.

        An id is made where ``message`` has none. The response is awaited on the channel
        ``replies``; by default ``X_RESPONSE`` for ``X_REQUEST``. Raises errors.Timeout after
        ``timeout`` seconds, and BusError at once when nobody listens, too many requests wait or
        one with the same id does.
        """
        replies = replies or channel.removesuffix("_REQUEST") + "_RESPONSE"
        identifier = correlation_id(message)
        if not identifier:
            identifier = str(uuid.uuid4())
            message = {**message, "correlation_id": identifier}
        key = (replies, identifier)
        self._check(channel, key)
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[key] = waiter
        try:
            self.publish(channel, message)
            async with asyncio.timeout(timeout):
                return await waiter
        except TimeoutError:
            raise Timeout(f"no response on {replies} within {timeout:g} s") from None
        finally:
            if self._waiting.get(key) is waiter:
                del self._waiting[key]

    def subscribers(self, channel: str) -> int:
        """How many listen on ``channel``."""
        return len(self._subscriptions.get(channel, ()))

    def _check(self, channel: str, key: tuple[str, str]) -> None:
        if not self.subscribers(channel):
            raise BusError(f"nobody listens on {channel}")
        if key in self._waiting:
            raise BusError(f"a request with the id {key[1]} already waits for its response")
        if len(self._waiting) >= REQUESTS_MAX:
            raise BusError(f"{REQUESTS_MAX} requests already wait for their responses")

    def _deliver(self, subscription: Subscription, message: Any) -> bool:
        try:
            answer = subscription.subscriber(message)
            if inspect.iscoroutine(answer):
                answer.close()
                raise TypeError("a subscriber returned a coroutine, which nobody awaits")
        except Exception as error:
            try:
                self._report(subscription.channel, error)
            except Exception:
                return False  # there is nobody left to tell
            return False
        return True

    def _forget(self, subscription: Subscription) -> None:
        channel = subscription.channel
        rest = tuple(one for one in self._subscriptions.get(channel, ()) if one is not subscription)
        if rest:
            self._subscriptions[channel] = rest
        else:
            self._subscriptions.pop(channel, None)


def correlation_id(message: object) -> str:
    """The id that ``message`` names, in either spelling; "" where it has none."""
    if isinstance(message, Mapping):
        for key in ("correlation_id", "correlationId"):
            value = message.get(key)
            if isinstance(value, str) and value:
                return value
    return ""
