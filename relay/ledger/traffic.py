"""The traffic in the ledger as a person looks at it: pages of messages, the hooks on a message's
way, and figures for charts.

It is read in the process of who asks, as ``relay.ledger.sql_query`` reads, so that reading many
messages does not delay the broker.
"""

from __future__ import annotations

from statistics import quantiles

from relay.ledger.schema import COLUMNS, SENDER, Row, message_row
from relay.ledger.sql_query import query

#: Figures are of at most so many of the newest events, and of deliveries as many.
EVENTS_MAX = 200_000
#: Runs of hooks that are shown with a message; those within this time around its way count.
HOOKS_MAX, AROUND_MS = 100, 1_000


def page(path: str, *, before: int | None, limit: int, text: str = "") -> tuple[list[Row], bool]:
    """The newest ``limit`` deliveries of messages before the event with that number, the newest
    first, each with ``seq``; and whether there are more. ``text`` is in the body, in any case, or
    is who it is from or for."""
    where, values = ["e.kind = 'message'"], list[object]()
    if before is not None:
        where.append("e.seq < ?")
        values.append(before)
    if text:
        where.append(
            f"(instr(lower(e.body), lower(?)) OR {SENDER} = ? COLLATE NOCASE OR d.recipient = ?)"
        )
        values += [text] * 3
    found = query(
        path,
        f"SELECT {COLUMNS} FROM events e LEFT JOIN deliveries d ON d.event = e.seq"
        f" WHERE {' AND '.join(where)} ORDER BY e.seq DESC, d.recipient DESC",
        limit,
        params=values,
    )
    return [{**message_row(row), "seq": row[0]} for row in found.rows], found.more


def hooks_on_the_way(path: str, id_: str, agents: list[str], until_ms: int) -> list[Row]:
    """What ran for the message ``id_``: route functions that evaluated it, and the hooks of these
    agents from just before it was said until just after ``until_ms``; the oldest first."""
    exact = query(
        path,
        "SELECT h.started_ms, h.hook_id, h.fired, h.latency_us / 1e6, ifnull(h.error, '')"
        " FROM hook_evaluations h JOIN events e ON e.seq = h.event WHERE e.id = ?",
        HOOKS_MAX,
        params=(id_,),
    ).rows
    rows: list[Row] = [
        {"at_ms": at, "hook": hook, "of": "", "event": "route", "seconds": seconds, "error": error}
        | {"decision": "fired" if fired else "not fired"}
        for at, hook, fired, seconds, error in exact
    ]
    near = query(
        path,
        "SELECT h.created_ms, h.hook, h.decision, h.duration, h.error, h.agent, h.event"
        " FROM hook_invocations h, (SELECT created_ms FROM events WHERE id = ?) e"
        " WHERE h.seq > (SELECT max(seq) FROM hook_invocations) - ?"
        f" AND h.agent IN ({','.join('?' * len(agents))}) AND h.kind <> 'batch'"
        " AND h.created_ms BETWEEN e.created_ms - ? AND ? ORDER BY h.seq",
        HOOKS_MAX,
        params=(id_, EVENTS_MAX, *agents, AROUND_MS, until_ms + AROUND_MS),
    ).rows
    rows += [
        {"at_ms": at, "hook": hook, "of": agent, "event": event, "seconds": seconds}
        | {"error": error, "decision": decision}
        for at, hook, decision, seconds, error, agent, event in near
    ]
    return sorted(rows, key=lambda row: int(row["at_ms"]))


def figures(path: str, *, since_ms: int, bucket_ms: int) -> Row:
    """Of messages since then: ``sent`` [[who, number of the bucket, messages]], ``latency`` of the
    deliveries to each agent {who: {number, median_ms, p95_ms}}, ``states`` {state: deliveries}."""
    newest = f"e.seq > (SELECT max(seq) FROM events) - {EVENTS_MAX} AND e.kind = 'message'"
    sent = query(
        path,
        f"SELECT {SENDER}, (e.created_ms - ?) / ?, count(*) FROM events e"
        f" WHERE {newest} AND e.created_ms >= ? GROUP BY 1, 2",
        EVENTS_MAX,
        params=(since_ms, bucket_ms, since_ms),
    )
    ways = query(
        path,
        "SELECT d.recipient, d.state, d.submitted_ms - e.created_ms FROM events e"
        f" JOIN deliveries d ON d.event = e.seq WHERE {newest} AND e.created_ms >= ?"
        " ORDER BY e.seq DESC",
        EVENTS_MAX,
        params=(since_ms,),
    )
    states: dict[str, int] = {}
    took: dict[str, list[int]] = {}
    for who, state, milliseconds in ways.rows:
        states[str(state)] = states.get(str(state), 0) + 1
        if isinstance(milliseconds, int):
            took.setdefault(str(who), []).append(max(0, milliseconds))
    latency = {
        who: {"number": len(all_), "median_ms": _percentile(all_, 50)}
        | {"p95_ms": _percentile(all_, 95)}
        for who, all_ in took.items()
    }
    return {"sent": [list(row) for row in sent.rows], "latency": latency, "states": states}


def _percentile(values: list[int], percent: int) -> int:
    if len(values) == 1:
        return values[0]
    return round(quantiles(values, n=100, method="inclusive")[percent - 1])
