"""Offering deliveries to the sessions of their recipients, a bounded window at a time.

A new message goes straight from memory to its recipient's connection while nothing older waits
there. Otherwise the window is *behind*: the ledger is the queue, and it is read on from the
window's cursor whenever the window or the connection's buffer has room again.
"""

from __future__ import annotations

import asyncio
from functools import partial

from relay.broker.batch import Accepted, Batch, Client
from relay.broker.committer import Committer
from relay.broker.directory import Directory
from relay.broker.watchers import Watchers
from relay.core.message import State
from relay.ledger.store import Ledger
from relay.protocol.broker import WINDOW, encode
from relay.protocol.message_ops import DeliverPush, InboxPush, MessageRow, ReceiptPush

#: Bodies read from the ledger at once. Bytes.
_REFILL_BYTES = 1024 * 1024
#: How long after a failed commit a window is read on. Seconds.
_AGAIN_AFTER = 1.0


class _Window:
    """What was pushed to the session of ``name`` over one connection."""

    __slots__ = (
        *("name", "client", "cursor", "ids", "behind", "refilling", "missed", "reset"),
        "_ledger",
    )

    def __init__(self, name: str, client: Client, ledger: Ledger) -> None:
        self.name = name
        self.client = client
        self._ledger = ledger
        self.cursor = 0  # the last event that was pushed
        self.ids: set[str] = set()  # the deliveries that the session holds
        self.behind = True  # the ledger holds more beyond the cursor
        self.refilling = False  # a query for it is running
        self.missed = False  # stale: new rows were written while this query ran
        self.reset = False  # the cursor was set back while the query ran

    def has_room(self) -> bool:
        return not self.client.paused and len(self.ids) < WINDOW

    def push(self, event: int, row: MessageRow) -> None:
        self.cursor = event
        self.ids.add(row["id"])
        nonce = self._ledger.nonce(row["id"], self.name)
        told: DeliverPush = {
            **row,
            "push": "deliver",
            "attempt": row["attempts"],
            "nonce": nonce,
        }
        self.client.send(encode(told))


class DeliveryWindows:
    """Pushes to sessions and to those who follow an inbox."""

    def __init__(
        self, ledger: Ledger, directory: Directory, committer: Committer, watchers: Watchers
    ) -> None:
        self._ledger = ledger
        self._watchers = watchers
        self._directory = directory
        self._committer = committer
        self._windows: dict[str, _Window] = {}  # by lower-case name
        self._followers: dict[str, set[Client]] = {}  # by lower-case name
        self._following: dict[Client, str] = {}
        self._notified: set[Client] = set()  # followers that have not read their inbox since

    # -- messages

    def collect(self, message: Accepted, batch: Batch) -> None:
        """Store a message with the batch, then offer it to its recipients."""
        if not batch.offered:
            batch.offered = True
            batch.after.append(partial(self._offer_all, batch.stored))
        batch.sends.append(message)

    def _offer_all(self, stored: list[Accepted]) -> None:
        for message in stored:
            if message.routing is not None:
                self._watchers.message(message)
                self._offer(message)

    def _offer(self, message: Accepted) -> None:
        assert message.routing is not None
        for index, one in enumerate(message.routing.routes):
            key = one.to.lower()
            window = self._windows.get(key)
            if window is not None and not one.parked:
                if window.has_room() and not window.behind:
                    window.push(message.seq, message.row(index))
                else:
                    window.behind = True
                    window.missed = True
            if key in self._followers:
                self._notify(key)

    def receipt(
        self,
        sender: str,
        id_: str,
        to: str,
        state: str,
        reason: str | None,
        proof: str | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        """Report a changed delivery to watchers and, unless ``quiet``, to the sender's session."""
        self._watchers.delivery(id_, sender, to, state, reason, proof)
        member = None if quiet else self._directory.get(sender)
        if member is not None and member.client is not None:
            told: ReceiptPush = {
                "push": "receipt",
                "id": id_,
                "to": to,
                "state": state,
                "reason": reason,
            }
            member.client.send(encode(told))

    # -- windows

    def open(self, name: str, client: Client) -> None:
        """A session has connected: offer all open deliveries, from the oldest."""
        window = self._windows[name.lower()] = _Window(name, client, self._ledger)
        self._read_on(window)

    def close(self, name: str) -> None:
        self._windows.pop(name.lower(), None)

    def released(self, name: str) -> None:
        """Older deliveries have become open: start again from the oldest."""
        window = self._windows.get(name.lower())
        if window is not None:
            window.cursor = 0
            window.behind = window.reset = True
            self._read_on(window)

    def settled(self, name: str, id_: str, state: State) -> None:
        """A session has reported a state: ``submitted`` and the final ones make room for more."""
        window = self._windows.get(name.lower())
        if window is not None and (state.final or state is State.SUBMITTED):
            window.ids.discard(id_)
            # Several at a time, so that a long queue is not read row by row.
            if window.behind and len(window.ids) <= WINDOW // 2:
                self._read_on(window)

    def writable(self, name: str) -> None:
        window = self._windows.get(name.lower())
        if window is not None:
            self._read_on(window)

    def _read_on(self, window: _Window) -> None:
        """Read more from the ledger if there is room and something is left."""
        if window.behind and not window.refilling and window.has_room():
            window.refilling = True
            self._committer.submit_job(partial(self._refill, window))

    def _is_open(self, window: _Window) -> bool:
        return self._windows.get(window.name.lower()) is window

    def _refill(self, window: _Window, batch: Batch) -> None:
        def failed() -> None:
            window.refilling = False
            asyncio.get_running_loop().call_later(_AGAIN_AFTER, self._read_on, window)

        if not self._is_open(window):
            return
        batch.on_failure.append(failed)
        window.missed = window.reset = False
        rows, left = self._ledger.open_deliveries(
            window.name, window.cursor, WINDOW - len(window.ids), _REFILL_BYTES
        )
        batch.after.append(partial(self._refilled, window, rows, left))

    def _refilled(self, window: _Window, rows: list[tuple[int, MessageRow]], left: bool) -> None:
        window.refilling = False
        if not self._is_open(window):
            return
        if window.reset:
            self._read_on(window)  # older ones have become open meanwhile: start again
            return
        for event, row in rows:
            if row["id"] not in window.ids:
                window.push(event, row)
            window.cursor = event
        window.behind = left or window.missed
        self._read_on(window)

    # -- followers

    def follow(self, client: Client, name: str) -> None:
        """Tell ``client`` of each new message in the inbox of ``name``."""
        self.unfollow(client)
        self._following[client] = name.lower()
        self._followers.setdefault(name.lower(), set()).add(client)

    def unfollow(self, client: Client) -> None:
        key = self._following.pop(client, None)
        if key is None:
            return
        self._notified.discard(client)
        self._followers[key].discard(client)
        if not self._followers[key]:
            del self._followers[key]

    def _notify(self, key: str) -> None:
        # Once until the client reads the inbox: a flag, not a queue that could grow.
        for client in self._followers[key] - self._notified:
            self._notified.add(client)
            told: InboxPush = {"push": "inbox"}
            client.send(encode(told))
