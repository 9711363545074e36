"""The labels of personas' sessions: where two turn out to be one, the other is its alias.

Apart from relay.ledger.agent_ledger, which knows sessions by their ids. Trees of turns never merge:
what was said under the alias stays there, and what comes under it goes on under the label.
"""

from __future__ import annotations

from relay.ledger.store import Ledger

#: Aliases that may follow from one another.
_CHAIN = 16


def label_of(ledger: Ledger, persona: str, label: str) -> str:
    """The label that this one stands for."""
    for _ in range(_CHAIN):
        found = ledger.row(
            "SELECT label FROM session_aliases WHERE persona=? AND alias=?", (persona, label)
        )
        if found is None:
            break
        label = str(found[0])
    return label


def labels_of(ledger: Ledger, persona: str, label: str) -> list[str]:
    """``label`` and all that stand for it."""
    found = ledger.rows(
        "WITH RECURSIVE known (label) AS (VALUES (?) UNION SELECT a.alias FROM session_aliases"
        " a JOIN known ON a.label = known.label WHERE a.persona=?) SELECT label FROM known",
        (label, persona),
    )
    return [str(row[0]) for row in found]


def alias_label(ledger: Ledger, alias: str, label: str, reason: str, now_ms: int) -> None:
    """What comes for the session ``alias`` of any persona goes to ``label`` from now on, if it does
    not yet, or the other way round."""
    known = ledger.rows(
        "SELECT persona FROM agent_sessions WHERE persona NOT NULL AND label=?"
        " UNION SELECT persona FROM dispatches WHERE open AND session=?",
        (alias, alias),
    )
    for (persona,) in known:
        to = label_of(ledger, persona, label)
        if alias == to or label_of(ledger, persona, alias) == to:
            continue
        ledger.change(
            "INSERT OR REPLACE INTO session_aliases VALUES (?,?,?,?,?)",
            (persona, alias, to, reason, now_ms),
        )
