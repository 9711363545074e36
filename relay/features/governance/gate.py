"""The gate: asked before each call of an agent's tool, and told after it.

It says yes, or why not (relay.features.governance.refusals). What a call has done is written into
the trace (relay.features.governance.call_records). What waits for the disk (files, the store, the
trace) runs in threads, one call of a run after the other; a person is waited for beside that.

A call that only a person may let go on waits for their yes or no. The gate knows of no broker:
``BrokerApprover`` asks by way of it, and it lists what waits for ``relay items``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from relay.agents.hook_install import quoted
from relay.agents.tool_uses import UseKind
from relay.core.bounded import RecentSet
from relay.core.errors import RelayError
from relay.core.ids import new_ulid
from relay.core.paths import is_within
from relay.core.visible import is_visible
from relay.features.governance import refusals
from relay.features.governance.call_plan import (
    CallPlan,
    FileState,
    GateCall,
    GovernedRun,
    Target,
    kind_of,
    plan_of,
)
from relay.features.governance.call_records import (
    PENDING_MAX,
    CallRecords,
    scope_of,
    states_of,
)
from relay.features.governance.commands import CommandKind
from relay.features.governance.governance_store import (
    GovernanceStore,
    Lease,
    Selection,
    start_of,
)
from relay.features.governance.governed_paths import folds_case, is_governed, protected
from relay.features.governance.intents import (
    GovernanceSettings,
    Intent,
    IntentDocument,
    Status,
    Unknown,
    check_id,
)
from relay.features.governance.ops import APPROVAL_ASK, APPROVAL_WITHDRAW
from relay.features.governance.orchestration import IntentsFile
from relay.features.governance.refusals import Refusal
from relay.features.governance.trace import Trace

if TYPE_CHECKING:
    from relay.session.broker_reports import Broker
#: Words of what leaves the machine, is not easily brought back, or is done by a process that the
#: kernel does not hold.
_LEAVES = re.compile(
    r"(?<![\w.-])(?:git|gh|glab|relay|publish|upload|push|release|destroy|deploy\w*|twine|curl|wget"
    r"|nc|ssh|scp|sftp|rsync|docker|podman|kubectl|helm|terraform|ansible\w*|aws|gcloud|az|heroku"
    r"|vercel|netlify|fly|flyctl|psql|mysql|mongosh|redis-cli|tmux|screen|at|batch|systemd-run"
    r"|dbus-send|osascript)(?![\w-])"
)
#: What is allowed always begins so where it is a tool.
_TOOL = "tool: "
#: Said in the place of a person where governance was off.
_OFF = "governance was off"


class Gate:
    """Decides on the calls of one run."""

    def __init__(
        self,
        run: GovernedRun,
        *,
        intents: IntentsFile,
        store: GovernanceStore,
        trace: Trace,
        approver: Approver | None,
        now_ms: Callable[[], int],
    ) -> None:
        self.run = run
        self._intents = intents
        self._store = store
        self._records = CallRecords(run, store, trace, now_ms)
        self._approver = approver
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._folded = folds_case(run.root)
        self._start = start_of(run.pid)
        #: Shell calls that were let go on, each held to its intent. While one has not ended, none
        #: gets more: it may not have begun, and would begin with that.
        self._held: set[str] = set()
        #: The leases of others for which a call was refused last.
        self.waits: list[Lease] = []
        #: Calls that go on because the person has agreed to them, until that is asked.
        self._agreed: RecentSet[GateCall] = RecentSet(PENDING_MAX)
        #: The intent to whose scope the shell is held now, and to no more than that.
        self._narrow: Intent | None = None

    # -- what is asked and told

    async def before(self, call: GateCall) -> Refusal | None:
        """Say why ``call`` must not happen; None where it may. Raises CancelledError only."""
        try:
            found = await asyncio.to_thread(self._decide, call, "")
            if isinstance(found, ApprovalRequest):
                answer = await self._ask(call, found)
                found = await asyncio.to_thread(self._answered, call, found, answer)
            return found
        except Exception as error:
            traceback.print_exc()  # into the log of this run
            if surely_reads(call):
                return None
            refusal = refusals.engine_failed(error)
            await asyncio.to_thread(self._guarded, self._records.refused, call, refusal)
            return refusal

    def agreed(self, call: GateCall) -> bool:
        """Whether a person has agreed to this very call, which goes on now. True once."""
        agreed = call in self._agreed
        self._agreed.discard(call)
        return agreed

    async def after(self, call: GateCall) -> str:
        """Note what ``call`` has done; returns what it has changed against its intent, for the
        agent and the person. Raises CancelledError only."""
        await asyncio.to_thread(self._guarded, self._done, call)
        return self._records.violations()

    async def turn_ended(self, *, chosen: bool = False) -> str:
        """Give back what was taken for a turn; returns the same. May be repeated; raises
        CancelledError only.

        ``chosen``: what is selected is for the next turn, where each turn selects anew.
        """
        await asyncio.to_thread(self._guarded, self._end_turn, chosen)
        return self._records.violations()

    async def ended(self) -> None:
        """Forget the run: its agent has ended. Raises CancelledError only."""
        await self.turn_ended()
        await asyncio.to_thread(self._guarded, self._store.forget, self.run.run)

    async def select(self, intent: str, person: str = "") -> Intent:
        """Have the agent work on ``intent`` from now on; ``person``: who selects it in its place.

        Raises RelayError, with what could be selected.
        """
        return await asyncio.to_thread(self._select, intent.strip(), person)

    def selected(self) -> Intent | None:
        """The intent that the agent works on, where it still allows anything. Never raises."""
        try:
            found = self._intent(self._intents.read())
        except RelayError:
            return None
        return found if isinstance(found, Intent) else None

    def free(self, leases: Sequence[Lease], now_ms: int) -> list[Lease]:
        """Those of others' leases that hold no more. Raises StorageError."""
        return self._store.free(leases, now_ms)

    def holds(self) -> list[str]:
        """The files that the run has leased. Raises StorageError."""
        now = self._now_ms()
        return [one.path for one in self._store.held(self.run.run) if one.until_ms > now]

    def _guarded(self, function: Callable[..., object], *args: object) -> None:
        """Call it in its turn; what goes wrong is in the log, and found again before a write."""
        try:
            with self._lock:
                function(*args)
        except Exception:
            traceback.print_exc()

    # -- the intent

    def _select(self, id_: str, person: str) -> Intent:
        with self._lock:
            document = self._intents.read()
            intent = check_id(document, id_)
            if intent.status not in (Status.PENDING, Status.IN_PROGRESS):
                raise refusals.not_selectable(intent, document.intents)
            self._records.rules(document)
            self._records.selection(id_, person)
            if intent.status is Status.PENDING:
                intent = self._intents.set_status(id_, Status.IN_PROGRESS, (Status.PENDING,))
                self._records.rules(self._intents.read(), expected=True)
            run = self.run
            self._store.select(Selection(run.run, run.root, run.agent, id_, self._now_ms()))
            return intent

    def _intent(self, document: IntentDocument) -> Intent | Refusal:
        """The one that is selected, or why it allows nothing."""
        chosen = self._store.selection(self.run.run)
        if chosen is None or chosen.root != self.run.root:
            return refusals.intent_required(document.intents)
        intent = document.intents.get(chosen.intent)
        if intent is None or intent.status is not Status.IN_PROGRESS:
            return refusals.intent_inactive(chosen.intent, document.intents)
        return intent

    # -- before a call

    def _decide(self, call: GateCall, approved_by: str) -> Refusal | ApprovalRequest | None:
        with self._lock:
            document, invalid = self._document()
            settings = document.settings if document else GovernanceSettings()
            use = kind_of(call.tool, call.use, settings)
            if use.kind is not CommandKind.READ and self._store.switch(self.run.root):
                self._let_go(call, settings)
                self._hold(call, None, settings, free=True)
                return None
            plan = plan_of(use, self.run, call, self._folded)
            if use.kind is CommandKind.READ:
                self._records.read(plan.reads)
                self._hold(call, plan, settings)
                return None
            if document is None:
                refused: Refusal | ApprovalRequest | None = refusals.intents_invalid(invalid)
            else:
                approved_by = approved_by or self._always(call, document)
                refused = self._verdict(call, plan, document, approved_by)
            if isinstance(refused, Refusal):
                self._records.refused(call, refused, plan)
            elif refused is None:
                self._records.read(plan.reads)
                free = bool(approved_by) and (
                    plan.kind is not CommandKind.UNKNOWN or bool(_LEAVES.search(call.use.command))
                )
                places = self._hold(call, plan, settings, free=free)
                if plan.kind is not CommandKind.WRITE:
                    self._records.survey(call, places)
                if approved_by:
                    self._agreed.add(call)
            return refused

    def _hold(
        self,
        call: GateCall,
        plan: CallPlan | None,
        settings: GovernanceSettings,
        *,
        free: bool = False,
    ) -> list[str] | None:
        """Have the shell of a call that goes on write what it may; returns where in the project
        that is, None for anywhere. ``free``: all, as a person has agreed to it as it stands. Raises
        OSError."""
        shell = self.run.shell
        if shell is None or call.use.kind is not UseKind.EXECUTE:
            return None
        narrow, self._narrow = self._narrow, None
        if free and not self._held:
            shell.free()
            return None
        from relay.features.governance.confined_scope import beside, builds, of_call, of_git

        intent = self.selected()
        reads = plan is None or plan.kind is CommandKind.READ
        if reads and intent is not None and intent == narrow:
            self._narrow = narrow  # what only reads needs no more than the call before it
            return []
        places = of_call(self.run.root, intent)
        more: list[str] = []
        if plan is not None and not reads and not self._held:
            more += of_git(self.run.root, call.use.command, settings)
            if plan.kind is CommandKind.WRITE:
                targets = [one for one in plan.targets if not self.run.is_free(one.path)]
                more += beside(places, (one.path for one in targets))
        if not reads and not more:
            self._held.add(call.id or repr(call))
        shell.hold([*places, *builds(self.run.root), *more])
        self._narrow = None if more else intent
        return places if shell.is_used else None

    def _holds(self, call: GateCall) -> bool:
        """Whether the kernel will hold all that the call does: what it does not know of, it is
        not asked to do."""
        shell, line = self.run.shell, call.use.command
        if shell is None or call.use.kind is not UseKind.EXECUTE or call.use.blind:
            return False
        return shell.is_used and not _LEAVES.search(line)

    def _document(self) -> tuple[IntentDocument | None, str]:
        """(the intents, or why there are none)."""
        if not is_governed(self.run.root):
            return None, "the folder .orchestration of this project is gone, or is a link"
        try:
            return self._intents.read(), ""
        except RelayError as error:
            return None, error.line

    def _let_go(self, call: GateCall, settings: GovernanceSettings) -> None:
        """A person has turned governance off: what can be told of the call is, and no more."""
        try:
            plan = plan_of(kind_of(call.tool, call.use, settings), self.run, call, self._folded)
            self._records.allowed(call, plan, states_of(plan.targets), None, _OFF)
        except Exception:
            traceback.print_exc()

    def _verdict(
        self, call: GateCall, plan: CallPlan, document: IntentDocument, approved_by: str
    ) -> Refusal | ApprovalRequest | None:
        settings = document.settings
        intent = self._intent(document)
        if isinstance(intent, Refusal):
            return intent
        self._records.ready()
        self._records.rules(document)
        refusal = self._out_of_bounds(intent, plan)
        if refusal is not None:
            return refusal
        if plan.kind is CommandKind.UNKNOWN and settings.unknown is Unknown.REFUSE:
            return refusals.unknown_change(plan.why)
        inside = [one for one in plan.targets if one.key and not self.run.is_free(one.path)]
        files = [one.key for one in inside if one.key and not os.path.isdir(one.path)]
        others, fresh = self._take(files, intent, settings)
        if others:
            self.waits = others
            return refusals.file_leased(others, self._now_ms())
        states = states_of(inside)  # now that nobody else changes them
        stale, unread = self._stale(inside, states)
        found: Refusal | ApprovalRequest | None = None
        if stale:
            found = refusals.stale_file(stale)
        elif not approved_by and (why := _why_to_ask(plan, settings, unread, self._holds(call))):
            found = self._request(call, plan, intent, settings, why)
        else:
            self._records.allowed(call, plan, states, intent, approved_by)
        if found is not None:
            # Not while a person thinks about it: what others do meanwhile is seen afterwards.
            self._store.release(self.run.run, fresh)
        return found

    def _out_of_bounds(self, intent: Intent, plan: CallPlan) -> Refusal | None:
        scope = scope_of(intent.owned_scope, self._folded)
        run = self.run
        inside = [one for one in plan.targets if not run.is_free(one.path)]
        for target in inside:
            if target.key is None:
                return refusals.outside(target.path, run.root, run.scratch)
        for target in inside:
            if protected(target.key or "") or any(
                is_within(target.path, folder) for folder in run.kept_out
            ):
                return refusals.protected_file(target.key or "")
        for target in inside:
            if not scope.allows(target.key or ""):
                return refusals.scope_violation(intent, target.key or ".")
        return None

    def _take(
        self, keys: Sequence[str], intent: Intent, settings: GovernanceSettings
    ) -> tuple[list[Lease], list[str]]:
        if not keys:
            return [], []
        run, now = self.run, self._now_ms()
        until = now + int(settings.lease_seconds * 1000)
        who = (run.run, run.agent, run.pid, self._start, intent.id, now, until)
        return self._store.take([Lease(run.root, key, *who) for key in dict.fromkeys(keys)], now)

    def _stale(
        self, targets: Sequence[Target], states: Mapping[str, FileState]
    ) -> tuple[list[tuple[str, str]], list[str]]:
        """(files that are not as they were read, with why; what a folder holds and nobody read)."""
        read = self._store.baselines(self.run.run, [one.key for one in targets if one.key])
        stale: dict[str, str] = {}
        unread = []
        for target in targets:
            key, state = target.key or "", states[target.path]
            if state.is_folder:
                continue
            why = target.why_stale(state, read.get(key))
            if why and target.below and target.gone and key not in read:
                unread.append(key)
            elif why:
                stale[key] = why
        return list(stale.items()), unread

    # -- a person's yes

    def _request(
        self,
        call: GateCall,
        plan: CallPlan,
        intent: Intent,
        settings: GovernanceSettings,
        why: str,
    ) -> ApprovalRequest:
        now = self._now_ms()
        paths = ", ".join(one.key or one.path for one in plan.targets if not one.below)
        what = call.use.command or f"{call.tool} {call.shown or paths}"
        cwd = call.use.cwd or call.cwd or self.run.cwd
        named = [one.key for one in plan.targets if one.key and not one.below]
        if named and call.use.command:
            listed, more = (
                ", ".join(named[: refusals.LISTED_MAX]),
                "…" if len(named) > refusals.LISTED_MAX else "",
            )
            why += f"; it changes {listed}{more}, which {intent.id} allows"
        leaves = plan.kind is not CommandKind.UNKNOWN or _LEAVES.search(call.use.command)
        if self.run.shell is not None and call.use.kind is UseKind.EXECUTE and leaves:
            why += f"; after a yes it is not held to {intent.id}, and can write anywhere"
        return ApprovalRequest(
            new_ulid(now), call.tool, what, why, intent.id, self.run.root, cwd, now,
            settings.approve_seconds, always_key(call, self.run),
        )  # fmt: skip

    def _always(self, call: GateCall, document: IntentDocument) -> str:
        """Who has allowed such calls once and for all; "" where nobody has."""
        intent = self._intent(document)
        if not isinstance(intent, Intent) or not intent.always_allow:
            return ""
        key = always_key(call, self.run)
        if key not in intent.always_allow:
            return ""
        known = self._store.always(self.run.root, intent.id, key)
        return f"the person, always for {intent.id}" if known else ""

    def _keep_always(self, call: GateCall, intent_id: str) -> None:
        """Have such calls allowed from now on. What fails is asked about again."""
        try:
            key = always_key(call, self.run)
            self._intents.allow_always(intent_id, key)
            self._store.allow_always(self.run.root, intent_id, key)
            self._records.rules(self._intents.read(), expected=True)
        except RelayError:
            traceback.print_exc()  # into the log of this run

    async def _ask(self, call: GateCall, request: ApprovalRequest) -> ApprovalAnswer:
        if self._approver is None:
            return ApprovalAnswer(False, note="there is nobody here who could be asked")
        try:
            return await self._approver.ask(request)
        except asyncio.CancelledError:
            told = (call, request.intent, False, "", "the agent gave the call up")
            loop = asyncio.get_running_loop()
            loop.run_in_executor(None, self._guarded, self._records.approval, *told)
            raise

    def _answered(
        self, call: GateCall, request: ApprovalRequest, answer: ApprovalAnswer
    ) -> Refusal | None:
        with self._lock:
            self._records.approval(call, request.intent, answer.granted, answer.by, answer.note)
            if not answer.granted:
                refusal = refusals.human_rejected(request.what, answer.by, answer.note)
                self._records.refused(call, refusal)
                return refusal
            if answer.always:
                self._keep_always(call, request.intent)
        # Much may have changed meanwhile: all is looked at again.
        found = self._decide(call, answer.by or "a person")
        if isinstance(found, ApprovalRequest):
            raise RuntimeError("a call that a person has agreed to asks for it again")
        return found

    # -- after a call

    def _done(self, call: GateCall) -> None:
        self._held.discard(call.id or repr(call))
        known = self._records.done(call)
        if known is not None and known[0].use == call.use:
            return
        document, _ = self._document()
        settings = document.settings if document else GovernanceSettings()
        use = kind_of(call.tool, call.use, settings)
        if use.kind is CommandKind.READ:
            return
        plan = plan_of(use, self.run, call, self._folded)
        if known is None:
            self._records.done_unseen(call, plan, self.selected())
            return
        more = plan.without(known[1])
        if more.targets:
            note = "not what was let go on: a hook of the agent's own rewrote the call"
            self._records.done_unseen(call, more, self.selected(), note)

    def _end_turn(self, chosen: bool) -> None:
        self._held.clear()
        try:
            self._records.all_done()
        finally:
            self._store.release(self.run.run)
            document, _ = self._document()
            if not chosen and document is not None and document.settings.select_every_turn:
                self._store.unselect(self.run.run)


