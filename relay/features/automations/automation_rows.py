"""Automations as the ledger has them: what is registered and in which versions, what they keep, how
they ran; and the active ones in memory.

Runs are written by relay.features.automations.automation_runs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from relay.core.errors import NotFound, UsageError, did_you_mean
from relay.features.automations.circuit import Circuit
from relay.features.automations.definition import Definition
from relay.features.automations.ops import (
    AutomationHealth,
    AutomationRunRow,
    RunCounts,
    ShownVersion,
)
from relay.ledger.store import Ledger

Json = dict[str, Any]

#: Of so many runs the health of an automation is made.
WINDOW = 100
#: And of those of the last day at most so many are counted.
_DAY_MS, _DAY_MAX = 86_400_000, 10_000
_OWN = (
    "id, name, version, status, reason, folder, registered_by, created_ms, updated_ms, errors,"
    " opened_ms, skipped, last_fired_ms, next_tick_ms"
)
_SELECT = (
    f"SELECT {', '.join(f'a.{one.strip()}' for one in _OWN.split(','))},"
    " ifnull(v.path, ''), ifnull(v.sha256, ''), v.definition_json FROM automations a"
    # A ledger that was damaged may have lost a version: its automation is shown, and not run.
    " LEFT JOIN automation_versions v ON v.automation = a.id AND v.version = a.version"
)


class AutomationStatus(StrEnum):
    """Whether an automation is run: a paused one waits for the person to have looked at it."""

    ACTIVE = "active"
    PAUSED = "paused"
    DISABLED = "disabled"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class AutomationRow:
    """One automation with its present version. ``definition``: as Definition.to_json has it; None
    where its file was never loaded. ``folder``: the project whose events it is limited to."""

    id: str
    name: str
    version: int
    status: AutomationStatus
    reason: str | None
    folder: str | None
    registered_by: str
    created_ms: int
    updated_ms: int
    errors: int
    opened_ms: int | None
    skipped: int
    last_fired_ms: int | None
    next_tick_ms: int | None
    path: str
    sha256: str
    definition: Json | None


def by_status(ledger: Ledger, *statuses: AutomationStatus) -> list[AutomationRow]:
    """Those in one of these states, by name."""
    marks = ",".join("?" * len(statuses))
    return _rows(ledger, f"a.status IN ({marks}) ORDER BY a.name", statuses)


def by_id(ledger: Ledger, id_: str) -> AutomationRow | None:
    """The one with this id."""
    found = _rows(ledger, "a.id=?", (id_,))
    return found[0] if found else None


def named(ledger: Ledger, name: str) -> AutomationRow | None:
    """The one of this name that is not deleted."""
    found = _rows(ledger, "a.name=? AND a.status != 'deleted'", (name,))
    return found[0] if found else None


def find(ledger: Ledger, name: str) -> AutomationRow:
    """The one of this name. Raises NotFound."""
    found = named(ledger, name)
    if found is None:
        rows = ledger.rows("SELECT name FROM automations WHERE status != 'deleted'")
        hint = did_you_mean(name, [row[0] for row in rows])
        hint = hint or "register one: relay automation register FILE"
        raise NotFound(f"there is no automation {name}", hint=hint)
    return found


def counts(ledger: Ledger, unusable: Collection[str] = ()) -> dict[str, int]:
    """How many there are in each state, without the deleted ones. ``resting``: those whose circuit
    is not closed; ``unusable``: those that are active, and cannot be run."""
    found = ledger.rows(
        "SELECT CASE WHEN id IN (SELECT value FROM json_each(?)) THEN 'unusable'"
        " WHEN status='active' AND opened_ms NOT NULL THEN 'resting' ELSE status END"
        " AS state, count(*) FROM automations WHERE status != 'deleted' GROUP BY state",
        (json.dumps(list(unusable)),),
    )
    return dict(found)


def count_unseen(ledger: Ledger) -> int:
    """How many wait that were registered and never loaded."""
    found = ledger.row(
        "SELECT count(*) FROM automations a JOIN automation_versions v ON v.automation = a.id"
        " AND v.version = a.version WHERE a.status != 'deleted' AND v.definition_json IS NULL"
    )
    return int(found[0])


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """What is registered: a file's text as it was, and what it says once it was loaded."""

    path: str
    sha256: str
    source: str
    definition: Json | None
    registered_by: str


