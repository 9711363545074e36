"""A governed project, as one agent works in it: its gate, its intents and its trace together.

Imported where a project is governed only: a session, a headless turn, which are to start quickly
elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from relay.agents.hook_codec import AgentHookCall
from relay.core.errors import RelayError, UsageError, did_you_mean
from relay.core.visible import visible
from relay.features.governance import refusals
from relay.features.governance.call_plan import GateCall, gate_call
from relay.features.governance.confined_shell import ConfinedShell
from relay.features.governance.gate import Gate, surely_reads
from relay.features.governance.governance_store import Lease
from relay.features.governance.intents import Status, intent_context, reminder, rules
from relay.features.governance.orchestration import IntentsFile, add_lesson, read_lessons
from relay.features.governance.shell_lines import UnreadableLine, commands_of
from relay.features.governance.start import ACTIONS, held_shell
from relay.features.governance.trace import Trace
from relay.features.governance.trace_records import TraceEntry, TraceKind


@dataclass(frozen=True, slots=True)
class GovernedProject:
    """What an agent of the kind that ``gate.run`` says does there, and what it is told.

    ``close`` gives back what was opened.
    """

    gate: Gate
    intents: IntentsFile
    trace: Trace
    now_ms: Callable[[], int]
    #: The model that spoke last; "" where nothing says.
    model: Callable[[], str]
    close: Callable[[], None]

    def hold(self, run_folder: str, env: dict[str, str], cwd: str) -> dict[str, str]:
        """Have the kernel hold the agent's shell calls, where that can be, before it starts;
        returns what its environment has to hold beside ``env``. Raises OSError."""
        kind = self.gate.run.kind
        added, given = held_shell(run_folder, kind, env, cwd)
        if given:
            self.gate.run = replace(self.gate.run, shell=ConfinedShell(run_folder, kind, **given))
        return added

    # -- around a tool call

    async def before(self, call: AgentHookCall, seconds: float) -> str:
        """Why the call is refused, as one JSON object; "" where it is not. Never raises."""
        asked = self._call(call)
        try:
            async with asyncio.timeout(seconds):
                refusal = await self.gate.before(asked)
        except Exception as error:
            traceback.print_exc()  # into the log of this run
            refusal = None if surely_reads(asked) else refusals.engine_failed(error)
        return "" if refusal is None else refusal.text(asked.tool)

    def waits(self) -> list[Lease]:
        """The leases of others for which the call was refused that was asked about last. Once."""
        waits, self.gate.waits = self.gate.waits, []
        return waits

    def agreed(self, call: AgentHookCall) -> bool:
        """Whether a person has agreed to this very call, which goes on now."""
        return self.gate.agreed(self._call(call))

    async def after(self, call: AgentHookCall) -> str:
        """Have it written down what the call did, whether or not anybody waits; returns what it
        has changed against its intent. Never raises."""
        try:
            return await asyncio.shield(asyncio.ensure_future(self.gate.after(self._call(call))))
        except Exception:
            traceback.print_exc()
            return ""

    def _call(self, call: AgentHookCall) -> GateCall:
        run = self.gate.run
        return gate_call(run.kind, call, self.model(), mcp=run.mcp)

    async def select_in_shell(self, call: AgentHookCall) -> None:
        """Do what ``relay intent select ID`` asks that is about to run in the shell of an agent
        which no session serves; the command itself then shows what came of it."""
        use = self._call(call).use
        words: list[str] = []
        with contextlib.suppress(UnreadableLine):
            commands = commands_of(use.command)
            words = [one.text for one in commands[0].words] if len(commands) == 1 else []
        if words[:3] == ["relay", "intent", "select"] and len(words) > 3:
            with contextlib.suppress(RelayError):
                await self.gate.select(words[3])

    # -- what the agent, or somebody for it, wants of its intents

    async def do(self, action: str, text: str, person: str = "") -> str:
        """Do one of ACTIONS, and say what came of it; ``person``: who wants it instead of the
        agent. Raises RelayError."""
        if action == "select":
            selected = await self.gate.select(text, person)
            lessons = await asyncio.to_thread(read_lessons, self.trace.root)
            return intent_context(selected, lessons)
        if action == "learn":
            return await self._learn(text)
        if action == "list":
            return await asyncio.to_thread(self.rules)
        if action == "status" and text:
            return await self.set_status(*text.partition(" ")[::2])
        if action == "status":
            chosen = await asyncio.to_thread(self.gate.selected)
            return reminder(chosen) if chosen else "No intent is selected."
        raise UsageError(f"there is no {action!r}", hint=did_you_mean(action, ACTIONS))

    async def set_status(self, id_: str, status: str) -> str:
        """The agent says that its intent is done, or blocked; all else the person says."""
        chosen = await asyncio.to_thread(self.gate.selected)
        status = status.strip()
        if chosen is None or chosen.id != id_ or status not in (Status.COMPLETE, Status.BLOCKED):
            raise RelayError(
                "an agent may only set the intent that it has selected, to COMPLETE or BLOCKED",
                hint="the person does the rest",
                code="forbidden",
            )
        changed = await asyncio.to_thread(
            self.intents.set_status, id_, Status(status), only_from=(Status.IN_PROGRESS,)
        )
        how = {"event": "status", "intent": id_, "from": chosen.status.value, "to": status}
        await self.note(how, id_)
        return f"{visible(id_)} is {changed.status.value} now: no agent can write for it any more."

    async def selected(self) -> str:
        """The id of the intent that counts now; "": none."""
        chosen = await asyncio.to_thread(self.gate.selected)
        return chosen.id if chosen else ""

    def rules(self, *, words: bool = True) -> str:
        """What an agent is told of governance at its start; see intent_context.rules."""
        try:
            return rules(self.intents.read().intents.values(), words=words)
        except RelayError as error:
            return f"{rules((), words=words)}\nThey cannot be read now: {error.message}"

    async def turn_ended(self, *, chosen: bool = False) -> tuple[str, str]:
        """Give back what the turn took; (what to remind the agent of in its next one, what was
        changed against its intent), "" for nothing.

        ``chosen``: it was selected in words, which are answered in the next turn.
        """
        violations = await self.gate.turn_ended(chosen=chosen)
        intent = await asyncio.to_thread(self.gate.selected)
        return reminder(intent) if intent else "", violations

    async def ended(self) -> None:
        """The agent has ended: forget it here, and close."""
        try:
            await self.gate.ended()
        finally:
            self.close()

    async def note(
        self, what: dict[str, Any], intent_id: str = "", kind: TraceKind = TraceKind.GOVERNANCE
    ) -> None:
        """Write into the trace what happened beside the calls. Raises StorageError."""
        run = self.gate.run
        entry = TraceEntry(kind, run.agent, run.run, intent_id, metadata=what)
        await asyncio.to_thread(self.trace.append, entry)

    async def _learn(self, text: str) -> str:
        root, agent = self.trace.root, self.gate.run.agent
        if not await asyncio.to_thread(add_lesson, root, text, agent, self.now_ms()):
            return "It is known already."
        await self.note({"text": text}, await self.selected(), TraceKind.LESSON)
        return "Every agent that selects an intent here reads it from now on."
