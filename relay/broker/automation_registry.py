"""The automations that are active, in memory: every event is held against their triggers.

A file of its own, because who runs them, who keeps the clock and who changes them meet in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay.automation.circuit import Circuit
from relay.automation.definition import Definition
from relay.core.errors import UsageError
from relay.ledger import automation_rows
from relay.ledger.automation_rows import AutomationRow, AutomationStatus
from relay.ledger.store import Ledger


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
        rows = automation_rows.by_status(ledger, AutomationStatus.ACTIVE)
        self.active = {row.id: one for row in rows if (one := _active(row)) is not None}

    def refresh(self, id_: str) -> None:
        """Read one again: it was changed, or a run of it was stored."""
        row = automation_rows.by_id(self._ledger, id_)
        one = None if row is None else _active(row)
        if one is None:
            self.active.pop(id_, None)
        else:
            self.active[id_] = one

    def source(self, one: ActiveAutomation) -> str:
        """The text that was registered; it is not kept in memory."""
        return automation_rows.source(self._ledger, one.row.id, one.row.version)


def _active(row: AutomationRow) -> ActiveAutomation | None:
    if row.status is not AutomationStatus.ACTIVE or row.definition is None:
        return None
    try:
        return ActiveAutomation(row, Definition.of(row.definition))
    except UsageError:  # its time zone is not known any more, say: the reports tell it
        return None
