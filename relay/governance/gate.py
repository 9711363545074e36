"""The gate: asked before each call of an agent's tool, and told after it.

It says yes, or why not (relay.governance.refusals). What blocks (files, the store, the trace) runs
in threads, one call of a run after the other; a person is waited for beside it.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from relay.agents.tool_uses import ToolUse, UseKind
from relay.core.errors import RelayError
from relay.governance import refusals
from relay.governance.approvals import Approver
from relay.governance.governance_store import GovernanceStore, Selection
from relay.governance.governed_paths import is_governed
from relay.governance.intents import Intent, IntentDocument, Status
from relay.governance.refusals import Refusal


class IntentsReader(Protocol):
    """What the gate uses of relay.governance.intents_file."""

    def read(self) -> IntentDocument:
        """Return the file as it is now. Raises RelayError with all that is wrong with it."""
        ...

    def set_status(self, id: str, status: Status, *, only_from: tuple[Status, ...]) -> Intent:
        """Write an intent's status into the file. Raises RelayError."""
        ...


class TraceWriter(Protocol):
    """What the gate uses of relay.governance.trace."""

    def check(self) -> None:
        """Raise StorageError where a record could not be written."""
        ...


@dataclass(frozen=True, slots=True)
class GovernedRun:
    """Whose calls these are."""

    run: str
    agent: str
    session: str
    #: The governed folder, absolute and without links.
    root: str
    #: Where the agent was started.
    cwd: str
    #: A process that lives as long as the agent does: leases of a dead one are free.
    pid: int
    kind: str = ""
    model: str = ""
    #: Real folders outside of the root in which it may write; the first is named in refusals.
    scratch: tuple[str, ...] = ()
    #: Real folders in which it never may, such as RELAY_HOME.
    kept_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GateCall:
    """One call of a tool."""

    tool: str
    use: ToolUse
    #: The same before and after it; "" where the agent gives none.
    id: str = ""
    #: What relative paths are relative to; "": where the agent was started.
    cwd: str = ""


class Gate:
    """Decides on the calls of one run."""

    def __init__(
        self,
        run: GovernedRun,
        *,
        intents: IntentsReader,
        store: GovernanceStore,
        trace: TraceWriter,
        approver: Approver | None,
        now_ms: Callable[[], int],
    ) -> None:
        self.run = run
        self._intents = intents
        self._store = store
        self._trace = trace
        self._approver = approver
        self._now_ms = now_ms
        self._lock = threading.Lock()

    async def before(self, call: GateCall) -> Refusal | None:
        """Say why ``call`` must not happen; None where it may. Raises CancelledError only."""
        try:
            return await asyncio.to_thread(self._check, call)
        except Exception as error:
            traceback.print_exc()  # into the log of this run
            if call.use.kind in (UseKind.READ, UseKind.OTHER):
                return None
            return refusals.engine_failed(error)

    async def after(self, call: GateCall) -> None:
        """Note what ``call`` has done. Raises CancelledError only."""

    async def turn_ended(self) -> None:
        """Give back what was taken for a turn. As often as one likes."""
        await asyncio.to_thread(self._store.release, self.run.run)

    async def ended(self) -> None:
        """Forget the run: its agent has ended."""
        await self.turn_ended()
        await asyncio.to_thread(self._store.unselect, self.run.run)

    async def select(self, intent: str, person: str = "") -> Intent:
        """Have the agent work on ``intent`` from now on; ``person``: who selects it instead.

        Raises RelayError, with what could be selected.
        """
        return await asyncio.to_thread(self._select, intent.strip(), person)

    def selected(self) -> Intent | None:
        """The intent that the agent works on, where it still allows anything."""
        chosen = self._store.selection(self.run.run)
        try:
            intent = self._intents.read().intents.get(chosen.intent) if chosen else None
        except RelayError:
            return None
        return intent if intent is not None and intent.status is Status.IN_PROGRESS else None

    def _select(self, id_: str, person: str) -> Intent:
        with self._lock:
            intents = self._intents.read().intents
            intent = intents.get(id_)
            if intent is None:
                raise refusals.no_such_intent(id_, intents)
            if intent.status not in (Status.PENDING, Status.IN_PROGRESS):
                raise refusals.not_selectable(intent, intents)
            if intent.status is Status.PENDING:
                intent = self._intents.set_status(
                    id_, Status.IN_PROGRESS, only_from=(Status.PENDING,)
                )
            run = self.run
            self._store.select(Selection(run.run, run.root, run.agent, id_, self._now_ms()))
            return intent

    def _check(self, call: GateCall) -> Refusal | None:
        with self._lock:
            if call.use.kind in (UseKind.READ, UseKind.OTHER):
                return None
            if self._store.switch(self.run.root) is not None:
                return None
            return self._why_not_now()

    def _why_not_now(self) -> Refusal | None:
        """Why the run may change nothing at all."""
        if not is_governed(self.run.root):
            return refusals.intents_invalid(
                "its folder .orchestration is gone, or is no longer one"
            )
        try:
            intents: Mapping[str, Intent] = self._intents.read().intents
        except RelayError as error:
            return refusals.intents_invalid(error.line)
        chosen = self._store.selection(self.run.run)
        if chosen is None or chosen.root != self.run.root:
            return refusals.intent_required(intents)
        intent = intents.get(chosen.intent)
        if intent is None or intent.status is not Status.IN_PROGRESS:
            return refusals.intent_inactive(chosen.intent, intents)
        return None
