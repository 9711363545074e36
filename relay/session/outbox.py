"""What the agent says to others: sent once, accounted for, and explained when it cannot be sent.

Every outgoing request has an id of its own before it leaves, is kept until the broker has it on
the disk, and is part of the checkpoint: a session that is killed sends it again under the same id.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any

from relay.core.errors import BrokerUnavailable, RelayError, StorageError, Timeout

#: Messages, and bytes of their texts, that wait for the broker. Beyond it what the agent says is
#: refused, and it is told: so much fits into a checkpoint.
PENDING_MAX = 10_000
PENDING_BYTES_MAX = 8 * 1024 * 1024
#: So many notices more have room, so that the agent can be told of the refusal.
NOTICES_MAX = 100
#: Requests under way at a time: what does not wait in the client cannot overtake there.
WINDOW = 256
#: With so many waiting the agent is slowed down while the broker makes progress.
BUSY_AT = 500
BUSY_BYTES_AT = 1024 * 1024
#: Between tries while the broker is away or cannot store.
RETRY_SECONDS = 1.0
#: Names of which the agent has been told that they get nothing for now.
TOLD_MAX = 1000

Request = Callable[..., Awaitable[dict[str, Any]]]


class Sender:
    """Outgoing messages of one agent.

    ``notify(text)`` explains to the agent what went wrong, ``note(text)`` is for the person.
    """

    def __init__(
        self,
        request: Request,
        notify: Callable[[str], None],
        note: Callable[[str], None],
        spawn: Callable[[Awaitable[None]], None],
    ) -> None:
        self._request = request
        self._notify = notify
        self._note = note
        self._spawn = spawn
        self._pending: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._done: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._queue: deque[str] = deque()  # ids that are not under way, in the order said
        self._under_way = 0
        self._returned: set[str] = set()  # ids that the broker could not take
        self._bytes = 0
        self._told: set[tuple[str, bool]] = set()  # (who gets nothing for now, is it parked?)
        self.on_room: Callable[[], None] = lambda: None  # called when it is no longer busy

    @property
    def busy(self) -> bool:
        """Whether so much waits that no more should be heard for the moment."""
        return len(self._pending) >= BUSY_AT or self._bytes >= BUSY_BYTES_AT

    def send(self, fields: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """Send a message (the fields of the broker's ``send``, with ``id``), in order.

        The future ends with the broker's answer or a RelayError.
        """
        if (known := self._done.get(fields["id"])) is not None:
            return known  # heard again while it waits
        done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        notice = bool(fields.get("notice"))
        size = _size(fields)
        room = NOTICES_MAX if notice else 0
        full = len(self._pending) >= PENDING_MAX + room
        if full or self._bytes + size > PENDING_BYTES_MAX + room * 1024:
            error = RelayError(
                "the broker cannot be reached and too many messages wait for it already",
                hint="run `relay doctor`",
            )
            done.set_exception(error)
            if notice:
                # Explaining that would be another notice.
                self._note(f"the agent could not be told something: {error.message}")
            else:
                self.explain(error)
            return done
        identifier = fields["id"]
        self._pending[identifier] = fields
        self._done[identifier] = done
        self._bytes += size
        self._queue.append(identifier)
        self._fill()
        return done

    def state(self) -> list[dict[str, Any]]:
        """What the broker has not confirmed yet, for the checkpoint."""
        return list(self._pending.values())

    def restore(self, pending: list[dict[str, Any]]) -> None:
        """Send again what an earlier session could not see confirmed."""
        for fields in pending:
            self.send(fields)

    async def settle(self, deadline: float) -> bool:
        """Wait up to ``deadline`` seconds until nothing is pending."""
        end = asyncio.get_running_loop().time() + deadline
        while self._pending and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.01)
        return not self._pending

    def person(self) -> None:
        """The person has spoken to the agent: what it was told before may be told again."""
        self._told.clear()

    def explain(self, error: RelayError) -> None:
        """Tell the agent that something it said was not sent, and why."""
        self._notify(f"not sent: {error.line}")

    def _fill(self) -> None:
        """Start as many requests as may be under way, unless some must be asked again first."""
        while self._queue and self._under_way < WINDOW and not self._returned:
            self._under_way += 1
            self._spawn(self._ask(self._pending[self._queue.popleft()]))

    async def _ask(self, fields: dict[str, Any]) -> None:
        try:
            answer = await self._request("send", **fields)
        except (BrokerUnavailable, Timeout, StorageError) as error:
            # Not refused, only not accepted yet: it stays pending and keeps its id.
            self._note(f"a message waits: {error.message}")
            self._returned.add(fields["id"])
        except RelayError as error:
            self._refused(fields, error)
        else:
            self._accepted(fields, answer)
        finally:
            self._under_way -= 1
        if self._returned and not self._under_way:
            # Once nothing is under way, all that came back goes again in the order it was said.
            await asyncio.sleep(RETRY_SECONDS)
            self._queue.extendleft(i for i in reversed(self._pending) if i in self._returned)
            self._returned.clear()
        self._fill()

    def _refused(self, fields: dict[str, Any], error: RelayError) -> None:
        done = self._forget(fields)
        if not done.done():
            done.set_exception(error)
        if fields.get("notice"):
            self._note(f"the agent could not be told something: {error.message}")
        else:
            self.explain(error)

    def _accepted(self, fields: dict[str, Any], answer: dict[str, Any]) -> None:
        done = self._forget(fields)
        if not done.done():
            done.set_result(answer)
        if not fields.get("notice"):
            self._report_unknown(answer)

    def _forget(self, fields: dict[str, Any]) -> asyncio.Future[dict[str, Any]]:
        """It is no longer pending; returns the future of whoever waits for it."""
        was_busy = self.busy
        del self._pending[fields["id"]]
        self._bytes -= _size(fields)
        if was_busy and not self.busy:
            self.on_room()
        return self._done.pop(fields["id"])

    def _report_unknown(self, answer: dict[str, Any]) -> None:
        """Nobody has this name, or nobody is there at all: the agent should know.

        Once is enough where it stays so: to each notice the agent may say the next thing, and the
        two could go on all night.
        """
        if answer.get("duplicate"):
            return
        deliveries = answer.get("deliveries", ())
        for delivery in deliveries:
            if delivery["state"] == "failed":
                self._notify(f"not delivered to {delivery['to']}: {delivery.get('reason', '')}")
        parked = [one for one in deliveries if one.get("parked") and self._is_news(one)]
        if parked:
            names = ", ".join(delivery["to"] for delivery in parked)
            self._notify(
                f"the message to {names} is held until the person lets it go on:"
                f" {parked[0]['reason']}. Do not send it again, and finish your turn"
            )
        unknown = [
            delivery["to"]
            for delivery in deliveries
            if not delivery.get("parked") and self._is_news(delivery)
        ]
        if not unknown:
            return
        text = f"nobody is called {', '.join(unknown)} yet."
        if guesses := answer.get("did_you_mean"):
            text += f" Did you mean {' or '.join(guesses)}?"
        text += f" Here now: {', '.join(answer.get('present') or ()) or 'nobody else'}."
        self._notify(f"{text} The message is kept for seven days, in case that name comes")

    def _is_news(self, delivery: dict[str, Any]) -> bool:
        """Whether this one is held, and the agent does not know yet that what goes there is."""
        name, parked = delivery["to"].lower(), bool(delivery.get("parked"))
        if delivery["state"] != "held":
            self._told -= {(name, True), (name, False)}
            return False
        if (name, parked) in self._told:
            return False
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told.add((name, parked))
        return True


def _size(fields: dict[str, Any]) -> int:
    """Bytes of the text as the checkpoint holds it."""
    body: str = fields["body"]
    return len(body) if body.isascii() else len(body.encode("utf-8", "surrogatepass"))
