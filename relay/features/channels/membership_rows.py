"""The rows of channels: who is in which, and who wants to hear of whose coming and going."""

from __future__ import annotations

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
