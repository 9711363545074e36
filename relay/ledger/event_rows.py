"""Rows of what happens on other channels than relay's own: events, threads, participants, files.

Also what the person has noted about any event: its tags and its state. One connection, one owner:
see relay.ledger.store.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import cast

from relay.core.dispatch import PeerKind, PersonType
from relay.core.paths import Home
from relay.ledger import persons
from relay.ledger.content_files import path_of
from relay.ledger.schema import BLOCK_BITS
from relay.ledger.store import Ledger
from relay.protocol.message_ops import ChannelOrigin, EventMarks

#: What ``events.origin`` is of them.
OUTSIDE = "channel"
#: What an event can be, besides its status, which is a word of the person's own.
FLAGS = ("read", "flagged", "archived")
#: (seq, id, kind, sender, thread, body, meta_json, created_ms)
OutsideRow = tuple[int, str, str, str, str | None, str | None, str | None, int]
_EVENT = (
    "INSERT INTO events (seq, id, kind, agent, origin, thread, body, meta_json, created_ms,"
    " channel, source_id, account, peer_kind, peer, reply_to, content_type, occurred_ms)"
    f" VALUES (?,?,?,?,'{OUTSIDE}',?,?,?,?,?,?,?,?,?,?,?,?)"
)


@dataclass(frozen=True, slots=True)
class ContentFile:
    """Content that is not text: a file of relay.ledger.content_files, by its hash. Size: bytes."""

    sha256: str
    name: str
    content_type: str
    size: int


@dataclass(frozen=True, slots=True)
class OutsideEvent:
    """What an event of another channel has beyond what every event has. ``occurred_ms``: when, by
    its channel. ``sender_type``: what its sender is as long as nobody says otherwise."""

    channel: str
    source_id: str | None
    account: str | None
    peer_kind: PeerKind
    peer: str | None
    reply_to: str | None
    content_type: str
    occurred_ms: int
    sender_type: PersonType = PersonType.UNKNOWN
    sender_name: str | None = None
    files: tuple[ContentFile, ...] = ()


def id_of(ledger: Ledger, channel: str, source_id: str) -> str | None:
    """The id of an event that is known by its channel and that one's own id of it."""
    found = ledger.row(
        "SELECT id FROM events WHERE channel=? AND source_id=?", (channel, source_id)
    )
    return None if found is None else str(found[0])


def add(ledger: Ledger, row: OutsideRow, outside: OutsideEvent) -> None:
    seq, _, _, sender, thread, _, _, now_ms = row
    where = (outside.channel, outside.source_id, outside.account, outside.peer_kind.value)
    what = (outside.peer, outside.reply_to, outside.content_type, outside.occurred_ms)
    if thread is not None:
        note_thread(ledger, outside.channel, thread, now_ms, outside)
    ledger.note_events([row], {(sender, seq >> BLOCK_BITS)})
    with ledger.guard() as db:
        db.execute(_EVENT, (*row[:5], ledger.body_of(seq, row[5]), *row[6:], *where, *what))
        db.executemany(
            "INSERT INTO event_files VALUES (?,?,?,?,?,?)",
            [
                (seq, n, one.sha256, one.name, one.content_type, one.size)
                for n, one in enumerate(outside.files)
            ],
        )
    # What nobody has sent has its channel's name for a sender, and that is nobody.
    if sender != outside.channel or outside.sender_type is not PersonType.UNKNOWN:
        name, type_ = outside.sender_name or sender, outside.sender_type
        person = persons.ensure(
            ledger, outside.channel, sender, name=name, type_=type_, now_ms=now_ms
        )
        ledger.change("INSERT INTO event_participants VALUES (?,?,'from')", (seq, person))


def note_thread(
    ledger: Ledger, channel: str, thread: str, now_ms: int, outside: OutsideEvent | None = None
) -> None:
    """There is this thread; what is known of it stays."""
    group = outside is not None and outside.peer_kind is PeerKind.GROUP
    peer = None if outside is None else outside.peer
    ledger.change(
        "INSERT OR IGNORE INTO threads (channel, id, is_group, peer, created_ms)"
        " VALUES (?,?,?,?,?)",
        (channel, thread, int(group), peer, now_ms),
    )


def files_of(ledger: Ledger, seq: int) -> list[ContentFile]:
    rows = ledger.rows(
        "SELECT sha256, name, content_type, size FROM event_files WHERE event=? ORDER BY n",
        (seq,),
    )
    return [ContentFile(*row) for row in rows]


def shown(ledger: Ledger, id_: str) -> ChannelOrigin:
    """What an event of another channel says beyond what every event does, for people."""
    names = ("channel", "source_id", "account", "peer_kind", "peer", "reply_to", "content_type")
    seq, occurred, sender, *values = ledger.row(
        f"SELECT seq, occurred_ms, agent, {', '.join(names)} FROM events WHERE id=?", (id_,)
    )
    home = Home(os.path.dirname(ledger.path))
    return {
        **cast(ChannelOrigin, dict(zip(names, values, strict=True))),
        "occurred_ms": occurred,
        "sender_type": persons.sender_type(ledger, values[0], sender, OUTSIDE).value,
        "files": [
            {"path": path_of(home, one.sha256), "name": one.name, "size": one.size}
            for one in files_of(ledger, seq)
        ],
    }


def tag(ledger: Ledger, event: int, name: str, source: str, now_ms: int) -> None:
    """Put a tag on an event, within the open transaction; ``source``: who does."""
    ledger.change(
        "INSERT OR IGNORE INTO event_tags VALUES (?,?,?,?)", (event, name, source, now_ms)
    )


def untag(ledger: Ledger, event: int, name: str) -> None:
    """Take a tag off again, within the open transaction."""
    ledger.change("DELETE FROM event_tags WHERE event=? AND tag=?", (event, name))


def mark(ledger: Ledger, event: int, column: str, value: object, now_ms: int) -> None:
    """Set the status, or one of ``FLAGS``, of an event, within the open transaction."""
    assert column in ("status", *FLAGS)
    ledger.change(
        f"INSERT INTO event_state (event, {column}, updated_ms) VALUES (?1,?2,?3)"
        f" ON CONFLICT (event) DO UPDATE SET {column}=?2, updated_ms=?3",
        (event, value, now_ms),
    )


def marks_of(ledger: Ledger, event: int) -> EventMarks:
    """``tags``, ``status`` and ``FLAGS`` of an event."""
    tags = ledger.rows("SELECT tag FROM event_tags WHERE event=? ORDER BY tag", (event,))
    state = ledger.row(
        "SELECT status, read, flagged, archived FROM event_state WHERE event=?", (event,)
    )
    status, read, flagged, archived = state or (None, 0, 0, 0)
    return {
        "tags": [name for (name,) in tags],
        "status": status,
        "read": bool(read),
        "flagged": bool(flagged),
        "archived": bool(archived),
    }
