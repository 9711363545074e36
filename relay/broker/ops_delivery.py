"""How deliveries come to their end: the ``state`` and ``wait`` ops, and what expires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from relay.broker.batch import Batch, Handler
from relay.broker.delivery_states import HELD_FOR_MS, advance, expired
from relay.broker.delivery_window import Pushing
from relay.broker.directory import Member
from relay.core.errors import NotFound, UsageError
from relay.core.message import State
from relay.ledger import queries
from relay.ledger.schema import Delivery, Row
from relay.ledger.store import Ledger
from relay.protocol.broker import Json, encode

if TYPE_CHECKING:
    from relay.broker.connection import Connection

#: The longest wait that one request may ask for; a client asks again. Seconds.
WAIT_MAX = 24 * 3600.0
SWEEP_EVERY = 3600.0
_SWEEP_ROWS = 500


class _Wait:
    """One ``wait`` that has no answer yet."""

    __slots__ = ("connection", "n", "id", "timer")

    def __init__(self, connection: Connection, n: int, id_: str) -> None:
        self.connection = connection
        self.n = n
        self.id = id_
        self.timer: asyncio.TimerHandle | None = None


class Reporting:
    """Moves deliveries on and tells whoever waits for that."""

    def __init__(
        self,
        ledger: Ledger,
        pushing: Pushing,
        submit: Callable[[Handler, Connection | None, Json], None],
    ) -> None:
        self._ledger = ledger
        self._pushing = pushing
        self._submit = submit
        self._waits: dict[str, list[_Wait]] = {}
        #: Told how far a delivery got; see relay.broker.ops_held.
        self.on_progress: Callable[[Member, str, str, State], None] = lambda *_: None

    # -- state

    def state(self, connection: Connection | None, request: Json, batch: Batch) -> Json:
        """The recipient's session reports how far a delivery is."""
        member = connection.member if connection is not None else None
        if member is None:
            raise UsageError("only the recipient's registered session can report a delivery")
        id_ = str(request.get("id"))
        try:
            state = State(str(request.get("state")))
        except ValueError as error:
            raise UsageError(f"there is no state {request.get('state')!r}") from error
        found = self._ledger.delivery(id_, member.name)
        if found is None:
            raise NotFound(f"no message {id_} was sent to {member.name}")
        event, sender, delivery = found
        attempt = request.get("attempt")
        new = advance(
            delivery,
            state,
            batch.now_ms,
            reason=_short(request.get("reason")),
            proof=_short(request.get("proof")),
            attempt=attempt if isinstance(attempt, int) else None,
        )
        if new is not delivery:
            self._ledger.begin()
            self._ledger.update_delivery(event, member.name, new)
            self._changed(batch, id_, sender, member.name, new)
        self.on_progress(member, sender, id_, state)
        batch.after.append(partial(self._pushing.settled, member, id_, state))
        return {"id": id_, "state": state.value, "attempts": new.attempts}

    def _changed(self, batch: Batch, id_: str, sender: str, to: str, new: Delivery) -> None:
        batch.changed.add(id_)
        push = partial(self._pushing.receipt, sender, id_, to, new.state.value, new.reason)
        batch.after.append(push)

    # -- wait

    def wait(self, connection: Connection | None, request: Json, batch: Batch) -> Json | None:
        """Answer once all deliveries of a message are final, or when the time is up."""
        id_ = str(request.get("id"))
        timeout = request.get("timeout")
        if not isinstance(timeout, (int, float)) or not 0 <= timeout <= WAIT_MAX:
            raise UsageError(f"a timeout is a number of seconds up to {WAIT_MAX:.0f}")
        deliveries = queries.deliveries(self._ledger, id_)
        if not deliveries and queries.message(self._ledger, id_) is None:
            raise NotFound(f"there is no message {id_}")
        done = _done(deliveries)
        if connection is None or done or timeout == 0:
            return {"id": id_, "done": done, "deliveries": deliveries}
        connection.defer()
        waiting = _Wait(connection, request["n"], id_)
        # At once, not after the commit: a change later in this very batch must find it.
        self._waits.setdefault(id_, []).append(waiting)
        loop = asyncio.get_running_loop()
        waiting.timer = loop.call_later(timeout, self._check, waiting.id, waiting)
        batch.on_failure.append(partial(self._forget, waiting))
        return None

    def committed(self, batch: Batch) -> None:
        """Deliveries changed: look whether that ends a wait."""
        if self._waits:
            for id_ in batch.changed:
                if id_ in self._waits:
                    self._check(id_, None)

    def gone(self, connection: Connection) -> None:
        """A client went away; nobody waits for its waits."""
        if connection.deferred:
            for group in list(self._waits.values()):
                for waiting in list(group):
                    if waiting.connection is connection:
                        self._forget(waiting)

    def forget_waits(self) -> None:
        """The broker stops: the clients ask the next one."""
        for group in list(self._waits.values()):
            for waiting in list(group):
                self._forget(waiting)

    def _check(self, id_: str, late: _Wait | None) -> None:
        self._submit(partial(self._answer, id_=id_, late=late), None, {"n": 0})

    def _answer(
        self,
        _: Connection | None,
        request: Json,
        batch: Batch,
        *,
        id_: str,
        late: _Wait | None,
    ) -> None:
        waits = list(self._waits.get(id_, ()))
        deliveries = queries.deliveries(self._ledger, id_)
        done = _done(deliveries)
        for waiting in waits:
            if done or waiting is late:
                fields = {"n": waiting.n, "ok": True, "id": id_, "done": done}
                batch.answers.append(
                    (waiting.connection, encode({**fields, "deliveries": deliveries}))
                )
                batch.after.append(partial(self._forget, waiting))

    def _forget(self, waiting: _Wait) -> None:
        if waiting.timer is not None:
            waiting.timer.cancel()
        group = self._waits.get(waiting.id)
        if group is not None and waiting in group:
            group.remove(waiting)
            waiting.connection.undefer()
            if not group:
                del self._waits[waiting.id]

    # -- what expires

    def sweep(self, _: Connection | None, request: Json, batch: Batch) -> None:
        """Fail what was held for seven days for a name that never came, some at a time."""
        now_ms = batch.now_ms
        rows = self._ledger.held_for_nobody(now_ms - HELD_FOR_MS, _SWEEP_ROWS)
        for event, recipient, id_, sender in rows:
            found = self._ledger.delivery(id_, recipient)
            if found is None:
                continue
            new = advance(found[2], State.FAILED, now_ms, reason=expired(recipient))
            self._ledger.begin()
            self._ledger.update_delivery(event, recipient, new)
            self._changed(batch, id_, sender, recipient, new)
        if len(rows) == _SWEEP_ROWS:
            batch.after.append(partial(self._submit, self.sweep, None, {"n": 0}))


def _done(deliveries: list[Row]) -> bool:
    return all(State(row["state"]).final for row in deliveries)


def _short(value: object) -> str | None:
    return value[:1024] if isinstance(value, str) and value else None