def always_key(call: GateCall, run: GovernedRun) -> str:
    """What stands for such calls in the file of intents: a shell's line as from the project's
    folder, or a tool by its name; "" for what is allowed only once."""
    use = call.use
    if use.kind is UseKind.UNKNOWN:
        key = f"{_TOOL}{call.tool}"
    elif use.kind is not UseKind.EXECUTE or use.blind:
        return ""
    else:
        key = use.command.strip()
        place = os.path.realpath(os.path.join(run.cwd, call.cwd, use.cwd))
        if key.startswith(_TOOL) or not is_within(place, run.root):
            return ""
        if place != run.root:
            key = f"cd {quoted(os.path.relpath(place, run.root))} && {key}"
    return key if len(key) <= refusals.STEP_MAX and is_visible(key) else ""


def surely_reads(call: GateCall) -> bool:
    """Whether a call reads in any case, where the gate itself has failed. Never raises."""
    try:
        return kind_of(call.tool, call.use, GovernanceSettings()).kind is CommandKind.READ
    except Exception:
        return False


def _why_to_ask(
    plan: CallPlan, settings: GovernanceSettings, unread: Sequence[str], held: bool
) -> str:
    """Why a person has to agree; "" where an intent is enough. ``held``: the kernel holds it."""
    if plan.kind is CommandKind.APPROVE or plan.vast:
        return plan.why
    if plan.kind is CommandKind.UNKNOWN and settings.unknown is Unknown.APPROVE and not held:
        return plan.why
    if unread:
        return f"it removes {len(unread)} files that the agent has not read"
    return ""