def add(
    ledger: Ledger,
    id_: str,
    name: str,
    status: AutomationStatus,
    folder: str | None,
    version: RegisteredVersion,
    now_ms: int,
    *,
    reason: str | None = None,
) -> None:
    """Append a new automation and its first version, within the open transaction."""
    ledger.change(
        "INSERT INTO automations (id, name, version, status, reason, folder, registered_by,"
        " created_ms, updated_ms) VALUES (?,?,1,?,?,?,?,?,?)",
        (id_, name, status.value, reason, folder, version.registered_by, now_ms, now_ms),
    )
    _add_version(ledger, id_, 1, version, now_ms)


def add_version(
    ledger: Ledger, row: AutomationRow, version: RegisteredVersion, now_ms: int
) -> None:
    """Have the next version run from now on, with a closed circuit."""
    ledger.change(
        "UPDATE automations SET version=version+1, updated_ms=?, errors=0,"
        " opened_ms=NULL, next_tick_ms=NULL WHERE id=?",
        (now_ms, row.id),
    )
    _add_version(ledger, row.id, row.version + 1, version, now_ms)


def _add_version(
    ledger: Ledger, id_: str, number: int, version: RegisteredVersion, now_ms: int
) -> None:
    told = None if version.definition is None else json.dumps(version.definition)
    about = (version.path, version.sha256, told, version.registered_by, now_ms)
    row = (id_, number, *about, version.source)  # last: reading the others skips its pages
    ledger.change("INSERT INTO automation_versions VALUES (?,?,?,?,?,?,?,?)", row)


def set_definition(ledger: Ledger, row: AutomationRow, definition: Json) -> None:
    """What the present version says, now that it was loaded."""
    ledger.change(
        "UPDATE automation_versions SET definition_json=? WHERE automation=? AND version=?",
        (json.dumps(definition), row.id, row.version),
    )


def rename(ledger: Ledger, id_: str, name: str) -> None:
    """The name that its file says, which was called after the file before."""
    ledger.change("UPDATE automations SET name=? WHERE id=?", (name, id_))


def set_status(
    ledger: Ledger, id_: str, status: AutomationStatus, reason: str | None, now_ms: int
) -> None:
    """Switch one on or off. What is switched on begins with a closed circuit, and a new clock."""
    begin = "next_tick_ms=NULL"
    begin += ", errors=0, opened_ms=NULL" if status is AutomationStatus.ACTIVE else ""
    ledger.change(
        f"UPDATE automations SET status=?, reason=?, updated_ms=?, {begin} WHERE id=?",
        (status.value, reason, now_ms, id_),
    )


def set_next_tick(ledger: Ledger, id_: str, due_ms: int | None) -> None:
    """When its schedule is next."""
    ledger.change("UPDATE automations SET next_tick_ms=? WHERE id=?", (due_ms, id_))


def source(ledger: Ledger, id_: str, version: int) -> str:
    """The text that was registered as this version. Raises NotFound without one."""
    found = ledger.row(
        "SELECT source FROM automation_versions WHERE automation=? AND version=?", (id_, version)
    )
    if found is None:
        raise NotFound(
            f"the text of version {version} is not in the ledger any more",
            hint="relay automation delete it, and register its file again",
        )
    return str(found[0])


def versions(ledger: Ledger, id_: str, limit: int) -> list[ShownVersion]:
    """The newest versions, the newest first."""
    names = ("version", "path", "sha256", "registered_by", "created_ms")
    found = ledger.rows(
        f"SELECT {', '.join(names)} FROM automation_versions WHERE automation=?"
        " ORDER BY version DESC LIMIT ?",
        (id_, limit),
    )
    return [cast(ShownVersion, dict(zip(names, row, strict=True))) for row in found]


# -- what it keeps


def state(ledger: Ledger, id_: str) -> Json:
    """What the automation keeps in ``ctx.state``."""
    found = ledger.rows("SELECT key, value_json FROM automation_state WHERE automation=?", (id_,))
    return {key: json.loads(value) for key, value in found}


def save_state(ledger: Ledger, id_: str, changes: Mapping[str, Any], now_ms: int) -> None:
    """Store what changed; None: the key is gone."""
    gone = [(id_, key) for key, value in changes.items() if value is None]
    kept = [
        (id_, key, json.dumps(value), now_ms) for key, value in changes.items() if value is not None
    ]
    with ledger.guard() as db:
        db.executemany("DELETE FROM automation_state WHERE automation=? AND key=?", gone)
        db.executemany("INSERT OR REPLACE INTO automation_state VALUES (?,?,?,?)", kept)


# -- how it runs


