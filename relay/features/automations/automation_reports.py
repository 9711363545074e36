"""The ops that show automations: all of them, one with its health, and how it ran.

Agents may ask for them, too, but not for what they did: that has words of others in it.
"""

from __future__ import annotations

from contextlib import suppress

from relay.broker.batch import AnyRequest, Batch, Handler
from relay.broker.directory import Directory
from relay.broker.ops_query import fitting
from relay.core.errors import UsageError
from relay.features.automations import automation_rows
from relay.features.automations.automation_registry import AutomationRegistry
from relay.features.automations.automation_rows import AutomationRow, AutomationStatus
from relay.features.automations.circuit import Circuit
from relay.features.automations.clock import local_zone
from relay.features.automations.schedules import Schedule
from relay.ledger.store import Ledger
from relay.protocol.broker import ROWS_MAX, Json

#: Versions that are shown of one.
_VERSIONS_SHOWN = 20


class AutomationReports:
    """Shows automations."""

    def __init__(self, ledger: Ledger, directory: Directory, registry: AutomationRegistry) -> None:
        self._ledger = ledger
        self._directory = directory
        self._registry = registry

    def handlers(self) -> dict[str, Handler]:
        """The handler of each op."""
        return {
            "automations": self.listed,
            "automation_info": self.info,
            "automation_runs": self.runs,
        }

    def listed(self, request: AnyRequest, batch: Batch) -> Json:
        """All of one ``status``, or all that are not deleted; ``by``: who registered them."""
        status, by = request.fields.get("status"), request.fields.get("by")
        wanted = list(AutomationStatus)[:-1]  # those that are not deleted
        if status is not None:
            if status not in tuple(AutomationStatus):
                known = ", ".join(AutomationStatus)
                raise UsageError(f"no automation is {status!r}", hint=f"one of {known}")
            wanted = [AutomationStatus(status)]
        found = automation_rows.by_status(self._ledger, *wanted)
        if by is not None:
            found = [one for one in found if str(by).lower() in one.registered_by.lower()]
        rows, cut = fitting([self._shown(one, batch) for one in found])
        return {"rows": rows, "more": cut}

    def info(self, request: AnyRequest, batch: Batch) -> Json:
        """One of them, with its health and its versions; with ``source`` its text, too."""
        row = automation_rows.find(self._ledger, text_of(request, "name"))
        about = self._shown(row, batch)
        about["health"] = automation_rows.health(self._ledger, row.id, batch.now_ms)
        about["versions"] = automation_rows.versions(self._ledger, row.id, _VERSIONS_SHOWN)
        about["config"] = (row.definition or {}).get("config", {})
        if request.fields.get("source"):
            about["source"] = automation_rows.source(self._ledger, row.id, row.version)
        return {"automation": about}

    def runs(self, request: AnyRequest, batch: Batch) -> Json:
        """The newest runs of one, the newest first."""
        self._directory.check_person(request, "see what automations did")
        row = automation_rows.find(self._ledger, text_of(request, "name"))
        limit = request.fields.get("limit", 50)
        if type(limit) is not int or not 0 < limit <= ROWS_MAX:
            raise UsageError(f"a limit is a number up to {ROWS_MAX}")
        errors_only = bool(request.fields.get("errors_only"))
        found = automation_rows.runs(self._ledger, row.id, limit + 1, errors_only=errors_only)
        rows, cut = fitting(found[:limit])
        return {"rows": rows, "more": cut or len(found) > limit}

    def _shown(self, row: AutomationRow, batch: Batch) -> Json:
        return shown(row, batch.now_ms, self._registry.problems.get(row.id))


def shown(row: AutomationRow, now_ms: int, problem: str | None = None) -> Json:
    """One automation as the ops show it; ``problem``: why it is not run although it is active."""
    told = row.definition or {}
    circuit = Circuit(row.errors, row.opened_ms).state(now_ms)
    names = ("description", "triggers", "schedule", "blocking", "priority", "deadline")
    return {
        "id": row.id,
        "name": row.name,
        "version": row.version,
        "status": row.status.value,
        "reason": problem or row.reason,
        **{name: told.get(name) for name in names},
        "folder": row.folder,
        "path": row.path,
        "sha256": row.sha256,
        "loaded": row.definition is not None,
        "registered_by": row.registered_by,
        "created_ms": row.created_ms,
        "updated_ms": row.updated_ms,
        "circuit": circuit.value,
        "errors": row.errors,
        "opened_ms": row.opened_ms,
        "skipped": row.skipped,
        "last_fired_ms": row.last_fired_ms,
        "next_tick_ms": row.next_tick_ms,
        "over": row.next_tick_ms is None and _is_over(told.get("schedule") or {}, now_ms),
    }


def _is_over(schedule: Json, now_ms: int) -> bool:
    """Whether the one time of a schedule is past."""
    with suppress(UsageError):  # its time zone is not known any more, say
        if "at" in schedule:
            return Schedule.of(schedule).next_after(now_ms, local_zone()) is None
    return False


def text_of(request: AnyRequest, name: str) -> str:
    """The field ``name`` of a request. Raises UsageError without one."""
    value = request.fields.get(name)
    if not isinstance(value, str) or not value:
        raise UsageError(f"the {name} of an automation is a text")
    return value
