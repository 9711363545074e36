"""The labels of personas' sessions: where two turn out to be one, the other is its alias.

Apart from relay.ledger.agent_ledger, which knows sessions by their ids. Trees of turns never merge:
what was said under the alias stays there, and what comes under it goes on under the label.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ledger.store import Ledger

#: Aliases that may follow from one another.
_CHAIN = 16


def label_of(ledger: Ledger, persona: str, label: str) -> str:
    """The label that this one stands for."""
    with ledger.guard() as db:
        for _ in range(_CHAIN):
            found = db.execute(
                "SELECT label FROM session_aliases WHERE persona=? AND alias=?", (persona, label)
            ).fetchone()
            if found is None:
                break
            label = str(found[0])
    return label


def labels_of(ledger: Ledger, persona: str, label: str) -> list[str]:
    """``label`` and all that stand for it."""
    with ledger.guard() as db:
        found = db.execute(
            "WITH RECURSIVE known (label) AS (VALUES (?) UNION SELECT a.alias FROM session_aliases"
            " a JOIN known ON a.label = known.label WHERE a.persona=?) SELECT label FROM known",
            (label, persona),
        ).fetchall()
    return [str(row[0]) for row in found]


def add_alias(
    ledger: Ledger, persona: str, alias: str, label: str, reason: str, now_ms: int
) -> None:
    """What comes for the session ``alias`` goes to ``label`` from now on, if it does not yet, or
    the other way round."""
    label = label_of(ledger, persona, label)
    if alias == label or label_of(ledger, persona, alias) == label:
        return
    ledger.begin()
    with ledger.guard() as db:
        db.execute(
            "INSERT OR REPLACE INTO session_aliases VALUES (?,?,?,?,?)",
            (persona, alias, label, reason, now_ms),
        )


def alias_label(ledger: Ledger, old: str, new: str, reason: str, now_ms: int) -> None:
    """What comes for this session of any persona goes to that one from now on."""
    with ledger.guard() as db:
        known = db.execute(
            "SELECT persona FROM agent_sessions WHERE persona NOT NULL AND label=?"
            " UNION SELECT persona FROM dispatches WHERE open AND session=?",
            (old, old),
        ).fetchall()
    for (persona,) in known:
        add_alias(ledger, persona, old, new, reason, now_ms)


def alias_sessions(
    ledger: Ledger, old_names: Sequence[str], new_name: str, reason: str, now_ms: int
) -> None:
    """Two persons turned out to be one: sessions whose label ends in ``:`` and one of the old
    names, or has that name alone, are aliases of the new name's."""
    with ledger.guard() as db:
        known = db.execute(
            "SELECT persona, label FROM agent_sessions WHERE persona NOT NULL AND label NOT NULL"
            " UNION SELECT persona, session FROM dispatches WHERE open"
        ).fetchall()
    old = {one.lower() for one in old_names}
    for persona, label in known:
        head, colon, name = label.rpartition(":")
        if name.lower() in old:
            to = f"{head}{colon}{new_name}"
            add_alias(ledger, persona, label, to, reason, now_ms)
