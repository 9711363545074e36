"""Claims: agents that work in one folder without intents are told of each other's changes.

They are the leases and the baselines of governed projects (governance_store), taken in the file
system's root instead of a project's, so that it does not matter where each agent was started. What
an agent changes is its own until its turn is over; who had a file last stays known for a day.

Paths are words of an agent: only what really lies below the folder that it works in counts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from relay.agents.hook_codec import AgentHookCall
from relay.core.paths import is_within
from relay.features.governance import refusals
from relay.features.governance.call_plan import (
    PATHS_MAX,
    FileState,
    GateCall,
    GovernedRun,
    Target,
    gate_call,
    kind_of,
    plan_of,
    read_states,
)
from relay.features.governance.commands import CommandUse
from relay.features.governance.governance_store import GovernanceStore, Lease, start_of
from relay.features.governance.governed_paths import protected
from relay.features.governance.intents import GovernanceSettings
from relay.features.governance.refusals import Refusal

#: Keys of files are relative to it.
ROOT = "/"
#: Milliseconds that a claim lasts without a further write, and that its end is known.
CLAIM_MS, KNOWN_MS = 600_000, 86_400_000


@dataclass(frozen=True, slots=True)
class Clash:
    """What an agent is to know before a call; nothing where all is empty."""

    #: Files that others have changed since the agent read them, and why it matters.
    stale: tuple[tuple[str, str], ...] = ()
    #: Files that others are changing.
    held: tuple[Lease, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.stale or self.held)

    def refusal(self, now_ms: int) -> Refusal:
        """The same, where it must not go on."""
        if self.held:
            whole = [replace(one, path=os.path.join(ROOT, one.path)) for one in self.held]
            return refusals.file_leased(whole, now_ms)
        return refusals.stale_file(self.stale)

    def text(self, now_ms: int) -> str:
        """The same for a call that goes on."""
        said = [f"{self.refusal(now_ms).error}."] if self.held else []
        if self.stale:
            said.append(refusals.stale_file(self.stale).error)
        return (
            f"relay: {' '.join(said)} Look at what is there now before you go on, and undo nothing"
            " of theirs."
        )


class FolderClaims:
    """Those of one run, whose ``root`` is ROOT, in ``folder``. For any thread; waits for the disk,
    and raises OSError and StorageError."""

    def __init__(
        self,
        run: GovernedRun,
        folder: str,
        store: GovernanceStore,
        *,
        refuse: bool,
    ) -> None:
        self._run = run
        self._folder = folder
        self._store = store
        self._refuse = refuse
        self._start = start_of(run.pid)
        self._lock = threading.Lock()

    def call(self, call: AgentHookCall) -> GateCall:
        """A call as the agent's hook tells of it."""
        return gate_call(self._run.kind, call, mcp=self._run.mcp)

    def before(self, call: GateCall, now_ms: int) -> Clash:
        """Note what the call reads, and claim what it changes."""
        with self._lock:
            plan = plan_of(self._kind(call), self._run, call, False)
            read = {one.path: one.key for one in plan.reads if self._counts(one)}
            self._note(read, read_states(read))
            targets = {one.key or "": one for one in plan.targets if self._counts(one)}
            if not targets:
                return Clash()
            now, run = now_ms, self._run
            last = {one.path: one for one in self._store.last(ROOT, targets) if one.run != run.run}
            over = {one.path for one in self._store.free(list(last.values()), now)}
            held = tuple(one for key, one in last.items() if key not in over)
            stale = self._stale({key: targets[key] for key in last if key in over}, last, now)
            if self._refuse and (held or stale):
                return Clash(() if held else stale, held)
            who = (run.run, run.agent, run.pid, self._start, "", now, now + CLAIM_MS)
            wanted = [Lease(ROOT, key, *who) for key in targets]
            if len(wanted) + len(self._store.held(run.run)) <= PATHS_MAX:
                # Who goes on nevertheless is the next of whom the others are told.
                others, _ = self._store.take(wanted, now, force=not self._refuse)
                held = held or tuple(others)
            return Clash(stale, held)

    def after(self, call: GateCall) -> None:
        """The call is over: the agent knows what it has written itself."""
        with self._lock:
            plan = plan_of(self._kind(call), self._run, call, False)
            both = (*plan.reads, *plan.targets)
            paths = {one.path: one.key for one in both if self._counts(one)}
            self._note(paths, read_states(paths))

    def turn_ended(self, now_ms: int) -> None:
        """Give back what was claimed; that the run had it last stays known."""
        with self._lock:
            held = {os.path.join(ROOT, one.path): one.path for one in self._mine(now_ms)}
            self._note(held, read_states(held))
            self._store.expire(self._run.run, now_ms, KNOWN_MS)

    def ended(self, now_ms: int) -> None:
        """The agent has ended."""
        with self._lock:
            self._store.expire(self._run.run, now_ms, KNOWN_MS)
            self._store.forget_read(self._run.run)
            self._store.close()

    def free(self, leases: Sequence[Lease], now_ms: int) -> list[Lease]:
        """Those of others' ``leases`` that hold no more."""
        return self._store.free(leases, now_ms)

    def holds(self, now_ms: int) -> list[str]:
        """The files that the run has claimed now, relative to its folder."""
        return [
            os.path.relpath(os.path.join(ROOT, one.path), self._folder)
            for one in self._mine(now_ms)
        ]

    def _mine(self, now_ms: int) -> list[Lease]:
        return [one for one in self._store.held(self._run.run) if one.until_ms > now_ms]

    def _kind(self, call: GateCall) -> CommandUse:
        return kind_of(call.tool, call.use, GovernanceSettings())

    def _counts(self, one: Target) -> bool:
        inside = is_within(one.path, self._folder) and one.path != self._folder
        return bool(one.key) and inside and not protected(os.path.relpath(one.path, self._folder))

    def _stale(
        self, targets: Mapping[str, Target], last: Mapping[str, Lease], now_ms: int
    ) -> tuple[tuple[str, str], ...]:
        """Those that are not as the run has read them, with why."""
        read = self._store.baselines(self._run.run, targets)
        states = read_states(one.path for one in targets.values())
        found = []
        for key, one in targets.items():
            if _differs(states[one.path], read.get(key)):
                ago = refusals.ago(now_ms - last[key].since_ms)
                found.append(
                    (
                        one.path,
                        f"was changed by {last[key].agent} ({ago}), and you have not read it since",
                    )
                )
        return tuple(found)

    def _note(self, keys: Mapping[str, str | None], states: Mapping[str, FileState]) -> None:
        hashes = {
            key: state.hash
            for path, state in states.items()
            if (key := keys[path]) and not state.is_folder and not state.odd
        }
        self._store.note(self._run.run, hashes)


def _differs(state: FileState, read: str | None) -> bool:
    if state.is_folder or state.odd or (state.is_absent and read is None):
        return False
    return state.hash != read
