"""The automations that are active, in memory: every event is held against their triggers.

A file of its own, because who runs them, who keeps the clock and who changes them meet in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay.core.errors import UsageError
from relay.features.automations import automation_rows
from relay.features.automations.automation_rows import AutomationRow, AutomationStatus
from relay.features.automations.circuit import Circuit
from relay.features.automations.definition import Definition
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
        self.active: dict[str, ActiveAutomation] = {}
        #: Why one cannot be run that is registered as active.
        self.problems: dict[str, str] = {}
        for row in automation_rows.by_status(ledger, AutomationStatus.ACTIVE):
            self._take(row)

    def refresh(self, id_: str) -> None:
        """Read one again: it was changed, or a run of it was stored."""
        known = self.active.pop(id_, None)
        self.problems.pop(id_, None)
        row = automation_rows.by_id(self._ledger, id_)
        if row is None or row.status is not AutomationStatus.ACTIVE:
            return
        if known is not None and known.row.version == row.version:
            self.active[id_] = ActiveAutomation(row, known.definition)
        else:
            self._take(row)

    def _take(self, row: AutomationRow) -> None:
        try:
            self.active[row.id] = ActiveAutomation(row, Definition.of(row.definition))
        except UsageError as error:  # its time zone is not known any more, say
            self.problems[row.id] = f"it is not run: {error.message}"

    def source(self, one: ActiveAutomation) -> str:
        """The text that was registered; it is not kept in memory."""
        return automation_rows.source(self._ledger, one.row.id, one.row.version)
