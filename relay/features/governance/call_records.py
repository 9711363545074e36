"""What each call of a run has done, as the trace has it.

What was let go on is kept until its end, with what stood in its files, and then compared with what
stands there now. Changes that no call tells of are found at the end of the turn. What an intent
does not allow is a violation, which the agent and the person are told. Waits for the disk.
"""

from __future__ import annotations

import os
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache

from relay.core.bounded import BoundedDict
from relay.features.governance import refusals
from relay.features.governance.call_plan import (
    PATHS_MAX,
    CallPlan,
    FileState,
    GateCall,
    GovernedRun,
    Target,
    named,
    read_states,
)
from relay.features.governance.changed_files import (
    FILES_MAX,
    TOO_MANY,
    Change,
    Survey,
    differences,
    ignored_by_git,
    mutations,
    survey,
)
from relay.features.governance.governance_store import (
    ABSENT,
    UNREAD,
    GovernanceStore,
)
from relay.features.governance.governed_paths import folds_case, protected
from relay.features.governance.intents import (
    Intent,
    IntentDocument,
)
from relay.features.governance.mutation import FileMutation, compare, content_hash, opaque
from relay.features.governance.orchestration import update_map
from relay.features.governance.refusals import Refusal
from relay.features.governance.scope import IntentScope
from relay.features.governance.trace import Trace, revision
from relay.features.governance.trace_records import TraceEntry, TraceKind

