"""The outbox: a message for another machine stays here until that machine's ledger has it."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import msgspec

from relay.broker.batch import Accepted, Batch
from relay.broker.delivery_states import advance
from relay.broker.parts import BrokerParts
from relay.core import json_text
from relay.core.errors import RelayError, UsageError
from relay.core.message import State
from relay.core.visible import is_visible
from relay.features.link.link_records import FarState, Receipts
from relay.features.link.wire import WINDOW, Wire

#: Messages to one machine that it has not stored, at most.
OUTBOX = 10_000
#: Seconds until a message is sent again (the pause doubles); between two questions about open
#: messages, and the longest such pause.
AGAIN, ASK = 5.0, 60.0


class FarOutbox:
    """What is on its way to other machines, and what their receipts say of it."""

    def __init__(self, parts: BrokerParts, wire: Wire) -> None:
        self._ledger = parts.kernel.ledger
        self._deliveries = parts.deliveries
        self._wire = wire
        self._more = asyncio.Event()
        #: By machine: the first and last number under way, since when the first one is, and
        #: how long until again.
        self._sent: dict[str, tuple[int, int, float, float]] = {}
        self._connection = 0  # by which that was sent
        self._asked = -ASK

    def put(self, message: Accepted, batch: Batch) -> None:
        """Keep a message that is stored for the machines that it is for."""
        names_by_machine: dict[str, list[str]] = {}
        for route in message.routing.routes if message.routing is not None else ():
            if "@" in route.to:
                name, _, machine = route.to.rpartition("@")
                names_by_machine.setdefault(machine, []).append(name)
                stored = self._ledger.delivery(message.id, route.to)
                if stored is not None and route.reason:
                    event, _, delivery = stored
                    new = advance(delivery, State.QUEUED, batch.now_ms, reason=route.reason)
                    self._ledger.update_delivery(event, route.to, new)
        for machine, names in names_by_machine.items():
            fields = {
                "id": message.id,
                "sender": message.sender,
                "to": names,
                "body": message.body,
                "mode": message.mode,
                "thread": message.thread,
                "hops": message.hops,
                "person": '"proven"' in (message.meta or ""),
            }
            self._ledger.change(
                "INSERT INTO link_outbox (machine, id, told) VALUES (?,?,?)",
                (machine, message.id, json_text.dumps(fields)),
            )
            batch.after.append(self._more.set)

    def waiting(self) -> dict[str, int]:
        """By machine, how many messages it has not stored."""
        count = "SELECT machine, count(*) FROM link_outbox WHERE stored=0 GROUP BY 1"
        return dict(self._ledger.rows(count))

    def waiting_for(self, machine: str) -> int:
        """How many messages a machine has not stored."""
        count = "SELECT count(*) FROM link_outbox WHERE machine=? AND stored=0"
        row = self._ledger.row(count, (machine,))
        return row[0] if row else 0

    def settle(self, id_: str, machine: str) -> None:
        """Forget a message once all of it is over."""
        self._ledger.change(
            "DELETE FROM link_outbox WHERE machine=? AND id=? AND NOT EXISTS (SELECT 1 FROM"
            " deliveries d JOIN events e ON e.seq = d.event WHERE e.id=? AND d.open=1"
            " AND d.recipient LIKE '%@' || ?)",
            (machine, id_, id_, machine),
        )

    def give_up(self, machine: str, batch: Batch) -> None:
        """The machine has left the link: what was for it has failed."""
        rows = self._ledger.rows("SELECT id, told FROM link_outbox WHERE machine=?", (machine,))
        for id_, fields in rows:
            for to in json_text.loads(fields)["to"]:
                state = FarState(id_, to, "failed", "it is in the link no more")
                self._move(machine, state, batch)
        self._ledger.change("DELETE FROM link_outbox WHERE machine=?", (machine,))

    # -- sending

    def wake(self) -> None:
        """A machine has come back: send, and ask how far messages are."""
        self._asked = -ASK
        self._more.set()

    async def run(self) -> None:
        """Send what is in the outbox, and again what another machine does not store; for ever."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._more.wait()
            self._more.clear()
            if not self._wire.connected.is_set():
                continue
            if self._connection != self._wire.connection:  # what the server had may be lost
                self._connection = self._wire.connection
                self._sent.clear()
                self._asked = -ASK
            for machine in self._machines(stored=0):
                with suppress(RelayError):  # ``relay link`` says why
                    await self._send_to(machine)
            if time.monotonic() - self._asked > ASK:
                self._asked = time.monotonic()
                for machine in self._machines(stored=1):
                    with suppress(RelayError):
                        await self._ask(machine)

    def _machines(self, *, stored: int) -> list[str]:
        query = "SELECT DISTINCT machine FROM link_outbox WHERE stored=?"
        return [machine for (machine,) in self._ledger.rows(query, (stored,))]

    async def _send_to(self, machine: str) -> None:
        rows = self._ledger.rows(
            "SELECT n, told FROM link_outbox WHERE machine=? AND stored=0 ORDER BY n LIMIT ?",
            (machine, WINDOW),
        )
        if not rows:
            return
        now = time.monotonic()
        first, last, since, pause = self._sent.get(machine, (0, 0, now, AGAIN))
        if rows[0][0] != first:  # it gets on
            first, since, pause = rows[0][0], now, AGAIN
        elif now - since > pause and self._wire.is_here(machine):
            last, since, pause = 0, now, min(2 * pause, ASK)
        before = 0
        for n, text in rows:
            if n > last:
                fields = json_text.loads(text) | {"n": n, "before": before}
                await self._wire.publish(machine, "m", json_text.dumps(fields).encode())
                last = n
                self._sent[machine] = (first, last, since, pause)
            before = n

    async def _ask(self, machine: str) -> None:
        """Ask how far those messages are of which nothing final is known."""
        rows = self._ledger.rows(
            "SELECT id FROM link_outbox WHERE machine=? AND stored=1 ORDER BY n LIMIT ?",
            (machine, WINDOW),
        )
        if rows and self._wire.is_here(machine):
            question = Receipts(asked=[id_ for (id_,) in rows])
            await self._wire.publish(machine, "r", msgspec.json.encode(question))

    # -- receipts

    def take(self, machine: str, receipts: Receipts, batch: Batch) -> None:
        """Take another machine's receipts for messages that were sent to it."""
        for id_ in receipts.stored:
            self._ledger.change(
                "UPDATE link_outbox SET stored=1 WHERE machine=? AND id=?", (machine, id_)
            )
        for state in receipts.rows:
            self._move(machine, state, batch)
        batch.after.append(self._more.set)

    def _move(self, machine: str, far: FarState, batch: Batch) -> None:
        to = f"{far.to}@{machine}"
        stored = self._ledger.delivery(far.id, to)
        if stored is None or stored[2].state.final:
            return
        event, sender, delivery = stored
        try:
            there = State(far.state)
        except ValueError:
            return
        why = "".join(char if is_visible(char) else "?" for char in (far.reason or "")[:200])
        reason = f"{machine}: {why}" if why else None
        state = there
        if there in (State.QUEUED, State.WAITING, State.HELD, State.DELIVERING):
            state = State.DELIVERING  # nobody can withdraw it here any more
            word = "held" if there is State.HELD else there.value
            reason = f"{word} at {reason}" if why else f"{word} at {machine}"
        elif there is State.CANCELLED:
            state = State.FAILED
        if state is State.FAILED:
            reason = reason or f"{machine}: withdrawn there"
        if (state, reason) == (delivery.state, delivery.reason):
            return
        proof = f"receipt of {machine}" if state is State.SEEN else None
        with suppress(UsageError):
            new = advance(delivery, state, batch.now_ms, reason=reason, proof=proof)
            if new is not delivery:
                self._ledger.update_delivery(event, to, new)
                self._deliveries.changed(batch, far.id, sender, to, new)
