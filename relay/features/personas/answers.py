"""Answers go out: to the asking agent or person as a message, elsewhere by a channel adapter.

The ledger is the queue: what is open when the broker is killed goes on. An adapter is asked once a
row says so, and has ``SEND_LIMIT`` seconds; a try that failed, or of which nobody knows, is
followed by others, each later, and told as such. What goes to one place goes in order. After
``TRIES_MAX``, after a day, or where the adapter says that no try will do (NotDelivered), an answer
is dead, and the person is told.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from relay.broker.batch import Accepted, Batch
from relay.broker.broker_tasks import BrokerTasks
from relay.broker.kernel import Kernel
from relay.broker.loop_guard import HeldMessages
from relay.broker.routing import route
from relay.core.dispatch import RELAY_CHANNEL, TIMER_CHANNEL
from relay.core.errors import NotDelivered, RelayError
from relay.core.ids import new_ulid
from relay.core.message import BODY_MAX, QueueMode
from relay.core.visible import visible
from relay.features.personas.ops import DispatchShown
from relay.hooks.events import HookEventName
from relay.ledger.schema import SENDER
from relay.ledger.store import Ledger
from relay.protocol.broker import Json

if TYPE_CHECKING:
    from relay.features.personas.channels import Channels

#: Channels whose answers become messages; those to a tick of the clock are for the person.
_OWN_CHANNELS = (RELAY_CHANNEL, TIMER_CHANNEL)
#: Seconds that an adapter has for one answer.
SEND_LIMIT = 60.0
#: Tries of one answer, and the longest time between two, in seconds: 48 minutes in all.
TRIES_MAX, PAUSE_MAX = 12, 900.0
#: Milliseconds after which a try that fails is the last: what waits behind others grows old.
AGE_MAX = 86_400_000
#: Answers that are looked at at a time, and that adapters have in hand.
LOOKED_AT_MAX, IN_HAND_MAX = 4096, 32
#: Characters of a dead answer that the person is shown.
SHOWN_MAX = 2000
_COLUMNS = (
    "a.id, a.channel, a.delivery_json, a.attempts, a.due_ms, a.created_ms, d.persona,"
    " d.hops, e.id, e.agent, e.thread, e.source_id,"
    " e.channel"
)


class AnswerDeliveries:
    """Sends what personas have answered."""

    def __init__(
        self,
        kernel: Kernel,
        held: HeldMessages,
        sender: Channels,
    ) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._committer = kernel.committer
        self._held = held
        self._sender = sender
        self._log = kernel.log
        self._tasks = BrokerTasks(kernel)
        self._in_hand: set[str] = set()  # the answers that adapters have
        self._woken = asyncio.Event()
        self._working = False

    def wake(self) -> None:
        """There may be something to send."""
        self._woken.set()
        if not self._working:
            self._working = True
            self._tasks.start(self._work_off())

    @property
    def busy(self) -> bool:
        """Whether answers wait for their channel."""
        return self._working

    async def close(self) -> None:
        """The broker stops: what is under way goes on with the next one."""
        await self._tasks.close()

    async def _work_off(self) -> None:
        """Send what is open, until nothing is."""
        try:
            while True:
                self._woken.clear()
                begun, wait = await self._committer.commit(self._take)
                for row, content in begun:
                    self._in_hand.add(row.id)
                    self._tasks.start(self._send(row, content))
                if not (begun or self._in_hand or self._woken.is_set()) and wait is None:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._woken.wait()
        finally:
            self._working = False

    def _take(self, batch: Batch) -> tuple[list[tuple[AnswerRow, str]], float | None]:
        """Send what goes to somebody in relay, and take what an adapter is to send now. Returns
        that, and the seconds until more is due; None: nothing else waits for its time."""
        rows = open_answers(self._ledger, LOOKED_AT_MAX)
        begun: list[tuple[AnswerRow, str]] = []
        before: set[str] = set()
        due: list[int] = []
        until_ms = batch.now_ms + int(SEND_LIMIT * 1000)
        for row in rows:
            if row.channel in _OWN_CHANNELS:
                self._tell(row, batch)
                continue
            first = row.place not in before
            free = len(self._in_hand) + len(begun) < IN_HAND_MAX
            before.add(row.place)
            if row.id in self._in_hand or not first:
                continue
            if row.due_ms > batch.now_ms:
                due.append(row.due_ms)
            elif free:
                sending(self._ledger, row.id, until_ms, batch.now_ms)
                begun.append((row, content_of(self._ledger, row.id)))
        if any(row.channel in _OWN_CHANNELS for row in rows) and len(rows) == LOOKED_AT_MAX:
            batch.after.append(self._woken.set)
        return begun, (min(due) - batch.now_ms) / 1000 if due else None

    def _close(self, row: AnswerRow, state: str, reason: str | None, batch: Batch) -> None:
        close(self._ledger, row.id, state, reason, batch.now_ms)
        batch.observe(
            HookEventName.AFTER_DELIVER_RESPONSE,
            lambda: {
                "response": content_of(self._ledger, row.id),
                "persona": row.persona,
                "channel": row.channel,
                "to": self._asker(row) if row.channel in _OWN_CHANNELS else _to(row),
                "state": state,
                "reason": reason or "",
            },
        )

    # -- relay's own channel

    def _tell(self, row: AnswerRow, batch: Batch) -> None:
        """The answer becomes a message from the persona to who asked, in this commit."""
        to, content = self._asker(row), content_of(self._ledger, row.id)
        if to.lower() == row.persona.lower():
            self._close(row, "sent", "the persona asked itself", batch)
            return
        try:
            if len(content.encode()) > BODY_MAX:
                raise RelayError(f"it is longer than {BODY_MAX} bytes")
            routing = route([to], row.persona, self._directory.members, strict=False)
        except RelayError as error:
            self._give_up(row, error.message, batch)
            return
        message = Accepted(
            request=None,
            id=new_ulid(batch.now_ms),
            given=False,
            kind="message",
            sender=row.persona,
            origin="agent",
            body=content,
            mode=QueueMode.FOLLOWUP.value,
            thread=row.delivery.get("thread") or row.thread,
            meta=f'{{"cause": "{row.event_id}"}}',
            routing=routing,
        )
        self._held.admit_followed(message, row.hops + 1, batch)
        self._windows.collect(message, batch)
        self._close(row, "sent", None, batch)

    def _asker(self, row: AnswerRow) -> str:
        """Who in relay gets the answer: where nobody in relay has asked, the person does."""
        if row.delivery.get("peer"):
            return str(row.delivery["peer"])
        channels = {row.channel, row.event_channel}
        ours = channels == {RELAY_CHANNEL} and row.sender.lower() != RELAY_CHANNEL
        return row.sender if ours else self._directory.owner

    # -- other channels

    async def _send(self, row: AnswerRow, content: str) -> None:
        answer: Json = {
            "answer": row.id,
            "context": {**row.delivery, "channel": row.channel, "reply_to": self._reply_to(row)},
            "text": content,
            "to": _to(row),
            "event": row.event_id,
            "persona": row.persona,
            "attempt": row.tries,
        }
        reason, final = None, False
        try:
            await self._sender.send(row.channel, answer, SEND_LIMIT)
        except RelayError as error:
            reason, final = error.line, error.code == NotDelivered.code
        except Exception as error:  # the row says that it is under way: somebody must close it
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            from relay.directive.redact import redact

            reason = visible(redact(reason[:2000]))[:500]
        await self._committer.commit(partial(self._sent, row, reason, final))
        self._in_hand.discard(row.id)
        self._woken.set()

    def _reply_to(self, row: AnswerRow) -> str | None:
        """What the channel itself calls the message that is answered."""
        given = row.delivery.get("reply_to")
        return row.source_id if given == row.event_id and row.source_id else given

    def _sent(self, row: AnswerRow, reason: str | None, final: bool, batch: Batch) -> None:
        if reason is None:
            self._close(row, "sent", None, batch)
        elif final or row.tries + 1 >= TRIES_MAX or batch.now_ms - row.created_ms > AGE_MAX:
            self._give_up(row, reason, batch)
        else:
            pause = min(2.0**row.tries, PAUSE_MAX)
            due_ms = batch.now_ms + int(pause * 1000)
            failed(self._ledger, row.id, reason, due_ms, batch.now_ms)

    def _give_up(self, row: AnswerRow, reason: str, batch: Batch) -> None:
        """It is dead; the person is told, since nobody else can be."""
        self._close(row, "dead", reason, batch)
        content = content_of(self._ledger, row.id)
        to = _to(row)
        self._log.write(f"the answer {row.id} on {row.channel} is dead: {reason}")
        text = (
            f"The answer of {row.persona} to {to} could not be sent over {row.channel}: {reason}."
            f" It begins with:\n{content[:SHOWN_MAX]}"
        )
        notice = Accepted.notice(self._directory.owner, text, "answers", batch.now_ms)
        self._windows.collect(notice, batch)


def _to(row: AnswerRow) -> str:
    """Who on its channel gets it."""
    return str(row.delivery.get("peer") or row.sender)


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """One answer, with the event that it answers. ``tries``: how many there were. Times in
    milliseconds."""

    id: str
    channel: str
    delivery: Mapping[str, Any]
    tries: int
    due_ms: int
    created_ms: int
    persona: str
    hops: int
    event_id: str
    sender: str
    thread: str | None
    source_id: str | None
    event_channel: str

    @property
    def place(self) -> str:
        """Where it goes: what goes to one place goes in order."""
        to = {key: value for key, value in self.delivery.items() if key != "reply_to"}
        return json.dumps([sorted(to.items()), "" if to.get("peer") else self.sender])


def open_answers(ledger: Ledger, limit: int) -> list[AnswerRow]:
    """The oldest that are still to go out, without what they say."""
    found = ledger.rows(
        f"SELECT {_COLUMNS} FROM answers a JOIN dispatches d ON d.id = a.dispatch"
        " JOIN events e ON e.seq = d.event WHERE a.open ORDER BY a.created_ms, a.id LIMIT ?",
        (limit,),
    )
    rows = []
    for id_, channel, delivery, *rest in found:
        rows.append(AnswerRow(id_, channel, json.loads(delivery), *rest))
    return rows


def content_of(ledger: Ledger, id_: str) -> str:
    """What an answer says."""
    found = ledger.row("SELECT content FROM answers WHERE id=?", (id_,))
    return str(found[0])


def followed(ledger: Ledger, event: str) -> list[dict[str, Any]]:
    """What has followed from an event: its dispatches, each with its answer."""
    names = ("id", "hook", "persona", "session", "state", "reason", "answer", "answer_reason")
    found = ledger.rows(
        "SELECT d.id, d.hook_id, d.persona, d.session, d.state, d.reason, a.state, a.reason"
        " FROM events e JOIN dispatches d ON d.event = e.seq"
        " LEFT JOIN answers a ON a.dispatch = d.id WHERE e.id=? ORDER BY d.seq",
        (event,),
    )
    return [dict(zip(names, one, strict=True)) for one in found]


def sending(ledger: Ledger, id_: str, until_ms: int, now_ms: int) -> None:
    """Somebody tries it now, and has until ``until_ms`` for it."""
    _update(ledger, id_, "state='sending', attempts=attempts+1, due_ms=?", until_ms, now_ms)


def failed(ledger: Ledger, id_: str, reason: str, due_ms: int, now_ms: int) -> None:
    """It has not arrived, and is tried again."""
    _update(ledger, id_, "state='queued', reason=?, due_ms=?", reason, due_ms, now_ms)


def close(ledger: Ledger, id_: str, state: str, reason: str | None, now_ms: int) -> None:
    """It is ``sent`` or ``dead``."""
    if state == "sent":
        shown = ledger.shown(content_of(ledger, id_))
        ledger.change("UPDATE answers SET content=? WHERE id=?", (shown, id_))
    _update(ledger, id_, "open=0, state=?, reason=?", state, reason, now_ms)


def listed(
    ledger: Ledger, limit: int, *, dead: bool = False, part: str = ""
) -> list[DispatchShown]:
    """The newest that are open, or ``dead``, oldest first, in the shape of a dispatch. ``part``: an
    id or the end of one (from 4 characters on), or a persona."""
    names = (
        *("id", "state", "reason", "channel", "body", "tries", "turn", "created_ms", "updated_ms"),
        *("persona", "session", "mode", "priority", "hook", "event", "from"),
    )
    where, values = "a.state='dead'" if dead else "a.open", []
    if part:
        where += " AND (d.persona = ? OR (length(?) > 3 AND substr(a.id, -length(?)) = ?))"
        values = [part, *[part.upper()] * 3]
    found = ledger.rows(
        "SELECT a.id, a.state, a.reason, a.channel, substr(a.content, 1, 200), a.attempts,"
        " a.turn, a.created_ms, a.updated_ms, d.persona, d.session, d.mode, d.priority,"
        f" d.hook_id, e.id, {SENDER} FROM answers a JOIN dispatches d ON d.id = a.dispatch"
        f" JOIN events e ON e.seq = d.event WHERE {where}"
        " ORDER BY a.created_ms DESC LIMIT ?",
        (*values, limit),
    )
    rows = [{"what": "answer", **dict(zip(names, one, strict=True))} for one in reversed(found)]
    return [cast(DispatchShown, {**one, "body": ledger.shown(one["body"])}) for one in rows]


def decide(ledger: Ledger, ids: Sequence[str], now_ms: int, *, drop: bool) -> None:
    """They are tried again, with tries counted anew, or ``dropped``."""
    what = "state='dropped', open=0" if drop else "state='queued', open=1, attempts=0, reason=NULL"
    ledger.begin()
    with ledger.guard() as db:
        db.executemany(
            f"UPDATE answers SET {what}, due_ms=?, updated_ms=? WHERE id=?",
            [(now_ms, now_ms, id_) for id_ in ids],
        )


def _update(ledger: Ledger, id_: str, what: str, *values: object) -> None:
    ledger.begin()
    # One that was decided on meanwhile stays as it is.
    ledger.change(f"UPDATE answers SET {what}, updated_ms=? WHERE id=? AND open", (*values, id_))
