"""The rows of channels: who is in which, and who wants to hear of whose coming and going.

Apart from relay.ledger.store, which is long enough; the writers use its ``guard``.
"""

from __future__ import annotations

from relay.core.message import State
from relay.ledger.store import Ledger


def channels(ledger: Ledger) -> list[tuple[str, str]]:
    """[(name, channel)] of everybody, in the order in which they joined."""
    return ledger.rows("SELECT name, channel FROM memberships ORDER BY joined_ms, channel")


def join(ledger: Ledger, name: str, channel: str, now_ms: int) -> None:
    """``name`` is in ``channel`` from now on."""
    ledger.change("INSERT OR IGNORE INTO memberships VALUES (?,?,?)", (name, channel, now_ms))


def leave(ledger: Ledger, name: str, channel: str) -> None:
    """``name`` is in ``channel`` no more."""
    ledger.change("DELETE FROM memberships WHERE name=? AND channel=?", (name, channel))


def presence(ledger: Ledger) -> list[tuple[str, str]]:
    """[(name, who)]: what everybody wants to hear of: a channel, a role, a name, or ``*``."""
    return ledger.rows("SELECT name, who FROM presence_wanted ORDER BY who")


def set_presence(ledger: Ledger, name: str, wanted: tuple[str, ...]) -> None:
    """``name`` wants to hear of these, and of nobody else."""
    ledger.change("DELETE FROM presence_wanted WHERE name=?", (name,))
    for who in wanted:
        ledger.change("INSERT INTO presence_wanted VALUES (?,?)", (name, who))


def readdress(ledger: Ledger, role: str, name: str, now_ms: int) -> list[tuple[str, str]]:
    """What waits for somebody called as the role ``role`` goes to ``name``, which has it. Returns
    [(id, sender)]."""
    waiting = f"recipient=? AND open=1 AND state='{State.WAITING.value}'"
    rows = ledger.rows(
        f"SELECT d.event, e.id, e.agent FROM deliveries d JOIN events e ON e.seq = d.event"
        f" WHERE {waiting} AND e.agent<>? AND NOT EXISTS"
        " (SELECT 1 FROM deliveries o WHERE o.event = d.event AND o.recipient=?) ORDER BY d.event",
        (role, name, name),
    )
    for event, _, _ in rows:
        ledger.change(
            "UPDATE deliveries SET recipient=?, n=?, state='queued', reason=NULL, updated_ms=?"
            f" WHERE event=? AND {waiting}",
            (name, ledger.next_number(name), now_ms, event, role),
        )
    return [(id_, sender) for _, id_, sender in rows]