#: Calls that are between their before and their after; the oldest is told of for a further one.
PENDING_MAX = 256
#: Bytes of files' contents that are kept for those together; beyond it only hashes are.
KEPT_MAX = 64 * 1024 * 1024
#: Surveys with the contents of files that are kept at a time.
KEPT_SURVEYS = 8
#: Records that could not be written yet. There are hardly more: nobody writes until they are.
UNWRITTEN_MAX = 2 * PENDING_MAX
#: Of a change that no call tells of.
UNSEEN = "changed during the turn, by something that relay was not told the end of"


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
    #: The files that it could change, where nobody could read which it does.
    survey: Survey | None = None
    #: Those of them that another call has changed meanwhile, which has told of them.
    told: set[str] = field(default_factory=set)

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
        trace: Trace,
        now_ms: Callable[[], int],
    ) -> None:
        self._run = run
        self._now_ms = now_ms
        self._store = store
        self._trace = trace
        self._pending: BoundedDict[str | GateCall, _Pending] = BoundedDict(PENDING_MAX)
        self._lasting: BoundedDict[str | GateCall, _Pending] = BoundedDict(PENDING_MAX)
        self._kept = 0
        self._rules: IntentDocument | None = None
        #: Whether the project has more files than a call may change, and not too many of them.
        self._has_rest = True
        #: What the agent and the person have to be told.
        self._violations: list[str] = []
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

    def survey(self, call: GateCall, places: Iterable[str] | None) -> None:
        """Keep what a call that was let go on could change; ``places``: where the kernel lets it
        write, None for anywhere."""
        pending = self._pending.get(call.id or call)
        if pending is None:
            return
        others = [one.survey for one in self._surveyed() if one.survey is not None]
        read = len(others) < KEPT_SURVEYS
        before = survey(self._run.root, places, read=read, rest=self._has_rest)
        if before is not None and places is not None:
            self._has_rest = bool(before.rest)
        kept = sum(one.size for one in others)
        if before is None or kept + before.size > 2 * FILES_MAX:
            pending.note = TOO_MANY
        else:
            pending.survey = before

    def _surveyed(self) -> list[_Pending]:
        return [
            one
            for one in (*self._pending.values(), *self._lasting.values())
            if one.survey is not None
        ]

    def violations(self) -> str:
        """What was found since this was asked last: files that no intent of the run allows."""
        told, self._violations = self._violations, []
        return "\n".join(told)

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
        left, _ = self._tell(known, sure=True)
        if call.lasts:
            self._lasting[call.id or call] = left
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
                left, changed = self._tell(known, sure=False)
                if changed or paths is not None:
                    del self._lasting[key]
                else:
                    self._lasting[key] = replace(left, survey=None)

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
            # A name that is not UTF-8 is not the file's own.
            if now.hash != was and not now.is_folder and not now.odd and "\\" not in lease.path:
                files.setdefault(lease.intent, []).append(opaque(lease.path, was, now.hash))
        for intent_id, changed in files.items():
            told = {"text": UNSEEN, "agent_kind": run.kind}
            who = (run.agent, run.run, intent_id, "", run.model)
            self.write(TraceEntry(TraceKind.MUTATION, *who, tuple(changed), told))

    def _tell(self, known: _Pending, *, sure: bool) -> tuple[_Pending, bool]:
        """Returns the call with its files as they are now, and whether any is different. ``sure``:
        it happened, also where nothing is different."""
        now = read_states(one.path for one in known.plan.targets if one.key)
        files = [*filter(None, (self._mutation(one, known, now) for one in known.plan.targets))]
        after, found, told = self._compared(known)
        outside = self._outside(known.intent, found)
        if known.approved_by and outside:  # a person has agreed to what the call does
            told["outside"] = [one.path for _, one in outside]
            outside = []
        violated = {one.path for _, one in outside}
        files += [one for _, one in found if one.path not in violated]
        changed = [one for one in files if one.before != one.after]
        intent_id = known.intent.id if known.intent else ""
        if sure or changed:
            if known.approved_by:
                told["approved_by"] = known.approved_by
            if known.note:
                told["text"] = known.note
            self.write(self._entry(TraceKind.MUTATION, known.call, intent_id, files, told))
        if outside and known.intent is not None:
            self._violated(known.call, known.intent, outside)
        self._note_written(known.plan.targets, now)
        self._note_unread(one for _, one in found)
        for other in self._surveyed():
            other.told |= now.keys() | {change.path for change, _ in found}
        changed += [one for _, one in outside if one.before != one.after]
        if known.intent is not None and changed:
            self._map(known.intent, changed)
        before = {path: replace(one, data=None) for path, one in now.items()}
        return replace(known, before=before, survey=after, told=set()), bool(changed)

    def _compared(
        self, known: _Pending
    ) -> tuple[Survey | None, list[tuple[Change, FileMutation]], dict[str, object]]:
        """(the files as they are now, what has become of those that the call did not name, what is
        to be told beside)."""
        run, told = self._run, dict[str, object]()
        if known.survey is None:
            return None, [], told
        after = known.survey.again()
        if after is None:
            return None, [], {"not_compared": TOO_MANY}
        others = {
            lease.path
            for lease in self._store.leases(run.root, self._now_ms())
            if lease.run != run.run
        }
        elsewhere = known.told | {one.path for one in known.plan.targets}
        paths = {
            os.path.relpath(change.path, run.root): change
            for change in differences(known.survey, after)
            if change.path not in elsewhere
        }
        paths = {path: change for path, change in paths.items() if named(path) not in others}
        by_git = ignored_by_git(run.root, list(paths))
        ignored = [named(path) for path in paths if path in by_git]
        changes = [change for path, change in paths.items() if path not in by_git]
        if len(changes) > PATHS_MAX:
            told["files_left_out"] = len(changes) - PATHS_MAX
        changes = changes[:PATHS_MAX]
        keys = (named(os.path.relpath(one.path, run.root)) for one in changes)
        found = mutations(changes, run.root, self._store.baselines(run.run, keys))
        if ignored:
            told["ignored_by_git"] = ignored[:PATHS_MAX]
        if modes := [one.path for change, one in found if change.mode]:
            told["modes"] = modes
        return after, found, told

    def _outside(
        self, intent: Intent | None, found: Sequence[tuple[Change, FileMutation]]
    ) -> list[tuple[Change, FileMutation]]:
        """What the intent does not allow."""
        if intent is None:
            return []
        scope = scope_of(intent.owned_scope, folds_case(self._run.root))
        return [(c, one) for c, one in found if protected(one.path) or not scope.allows(one.path)]

    def _violated(
        self, call: GateCall, intent: Intent, found: Sequence[tuple[Change, FileMutation]]
    ) -> None:
        """Have it told that a call has changed what its intent does not allow."""
        error = refusals.violation(intent, [(one, change.mode) for change, one in found])
        files = [one for _, one in found]
        told: dict[str, object] = {"error": error}
        self.write(self._entry(TraceKind.VIOLATION, call, intent.id, files, told))
        self._violations.append(error)

    def _note_unread(self, files: Iterable[FileMutation]) -> None:
        """What a build or a script has changed the run has not read, and has told of."""
        hashes = {one.path: one.after for one in files}
        read = self._store.baselines(self._run.run, hashes)
        self._store.note(
            self._run.run,
            {path: UNREAD + hashes[path] for path, hash_ in read.items() if hash_ != hashes[path]},
        )

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
        """What became of one file; None for what is not a file, or told of elsewhere."""
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


@lru_cache(maxsize=256)
def scope_of(globs: tuple[str, ...], folded: bool) -> IntentScope:
    return IntentScope(globs, ignore_case=folded)


def states_of(targets: Sequence[Target]) -> dict[str, FileState]:
    return read_states(one.path for one in targets if one.key)
