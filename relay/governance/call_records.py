"""What a run's calls have done: compared with what was there before, and written into the trace.

A file of its own because the gate decides before a call, and this tells after it.
"""

from __future__ import annotations

import os
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

from relay.core.bounded import BoundedDict
from relay.governance.call_plan import CallPlan, GateCall, GovernedRun, Target, named
from relay.governance.file_states import FileState, read_states
from relay.governance.governance_store import ABSENT, UNREAD, GovernanceStore
from relay.governance.intent_map import update_map
from relay.governance.intents import Intent, IntentDocument
from relay.governance.mutation import FileMutation, compare, content_hash, opaque
from relay.governance.refusals import Refusal
from relay.governance.trace import revision
from relay.governance.trace_records import TraceEntry, TraceKind

#: Calls that are between their before and their after; the oldest is told of for a further one.
PENDING_MAX = 256
#: Calls that go on in the background, whose files are looked at again.
LASTING_MAX = 100
#: Bytes of files' contents that are kept for those together; beyond it only hashes are.
KEPT_MAX = 64 * 1024 * 1024
#: Records that could not be written yet. There are hardly more: nobody writes until they are.
UNWRITTEN_MAX = 2 * PENDING_MAX
#: Of a change that no call tells of.
UNSEEN = "changed during the turn, by something that relay was not told the end of"


class TraceWriter(Protocol):
    """What is used of relay.governance.trace."""

    def append(self, entry: TraceEntry) -> str:
        """Write a record to the disk. Raises StorageError."""
        ...

    def check(self) -> None:
        """Raise StorageError where a record could not be written."""
        ...


@dataclass(slots=True)
class _Pending:
    """A call that was let go on."""

    call: GateCall
    plan: CallPlan
    intent: Intent | None
    approved_by: str
    before: Mapping[str, FileState] = field(default_factory=dict)
    #: What is to be said of it.
    note: str = ""

    @property
    def size(self) -> int:
        """Bytes of contents that are kept."""
        return sum(len(state.data or b"") for state in self.before.values())


