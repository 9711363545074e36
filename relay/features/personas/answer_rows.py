"""The rows of answers: what goes out on channels, and how far it is.

``queued`` -> ``sending`` -> ``sent`` or ``dead``; from there, by the person's word, ``queued``
again or ``dropped``. One that is ``sending`` may have arrived when the broker is killed: it is due
again at the end of its time, and its next try says that it is one.
A file of its own: what answers are made of is relay.features.personas.dispatch_rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.ledger.schema import SENDER
from relay.ledger.store import Ledger


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


_COLUMNS = (
    "a.id, a.channel, a.delivery_json, a.attempts, a.due_ms, a.created_ms, d.persona,"
    " d.hops, e.id, e.agent, e.thread, e.source_id,"
    " e.channel"
)


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
) -> list[dict[str, Any]]:
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
    return [{**one, "body": ledger.shown(one["body"])} for one in rows]


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
