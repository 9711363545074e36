"""What the person has noted about an event, beside the event itself: its tags and its state."""

from __future__ import annotations

from relay.ledger.store import Ledger
from relay.protocol.messages import EventMarks

#: What an event can be, besides its status, which is a word of the person's own.
FLAGS = ("read", "flagged", "archived")


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