def health(ledger: Ledger, id_: str, now_ms: int) -> AutomationHealth:
    """Of the last runs, and of those of the last day: counts, and how long they took in ms."""
    found = ledger.rows(
        "SELECT started_ms, latency_us, fired, error FROM automation_runs WHERE automation=?"
        " ORDER BY seq DESC LIMIT ?",
        (id_, _DAY_MAX),
    )
    failed = next((row for row in found if row[3] is not None), None)
    return {
        "window": _counts(found[:WINDOW]),
        "day": _counts([row for row in found if row[0] > now_ms - _DAY_MS]),
        "last_run_ms": found[0][0] if found else None,
        "last_error_ms": failed[0] if failed else None,
        "last_error": failed[3] if failed else None,
    }


def _counts(runs: Sequence[tuple[int, int, int, str | None]]) -> RunCounts:
    took = sorted(one[1] / 1000 for one in runs)
    return {
        "runs": len(runs),
        "errors": sum(one[3] is not None for one in runs),
        "fires": sum(one[2] for one in runs),
        "avg_ms": round(sum(took) / len(took), 3) if took else None,
        "p95_ms": round(took[-(-len(took) * 95 // 100) - 1], 3) if took else None,
    }


def runs(
    ledger: Ledger, id_: str, limit: int, *, errors_only: bool
) -> list[tuple[AutomationRunRow, tuple[str, str] | None]]:
    """The newest runs, the newest first; each with the persona, and the configuration that is asked
    for it, that its dispatch waits for."""
    failed = " AND r.error IS NOT NULL" if errors_only else ""
    found = ledger.rows(
        "SELECT e.id, e.kind, e.channel, e.agent, r.version, r.started_ms, r.latency_us,"
        " r.llm_calls, r.error, r.log, r.fired, r.retry, r.result_json, d.persona, d.config"
        " FROM automation_runs r JOIN events e ON e.seq = r.event"
        " JOIN automations a ON a.id = r.automation LEFT JOIN dispatches d ON d.event = r.event"
        " AND d.hook_id = 'automation/' || a.name AND d.open AND d.state = 'queued'"
        f" WHERE r.automation=?{failed}"
        " ORDER BY r.seq DESC LIMIT ?",
        (id_, limit),
    )
    names = (
        *("event", "kind", "channel", "sender", "version", "started_ms", "latency_us"),
        *("llm_calls", "error", "log"),
    )
    made: list[tuple[AutomationRunRow, tuple[str, str] | None]] = []
    for row in found:
        run: Json = dict(zip(names, row, strict=False))
        run |= {"fired": bool(row[10]), "retry": bool(row[11])}
        run["result"] = json.loads(row[12]) if row[12] else None
        waiting = None if row[13] is None else (row[13], row[14])
        made.append((cast(AutomationRunRow, run), waiting))
    return made


def _rows(ledger: Ledger, where: str, values: Sequence[Any]) -> list[AutomationRow]:
    made = []
    for row in ledger.rows(f"{_SELECT} WHERE {where}", tuple(values)):
        definition = json.loads(row[-1]) if row[-1] else None
        made.append(AutomationRow(*(*row[:3], AutomationStatus(row[3]), *row[4:-1], definition)))
    return made


@dataclass(frozen=True, slots=True)
class ActiveAutomation:
    """One that is run: its row, and what its file says."""

    row: AutomationRow
    definition: Definition

    @property
    def id(self) -> str:
        """The automation's, whatever its version."""
        return self.row.id

    @property
    def circuit(self) -> Circuit:
        """As its last run left it."""
        return Circuit(self.row.errors, self.row.opened_ms)


class AutomationRegistry:
    """All that are active, by id. Belongs to the broker's loop."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.active: dict[str, ActiveAutomation] = {}
        #: Grows whenever another automation, or another version of one, is active.
        self.generation = 0
        #: Why one cannot be run that is registered as active.
        self.problems: dict[str, str] = {}
        for row in by_status(ledger, AutomationStatus.ACTIVE):
            self._take(row)

    def refresh(self, id_: str) -> None:
        """Read one again: it was changed, or a run of it was stored."""
        known = self.active.pop(id_, None)
        self.problems.pop(id_, None)
        row = by_id(self._ledger, id_)
        is_active = row is not None and row.status is AutomationStatus.ACTIVE
        if row is not None and is_active and known is not None and known.row.version == row.version:
            self.active[id_] = ActiveAutomation(row, known.definition)
            return
        self.generation += 1
        if row is not None and is_active:
            self._take(row)

    def _take(self, row: AutomationRow) -> None:
        try:
            self.active[row.id] = ActiveAutomation(row, Definition.of(row.definition))
        except UsageError as error:  # its time zone is not known any more, say
            self.problems[row.id] = f"it is not run: {error.message}"

    def source(self, one: ActiveAutomation) -> str:
        """The text that was registered; it is not kept in memory."""
        return source(self._ledger, one.row.id, one.row.version)
