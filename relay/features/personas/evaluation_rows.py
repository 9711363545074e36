"""The rows of evaluations: which events are to be evaluated, and what route functions said."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from relay.core.dispatch import RELAY_CHANNEL, Event, PeerKind
from relay.core.paths import Home
from relay.ledger.content_files import path_of
from relay.ledger.event_rows import files_of
from relay.ledger.persons import sender_type, with_address
from relay.ledger.schema import ORIGINAL
from relay.ledger.store import Ledger

Json = dict[str, Any]

#: Before a key, while the person has to decide on the event.
HELD = "held/"
#: Evaluations that are looked at to count them.
COUNTED_MAX = 10_000
#: Of an event's metadata, what relay adds to it.
_OWN = frozenset({"person", "to", "files"})


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """What one route function said of one event. ``latency_us``: microseconds."""

    hook_id: str
    started_ms: int
    latency_us: int
    fired: bool
    result: Json | None = None
    error: str | None = None


def add_due(ledger: Ledger, rows: Iterable[tuple[str, int, int]]) -> None:
    """Events that are to be evaluated, as (config, event, hops), within the open transaction."""
    with ledger.guard() as db:
        db.executemany("INSERT OR IGNORE INTO evaluations_due VALUES (?,?,?)", rows)


def due(ledger: Ledger, config: str, after: int, limit: int) -> list[tuple[int, bool]]:
    """The events beyond ``after`` that ``config`` is to evaluate, in order, each with whether an
    automation holds it up (relay.features.automations.automation_runs)."""
    found = ledger.rows(
        "SELECT event, EXISTS (SELECT 1 FROM evaluations_due b WHERE b.event = d.event"
        " AND b.config = 'automations/blocking') FROM evaluations_due d"
        " WHERE config=? AND event>? ORDER BY event LIMIT ?",
        (config, after, limit),
    )
    return [(row[0], bool(row[1])) for row in found]


def still_due(ledger: Ledger, config: str, events: Sequence[int]) -> list[int]:
    """Those of these events that ``config`` is to evaluate."""
    found = ledger.rows(
        "SELECT event FROM evaluations_due WHERE config=? AND event IN"
        " (SELECT value FROM json_each(?))",
        (config, json.dumps(list(events))),
    )
    return [row[0] for row in found]


def let_go(ledger: Ledger, event: int) -> list[str]:
    """The person has decided on a delivery of this event, within the open transaction. Once none of
    it waits for that any more it is due, unless all of it was refused. Returns under which keys."""
    held = "event=? AND config>='held/' AND config<'held0'"  # as the index has it
    waits, said = ledger.row(
        "SELECT max(parked), max(ifnull(decided,'') NOT LIKE 'refused%') FROM deliveries"
        " WHERE event=?",
        (event,),
    )
    if waits:
        return []
    if not said:
        ledger.change(f"DELETE FROM evaluations_due WHERE {held}", (event,))
        return []
    # As with its deliveries, hops count anew from here.
    change = f"UPDATE evaluations_due SET config=substr(config,{len(HELD) + 1}), hops=0"
    return [row[0] for row in ledger.rows(f"{change} WHERE {held} RETURNING config", (event,))]


def due_configs(ledger: Ledger) -> list[str]:
    """The configurations for which events wait."""
    found = ledger.rows("SELECT DISTINCT config FROM evaluations_due")
    return [row[0] for row in found if not row[0].startswith(HELD)]


def settle(ledger: Ledger, config: str, event: int) -> int | None:
    """The event is evaluated: nothing more is due. Returns its hops; None if nothing was due."""
    found = ledger.row(
        "DELETE FROM evaluations_due WHERE config=? AND event=? RETURNING hops", (config, event)
    )
    return None if found is None else int(found[0])


def drop_due(ledger: Ledger, config: str) -> int:
    """Nothing of ``config`` will be evaluated. Returns how many events were to be."""
    return ledger.change("DELETE FROM evaluations_due WHERE config=?", (config,))


def add_evaluations(
    ledger: Ledger,
    config: str,
    event: int,
    started_ms: int,
    rows: Sequence[EvaluationRow],
    quiet: str,
) -> None:
    """Append what was said of one event, within the open transaction. ``quiet``: of the route
    functions that said nothing the microseconds that they took, by name, as JSON; what is none is
    left out."""
    with ledger.guard() as db:
        if quiet != "{}":
            db.execute(
                "INSERT OR IGNORE INTO quiet_evaluations"
                " (event, config, started_ms, latencies_json)"
                " SELECT ?1,?2,?3,?4 WHERE json_valid(?4)",
                (event, config, started_ms, quiet),
            )
        db.executemany(
            "INSERT OR IGNORE INTO hook_evaluations VALUES (?,?,?,?,?,?,?)",
            (
                (
                    *(event, one.hook_id, one.started_ms, one.latency_us, one.fired),
                    json.dumps(one.result) if one.result is not None else None,
                    one.error,
                )
                for one in rows
            ),
        )


def of_event(ledger: Ledger, event: int) -> list[Json]:
    """What each route function said of an event (``state``: fired, not fired, failed), and which
    configurations are still to evaluate it (waiting, or held for the person)."""
    said = ledger.rows(
        "SELECT hook_id, CASE WHEN error IS NOT NULL THEN 'failed' WHEN fired THEN 'fired'"
        " ELSE 'not fired' END, error, latency_us FROM evaluations WHERE event=?"
        " ORDER BY fired DESC, hook_id",
        (event,),
    )
    names = ("hook", "state", "error", "latency_us")
    rows = [dict(zip(names, one, strict=True)) for one in said]
    for (config,) in ledger.rows("SELECT config FROM evaluations_due WHERE event=?", (event,)):
        if not config.removeprefix(HELD).startswith("automation"):
            state = "held" if config.startswith(HELD) else "waiting"
            given = (config.removeprefix(HELD), state, None, None)
            rows.append(dict(zip(names, given, strict=True)))
    return rows


def counts(ledger: Ledger, since_ms: int) -> Json:
    """How many of the newest evaluations fired, did not, and failed since then; of very many only
    the last ones are looked at."""
    found = {"fired": 0, "not_fired": 0, "failed": 0}
    with ledger.guard() as db:
        said = db.execute(
            "SELECT CASE WHEN error IS NOT NULL THEN 'failed' WHEN fired THEN 'fired'"
            " ELSE 'not_fired' END, 1, started_ms FROM hook_evaluations"
            " ORDER BY event DESC LIMIT ?",
            (COUNTED_MAX,),
        ).fetchall()
        said += db.execute(
            "SELECT 'not_fired', (SELECT count(*) FROM json_each(latencies_json)), started_ms"
            " FROM quiet_evaluations ORDER BY seq DESC LIMIT ?",
            (COUNTED_MAX,),
        ).fetchall()
    for state, number, started_ms in said:
        found[state] += number if started_ms >= since_ms else 0
    return found


def disabled_hooks(ledger: Ledger) -> dict[str, Json]:
    """The hooks that are switched off, by id: reason, event (an id or null), disabled_ms."""
    found = ledger.rows(
        "SELECT d.hook_id, d.reason, e.id, d.disabled_ms FROM disabled_hooks d"
        " LEFT JOIN events e ON e.seq = d.event"
    )
    return {row[0]: {"reason": row[1], "event": row[2], "disabled_ms": row[3]} for row in found}


def disable_hook(ledger: Ledger, hook_id: str, reason: str, event: int | None, now_ms: int) -> None:
    """Switch a hook off until it is enabled, within the open transaction."""
    ledger.change(
        "INSERT OR REPLACE INTO disabled_hooks VALUES (?,?,?,?)",
        (hook_id, reason, event, now_ms),
    )


def enable_hook(ledger: Ledger, hook_id: str) -> bool:
    """Switch a hook on again, within the open transaction. Returns whether it was off."""
    return bool(ledger.change("DELETE FROM disabled_hooks WHERE hook_id=?", (hook_id,)))


def event_of(ledger: Ledger, home: Home, seq: int) -> Event:
    """The event number ``seq`` as route functions are given it. Raises KeyError without one."""
    row = ledger.row(
        f"SELECT id, kind, agent, origin, thread, {ORIGINAL}, meta_json, created_ms, channel,"
        " source_id, account, peer_kind, peer, reply_to, content_type, occurred_ms"
        " FROM events e WHERE seq=?",
        (seq,),
    )
    if row is None:
        raise KeyError(seq)
    to: list[str] = []
    if row[1] == "message":
        found = ledger.rows("SELECT recipient FROM deliveries WHERE event=?", (seq,))
        to = [one[0] for one in found]
    meta = json.loads(row[6]) if row[6] else {}
    metadata = {**meta.get("attributes", {}), **(meta.get("meta") or {})}
    if row[8] != RELAY_CHANNEL:
        # What relay says of an event is nothing that somebody outside could have said.
        metadata = {key: one for key, one in metadata.items() if key not in _OWN}
        person = with_address(ledger, row[8], row[2] or "")
        if person is not None:
            metadata["person"] = person.about
    if to:
        metadata["to"] = to
    files = files_of(ledger, seq) if row[8] != RELAY_CHANNEL else []
    if files:
        metadata["files"] = [
            {
                "path": path_of(home, one.sha256),
                "name": one.name,
                "content_type": one.content_type,
                "size": one.size,
            }
            for one in files
        ]
    return Event(
        id=row[0],
        channel=row[8],
        kind=row[1],
        sender=row[2] or "",
        content=row[5] or "",
        timestamp=row[15] or row[7],
        sender_type=sender_type(ledger, row[8], row[2] or "", row[3]),
        source_id=row[9],
        account=row[10],
        peer_kind=PeerKind(row[11] or "dm"),
        peer=row[12],
        thread=row[4],
        reply_to=row[13],
        content_type=row[14] or "text",
        metadata=metadata,
    )