class CallRecords:
    """The calls of one run. Waits for the disk; one caller at a time."""

    def __init__(
        self,
        run: GovernedRun,
        store: GovernanceStore,
        trace: TraceWriter,
        now_ms: Callable[[], int],
    ) -> None:
        self._run = run
        self._now_ms = now_ms
        self._store = store
        self._trace = trace
        self._pending: BoundedDict[str | GateCall, _Pending] = BoundedDict(PENDING_MAX)
        self._lasting: BoundedDict[str | GateCall, _Pending] = BoundedDict(LASTING_MAX)
        self._kept = 0
        self._rules: IntentDocument | None = None
        self._unwritten: deque[TraceEntry] = deque(maxlen=UNWRITTEN_MAX)

    # -- before

    def read(self, targets: Iterable[Target]) -> None:
        """Note files as the run is about to read them."""
        keys = {one.path: one.key for one in targets if one.key}
        states = read_states(keys).items()
        hashes = {keys[path]: one.hash for path, one in states if not one.is_folder and not one.odd}
        self._store.note(self._run.run, hashes)

    def refused(self, call: GateCall, refusal: Refusal, plan: CallPlan | None = None) -> None:
        """Tell of a call that does not happen. Never raises: it is refused in any case."""
        told = {"reason": refusal.reason.value, "error": refusal.error}
        try:
            self.flush()
            self._trace.append(self._entry(TraceKind.REFUSAL, call, metadata=told, plan=plan))
        except Exception:
            traceback.print_exc()  # into the log of this run

    def allowed(
        self,
        call: GateCall,
        plan: CallPlan,
        before: Mapping[str, FileState],
        intent: Intent | None,
        approved_by: str,
    ) -> None:
        """Keep what is there before a call that goes on now."""
        self.drop(call)
        self._tell_lasting(set(before))
        pending = _Pending(call, plan, intent, approved_by, before)
        if self._kept + pending.size > KEPT_MAX:
            pending.before = {path: replace(one, data=None) for path, one in before.items()}
        self._kept += pending.size
        pushed = self._pending.put(call.id or call, pending)
        if pushed is not None:
            self._kept -= pushed[1].size
            self._tell(pushed[1], sure=False)

    def drop(self, call: GateCall) -> None:
        """Forget a call that is asked about once more."""
        known = self._pending.pop(call.id or call, None)
        self._kept -= known.size if known else 0

    # -- after

    def done(self, call: GateCall) -> tuple[GateCall, CallPlan] | None:
        """Tell of a call that has ended; returns it as it was let go on, None for none."""
        known = self._pending.get(call.id or call)
        if known is None:
            return None
        self.drop(call)
        now = self._tell(known, sure=True)
        if call.lasts:
            left = {path: replace(one, data=None) for path, one in now.items()}
            self._lasting[call.id or call] = replace(known, before=left)
        return known.call, known.plan

    def done_unseen(
        self, call: GateCall, plan: CallPlan, intent: Intent | None, note: str = ""
    ) -> None:
        """Tell of a call, or the part of one, that was not let go on here: its before is what the
        run read last."""
        keys = {one.key: one.path for one in plan.targets if one.key}
        hashes = self._store.baselines(self._run.run, keys)
        before = {keys[key]: FileState(hash_) for key, hash_ in hashes.items()}
        self._tell(_Pending(call, plan, intent, "", before, note), sure=True)

    def all_done(self) -> None:
        """Tell of the calls whose end nobody has told, where they changed anything."""
        while self._pending:
            _, known = self._pending.popitem(last=False)
            self._kept -= known.size
            self._tell(known, sure=False)
        self._tell_lasting(None)
        self._tell_unseen()

    def _tell_lasting(self, paths: Set[str] | None) -> None:
        """Tell of what has gone on in the background, once for each call; ``paths``: of those that
        concern these files, which somebody is about to change."""
        for key, known in list(self._lasting.items()):
            if paths is None or not paths.isdisjoint(known.before):
                now = self._tell(known, sure=False)
                changed = any(known.before[path].hash != one.hash for path, one in now.items())
                if changed or paths is not None:
                    del self._lasting[key]

    def _tell_unseen(self) -> None:
        """Tell of files that are different though no call says so: what went on in the background,
        or while the session was away. Nobody knows by whom, and the run has not seen it."""
        run = self._run
        held = {os.path.join(run.root, lease.path): lease for lease in self._store.held(run.run)}
        read = self._store.baselines(run.run, [lease.path for lease in held.values()])
        files: dict[str, list[FileMutation]] = {}
        for path, now in read_states(held).items():
            lease = held[path]
            was = read.get(lease.path, ABSENT).removeprefix(UNREAD)
            # A name that is no UTF-8 is not the file's own.
            if now.hash != was and not now.is_folder and not now.odd and "\\" not in lease.path:
                files.setdefault(lease.intent, []).append(opaque(lease.path, was, now.hash))
        for intent_id, changed in files.items():
            told = {"text": UNSEEN, "agent_kind": run.kind}
            who = (run.agent, run.run, intent_id, "", run.model)
            self.write(TraceEntry(TraceKind.MUTATION, *who, tuple(changed), told))

    def _tell(self, known: _Pending, *, sure: bool) -> Mapping[str, FileState]:
        """Returns its files as they are. ``sure``: it happened, also where nothing is different."""
        now = read_states(one.path for one in known.plan.targets if one.key)
        files = [*filter(None, (self._mutation(one, known, now) for one in known.plan.targets))]
        changed = [one for one in files if one.before != one.after]
        if sure or changed:
            told = {"approved_by": known.approved_by} if known.approved_by else {}
            if known.note:
                told["text"] = known.note
            intent_id = known.intent.id if known.intent else ""
            self.write(self._entry(TraceKind.MUTATION, known.call, intent_id, files, told))
        self._note_written(known.plan.targets, now)
        if known.intent is not None and changed:
            self._map(known.intent, changed)
        return now

    def _map(self, intent: Intent, files: Sequence[FileMutation]) -> None:
        """Note it for people; the trace is what counts."""
        root = self._run.root
        try:
            update_map(root, intent.id, intent.name, files, self._now_ms(), revision(root))
        except Exception:
            traceback.print_exc()  # into the log of this run

    def _mutation(
        self, target: Target, known: _Pending, now: Mapping[str, FileState]
    ) -> FileMutation | None:
        """What became of one file; None for what is no file, or told of elsewhere."""
        after = now.get(target.path)
        if after is None or target.key is None or after.is_folder or after.odd or target.moved:
            return None
        origin = target.moved_from or target.path
        before = known.before.get(origin) or FileState("")
        if before.is_absent and after.is_absent:
            return None
        was = target.moved_from and named(os.path.relpath(target.moved_from, self._run.root))
        if all(one.is_absent or one.data is not None for one in (before, after)):
            return compare(target.key, before.data, after.data, moved_from=was)
        return opaque(target.key, before.hash, after.hash, moved_from=was)

    def _note_written(self, targets: Iterable[Target], now: Mapping[str, FileState]) -> None:
        """What a run has written it knows; what it has only moved it knows if it had read it."""
        hashes = {}
        origins = {one.path: one.key for one in targets if one.moved and one.key}
        read = self._store.baselines(self._run.run, origins.values())
        for target in targets:
            state = now.get(target.path)
            if state is None or not target.key or state.is_folder or state.odd:
                continue
            known = not target.moved_from or origins.get(target.moved_from) in read
            hashes[target.key] = state.hash if known else UNREAD + state.hash
        self._store.note(self._run.run, hashes)

    # -- the trace

    def write(self, entry: TraceEntry) -> None:
        """Write a record, or keep it until that is possible. Raises StorageError."""
        self._unwritten.append(entry)
        self.flush()

    def flush(self) -> None:
        """Write what could not be written before. Raises StorageError."""
        while self._unwritten:
            self._trace.append(self._unwritten[0])
            self._unwritten.popleft()

    def ready(self) -> None:
        """Raise StorageError where what a call changes could not be told afterwards."""
        self.flush()
        self._trace.check()

    def approval(self, call: GateCall, intent_id: str, granted: bool, by: str, note: str) -> None:
        """Tell of a person's yes or no. Raises StorageError."""
        told = {"decision": "granted" if granted else "refused", "by": by, "text": note}
        self.write(self._entry(TraceKind.APPROVAL, call, intent_id, metadata=told))

    def rules(self, document: IntentDocument, *, expected: bool = False) -> None:
        """Tell where the intents are others than anybody saw last, unless that is ``expected``:
        agents write them by no tool, but what they build and test could. Raises StorageError."""
        if document is self._rules:
            return
        hash_ = content_hash(repr(document).encode(errors="backslashreplace"))
        if self._store.rules_changed(self._run.root, hash_) and not expected:
            run = self._run
            told = {"event": "the intents were changed", "text": f"seen at a call of {run.agent}"}
            self.write(TraceEntry(TraceKind.GOVERNANCE, session=run.run, metadata=told))
        self._rules = document

    def selection(self, intent_id: str, by: str) -> None:
        """Tell that an intent was selected. Raises StorageError."""
        run = self._run
        told = {"agent_kind": run.kind, **({"by": by} if by else {})}
        self.flush()
        self._trace.append(
            TraceEntry(TraceKind.SELECTION, run.agent, run.run, intent_id, metadata=told)
        )

    def _entry(
        self,
        kind: TraceKind,
        call: GateCall,
        intent_id: str = "",
        files: Iterable[FileMutation] = (),
        metadata: Mapping[str, object] = {},
        plan: CallPlan | None = None,
    ) -> TraceEntry:
        run = self._run
        told: dict[str, object] = {**metadata, "agent_kind": run.kind}
        if call.use.command:
            told["command"] = call.use.command
        if plan is not None:
            told["paths"] = [
                named(one.path) if one.key is None else one.key for one in plan.targets
            ]
        if not intent_id:
            chosen = self._store.selection(run.run)
            intent_id = chosen.intent if chosen else ""
        model = call.model or run.model
        return TraceEntry(kind, run.agent, run.run, intent_id, call.tool, model, tuple(files), told)