#: Seconds that the broker may take beyond the deadline, which it keeps itself.
LATER = 5.0


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What a person is asked. They are shown ``what`` as it is: whole, and with its secrets."""

    id: str  # a ULID; the same where the same is asked again
    tool: str
    what: str  # the command, or what else the call does
    why: str  # the reason why a person has to say yes, a sentence without its full stop
    intent: str
    root: str
    cwd: str
    asked_ms: int
    seconds: float  # that the person has
    #: What they may allow the intent always; "": only this once.
    always: str = ""


@dataclass(frozen=True, slots=True)
class ApprovalAnswer:
    """What became of it."""

    granted: bool
    by: str = ""  # who said so; "": nobody did
    note: str = ""  # the person's words, or why there is no yes
    always: bool = False  # the yes is for all such calls of the intent


class Approver(Protocol):
    """Asks a person. Raises nothing but CancelledError: where nobody can be asked, that is no."""

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer: ...


class BrokerApprover:
    """Asks the person by way of the broker, for one agent's session.

    After a kill of the broker the client asks the next one the same: the person has to decide
    again where their word was lost.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._withdrawals: set[asyncio.Task[None]] = set()

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Wait for the person, at most ``request.seconds``. Cancelled, it takes the question back:
        nobody waits for it any more."""
        deadline = request.seconds + LATER
        try:
            answer = await self._broker.request(APPROVAL_ASK, deadline=deadline, **asdict(request))
        except asyncio.CancelledError:
            task = asyncio.get_running_loop().create_task(self._withdraw(request.id))
            self._withdrawals.add(task)
            task.add_done_callback(self._withdrawals.discard)
            raise
        except RelayError as error:
            return ApprovalAnswer(False, note=f"no person could be asked: {error.line}")
        return ApprovalAnswer(answer["granted"], answer["by"], answer["note"], answer["always"])

    async def _withdraw(self, id_: str) -> None:
        with contextlib.suppress(RelayError):
            await self._broker.request(APPROVAL_WITHDRAW, deadline=LATER, id=id_)
