"""What automations are to run, what they ran, and what is left of a run: the writing side.

Apart from relay.features.automations.automation_rows, which knows automations by what they are. An
event is due for the stage (``STAGE``, and first ``BLOCKING``) from the commit that stores it; the
stage makes of that one row for each automation that wants it (``run_key``), so that a slow one has
a backlog of its own; and the row goes with the commit that has the run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from relay.core.dispatch import DEFAULT_PERSONA
from relay.ledger.store import Ledger

Json = dict[str, Any]

#: The keys in ``evaluations_due``; those of configurations have no slash.
STAGE, BLOCKING = "automations", "automations/blocking"
_RUNS = "automation/"


def run_key(automation: str) -> str:
    """The key under which the runs of one automation are due."""
    return _RUNS + automation


def automation_of(key: str) -> str:
    """The automation whose runs are due under this key; "" where it is none's."""
    return key.removeprefix(_RUNS) if key.startswith(_RUNS) else ""


def is_ours(key: str) -> bool:
    """Whether automations are due under it, and not a configuration's route functions."""
    return key in (STAGE, BLOCKING) or key.startswith(_RUNS)


def begun(ledger: Ledger) -> dict[str, int]:
    """For which event each automation was run last, whether that run has ended or not."""
    return dict(ledger.rows("SELECT id, begun FROM automations WHERE begun NOT NULL"))


def note_begun(ledger: Ledger, automation: str, event: int) -> None:
    """An automation is about to be run for an event, within the open transaction."""
    ledger.change("UPDATE automations SET begun=? WHERE id=?", (event, automation))


def stage_due(ledger: Ledger) -> list[int]:
    """The events that are due for the stage and that no blocking automation holds up."""
    found = ledger.rows(
        "SELECT event FROM evaluations_due WHERE config=? EXCEPT"
        " SELECT event FROM evaluations_due WHERE config=?",
        (STAGE, BLOCKING),
    )
    return [int(row[0]) for row in found]


def first_due(ledger: Ledger, automation: str) -> tuple[int, int] | None:
    """The first event that an automation is to be run for, and its hops."""
    found: tuple[int, int] | None = ledger.row(
        "SELECT event, hops FROM evaluations_due WHERE config=? ORDER BY event LIMIT 1",
        (run_key(automation),),
    )
    return found


def hops_of(ledger: Ledger, key: str, event: int) -> int | None:
    """The hops of an event that is due under ``key``; None where it is not."""
    found = ledger.row("SELECT hops FROM evaluations_due WHERE config=? AND event=?", (key, event))
    return None if found is None else int(found[0])


def drop(ledger: Ledger, automation: str, limit: int) -> list[int]:
    """Forget up to ``limit`` of the runs that are due, the first ones, within the open transaction.
    Returns the events."""
    found = ledger.rows(
        "DELETE FROM evaluations_due WHERE config=?1 AND event IN (SELECT event FROM"
        " evaluations_due WHERE config=?1 ORDER BY event LIMIT ?2) RETURNING event",
        (run_key(automation), limit),
    )
    return [int(row[0]) for row in found]


def note_skipped(ledger: Ledger, automation: str, count: int) -> None:
    """So many runs were left out because the circuit is open, within the open transaction."""
    ledger.change("UPDATE automations SET skipped=skipped+? WHERE id=?", (count, automation))


def ran(ledger: Ledger, event: int) -> set[str]:
    """The automations that were run for an event."""
    found = ledger.rows("SELECT automation FROM automation_runs WHERE event=?", (event,))
    return {str(row[0]) for row in found}


def outcome(ledger: Ledger, event: int, automations: Iterable[str]) -> Json | None:
    """How the automations of an event ran, and how many dispatches follow from them; None while it
    is due to one of these."""
    keys = json.dumps([run_key(one) for one in automations])
    if ledger.rows(
        "SELECT 1 FROM evaluations_due WHERE event=? AND config IN"
        " (SELECT value FROM json_each(?)) LIMIT 1",
        (event, keys),
    ):
        return None
    runs = ledger.rows(
        "SELECT a.name, r.fired, r.error FROM automation_runs r JOIN automations a"
        " ON a.id = r.automation WHERE r.event=? ORDER BY r.seq",
        (event,),
    )
    made = ledger.rows(
        "SELECT count(*) FROM dispatches WHERE event=? AND hook_id LIKE 'automation/%'", (event,)
    )
    told = [{"name": name, "fired": bool(fired), "error": error} for name, fired, error in runs]
    return {"automations": told, "dispatches": int(made[0][0])}


def enriching(ledger: Ledger, event: int) -> list[Json]:
    """What automations have added to an event, of the highest priority first: where they did not
    fire, or block."""
    found = ledger.rows(
        "SELECT json_extract(r.result_json, '$.enrich') FROM automation_runs r"
        " JOIN automation_versions v ON v.automation = r.automation AND v.version = r.version"
        " WHERE r.event=? AND json_extract(r.result_json, '$.enrich') NOT NULL"
        " AND (NOT r.fired OR json_extract(v.definition_json, '$.blocking'))"
        " ORDER BY json_extract(v.definition_json, '$.priority') DESC, r.seq",
        (event,),
    )
    return [json.loads(row[0]) for row in found]


def add_run(
    ledger: Ledger,
    automation: str,
    version: int,
    event: int,
    *,
    started_ms: int,
    latency_us: int,
    fired: bool,
    retry: bool,
    llm_calls: int,
    result: Json | None,
    error: str | None,
    log: str,
) -> bool:
    """Append one run, within the open transaction. Returns whether it was the first of its
    automation for this event: another does not count."""
    added = ledger.change(
        "INSERT OR IGNORE INTO automation_runs (automation, version, event, started_ms,"
        " latency_us, fired, retry, llm_calls, result_json, error, log)"
        " VALUES (?,?,?,?,?,?,?,?,?,?,?)",
        (
            *(automation, version, event, started_ms, latency_us, fired, retry, llm_calls),
            None if result is None else json.dumps(result),
            *(error, log or None),
        ),
    )
    return bool(added)


def save_circuit(
    ledger: Ledger, automation: str, errors: int, opened_ms: int | None, fired_ms: int | None
) -> None:
    """Store how an automation is after a run, within the open transaction: its circuit, and when
    it fired; None: it did not."""
    ledger.change(
        "UPDATE automations SET errors=?, opened_ms=?, last_fired_ms=ifnull(?,last_fired_ms)"
        " WHERE id=?",
        (errors, opened_ms, fired_ms, automation),
    )


def persona_of(ledger: Ledger, session: str) -> str:
    """The persona that was last used in the session with this label; ``default`` if none was."""
    found = ledger.row(
        "SELECT persona FROM agent_sessions WHERE label=? AND persona NOT NULL"
        " ORDER BY updated_ms DESC LIMIT 1",
        (session,),
    )
    return DEFAULT_PERSONA if found is None else str(found[0])
