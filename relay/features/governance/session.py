"""Governance in a session: asked around the agent's tool calls, told of intents.

It knows from the agent's start, or from the next call on, that the project is governed; the root
that it has found then stays for the run. ``@intent:select``, ``learn``, ``list`` and ``status`` are
done in the order in which they were said, and answered by a message.

The same comes from outside as requests of the kind "governance" (the broker's op ``ask``): {"do":
"select", "id"}, {"do": "learn", "text"}, {"do": "list"}, {"do": "status"}, and {"do": "set_status",
"id", "status"}: what is selected is done, or blocked. Each is answered with {"text", "intent"}.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from relay.agents.context_door import ContextDoor, door_of
from relay.agents.hook_codec import AgentHookCall
from relay.core.errors import RelayError, UsageError
from relay.core.files import make_private_folder
from relay.core.message import AgentState, QueueMode
from relay.core.paths import Home, is_within
from relay.features.governance.claiming import Claiming, Waits, held_remark
from relay.features.governance.governed_paths import governed_root
from relay.features.governance.settings import CLAIMS, OFF
from relay.features.governance.start import ACTIONS, NAMESPACE, why_not
from relay.hooks.context import Actions, Context
from relay.hooks.registry import BUILTIN, Registry
from relay.session.door import FeatureAnswer, SessionFacts, SessionFeature
from relay.session.feature_parts import FeatureParts
from relay.session.session_commands import FeatureCommand

if TYPE_CHECKING:
    from relay.features.governance.governed_project import GovernedProject
    from relay.session.broker_reports import Broker

#: Commands that wait; beyond it the agent is told. Characters of an id or a lesson.
PENDING_MAX, GIVEN_MAX = 100, 2000
UNGOVERNED = "ungoverned"
#: Seconds that a call waits for commands that the agent has said before it.
SAID_BEFORE = 5.0


def register(registry: Registry, facts: SessionFacts) -> None:
    """Add the handlers of intents; what the user's configuration overrides does not run."""
    if not facts.hello.get("governed"):
        return
    for action in ACTIONS:
        registry.add_pattern(NAMESPACE, action, intent, source=BUILTIN)


def intent(target: str, message: str, ctx: Context) -> None:
    """``@intent:select INT-001``, and so on for the other ACTIONS."""
    ctx.intent(target, message)


def intent_commands(actions: Actions) -> Callable[[str, str], None]:
    """``ctx.intent(action, text)``: do what ``@intent:action text`` does, and tell the agent what
    came of it."""
    return partial(actions.command, NAMESPACE)


def feature(parts: FeatureParts) -> GovernanceSession:
    """The feature in a session."""
    run, facts = parts.run, parts.facts
    agent = GovernedAgent(
        run.name,
        run.run_id,
        facts.kind,
        run.cwd,
        run.person,
        root=str(facts.hello.get("governed") or ""),
        ungoverned=bool(facts.hello.get("ungoverned")),
        intent=str(facts.hello.get("intent") or ""),
        ungated=why_not(facts.kind, facts.launch),
        mcp=facts.launch.get("mcp") is True,
        shell=facts.launch.get("shell"),
    )

    waits = Waits(parts)
    pid, mode, claiming = facts.hello["pid"], facts.settings.of(CLAIMS), None
    if mode != OFF and not agent.ungated and not agent.root:
        claiming = Claiming(parts, mode, waits)
    governance = GovernanceSession(
        agent,
        project_opener(parts.home, agent, pid, parts.broker, lambda: parts.sources.model),
        parts,
        door=door_of(facts.launch),
        claiming=claiming,
        waits=waits,
    )
    governance.restore(parts.saved.get("governance") or {})
    return governance


@dataclass(frozen=True, slots=True)
class GovernedAgent:
    """The agent, and what is known of its start."""

    name: str
    run: str
    kind: str
    cwd: str
    person: str
    #: The governed folder at its start; "": there was none.
    root: str = ""
    #: The person wants it to write without an intent.
    ungoverned: bool = False
    #: The kernel holds it to the scope that this intent had at its start.
    intent: str = ""
    #: Why its tool calls do not come here; "" where they do.
    ungated: str = ""
    #: It was given relay's own MCP server.
    mcp: bool = False
    #: It was given a shell that the kernel holds: what ConfinedShell needs.
    shell: Mapping[str, Any] | None = None


@dataclass(slots=True)
class GovernanceCheckpoint:
    """The part of the checkpoint."""

    root: str = ""
    #: That the agent is confined to an intent is written down.
    told: bool = False
    pending: list[dict[str, Any]] = field(default_factory=list)


class GovernanceSession(SessionFeature):
    """Governs one agent. ``open_project(root)`` opens what the gate needs; it may raise
    RelayError."""

    namespace = NAMESPACE

    def __init__(
        self,
        agent: GovernedAgent,
        open_project: Callable[[str], GovernedProject],
        parts: FeatureParts,
        *,
        door: ContextDoor | None = None,
        claiming: Claiming | None = None,
        waits: Waits | None = None,
    ) -> None:
        self._agent = agent
        self._open = open_project
        self._parts = parts
        self._door = door
        self._claiming = claiming
        self._waits = waits
        self._showing = asyncio.Lock()
        self._root = agent.root
        self._project: GovernedProject | None = None
        self._noted = self._told = False
        self._works = True  # what an earlier session has left ends with the first rest
        self._chosen = False  # in the words of the turn that runs
        self._gone = False
        self._pending: OrderedDict[str, FeatureCommand] = OrderedDict()
        self._order = asyncio.Lock()
        self._idle = asyncio.Event()
        self._idle.set()

    # -- around the agent's tool calls

    async def before(self, call: AgentHookCall, seconds: float) -> str:
        """Why the call is refused, as one JSON object; "" where it is not. Never raises."""
        await self.settle(min(seconds, SAID_BEFORE))  # what the agent has said before the call
        try:
            project = self._now()
        except Exception as error:  # whatever it is, it is no reason to let a call go on
            traceback.print_exc()
            return _unopened(self._agent.kind, call, error)
        refused = ""
        if project is not None:
            refused = await project.before(call, seconds)
            if refused and self._waits is not None:
                self._waits.add(project.waits(), project.gate)
        elif self._claiming is not None:
            refused = await self._claiming.before(call)
        if not refused and (project is not None or self._claiming is not None):
            self._parts.spawn(self._show_held())
        return refused

    def agreed(self, call: AgentHookCall) -> bool:
        """Whether a person has agreed to this very call, which goes on now."""
        return self._project is not None and self._project.agreed(call)

    async def after(self, call: AgentHookCall) -> str:
        """Have it written down what the call did; what it has changed against its intent the agent
        is told with the answer, and the person by a note. Where it needs no intent, it is told of
        files that others change. Never raises."""
        if (project := self._at_hand()) is not None:
            return self._violated(await project.after(call))
        return "" if self._claiming is None else await self._claiming.after(call)

    # -- what the session tells

    def begin(self) -> None:
        """Tell the agent the rules."""
        self._parts.spawn(self._begin())

    def take(self, command: FeatureCommand) -> None:
        """Do it, after those that came before it."""
        if command.id in self._pending:
            return  # heard again while it waits
        problem = "too many earlier ones still wait" if len(self._pending) >= PENDING_MAX else ""
        if len(command.text) > GIVEN_MAX:
            problem = f"its text has more than {GIVEN_MAX} characters"
        if problem:
            self._parts.answer(command.id, _refused(command, problem), QueueMode.STEER)
            return
        self._pending[command.id] = command
        self._idle.clear()
        self._parts.spawn(self._work(command))

    def said(self, texts: list[str]) -> None:
        """The agent does something: look whether its project is governed by now."""
        self._at_hand()

    def state_changed(self, state: AgentState) -> None:
        """Where its turn is over, what it took for the turn is given back."""
        if state is AgentState.BUSY:
            self._works = True
        elif state is AgentState.IDLE and self._works:
            self._works = False
            chosen, self._chosen = self._chosen, False
            if (project := self._at_hand()) is not None:
                self._parts.spawn(self._turn_over(project, chosen))
            elif self._claiming is not None:
                self._parts.spawn(self._claims_over(self._claiming))

    def agent_gone(self) -> None:
        """Nobody is told any more what comes of a command."""
        self._gone = True

    async def settle(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until nothing is pending."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def end(self) -> None:
        """Forget the run in the project."""
        if (project := self._at_hand()) is not None:
            await project.ended()
        if self._claiming is not None:
            await self._claiming.ended()

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        pending = [asdict(command) for command in self._pending.values()]
        return asdict(GovernanceCheckpoint(self._root, self._told, pending))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Begin, or go on where an earlier session of this run was."""
        saved = GovernanceCheckpoint(**state)
        self._root, self._told = self._root or saved.root, saved.told
        if self._agent.ungoverned and self._root:
            self._parts.note(f"{UNGOVERNED}: you let it write without an intent (--ungoverned)")
        if self._agent.intent and not self._told:
            self._parts.spawn(self._tell_confined())
        for fields in saved.pending:
            self.take(FeatureCommand(**fields))

    # -- what others ask

    def requests(self) -> Mapping[str, FeatureAnswer]:
        """Requests of the kind "governance"."""
        return {"governance": self.ask}

    async def ask(self, request: Mapping[str, Any], person: bool) -> dict[str, Any]:
        """Answer a request of the kind "governance". Raises RelayError."""
        do, given = str(request.get("do")), request.get("id") or request.get("text") or ""
        if not isinstance(given, str) or len(given) > GIVEN_MAX:
            raise UsageError(f"not a text of at most {GIVEN_MAX} characters")
        async with self._order:
            project = self._opened()
            if do == "set_status":
                text = await project.set_status(given, str(request.get("status")))
            else:
                text = await project.do(do, given, self._agent.person if person else "")
            if person and do == "select":  # whoever asked reads the answer: here not the agent
                self._tell(f"The person has chosen what you work on from now on:\n{text}")
            return {"text": text, "intent": await project.selected()}

    # -- inside

    def _now(self) -> GovernedProject | None:
        """The project, where it is governed by now. Raises RelayError where it cannot be opened."""
        if self._project is not None or self._agent.ungoverned:
            return self._project
        begun = bool(self._root)
        self._root = self._root or governed_root(self._agent.cwd)
        if not self._root:
            return None
        if self._agent.ungated and self._agent.intent:
            return None  # the kernel refuses its writes
        if self._agent.ungated:
            if not self._noted:
                self._noted = True
                self._parts.note(
                    f"{UNGOVERNED}: {self._root} is governed, and this agent's writes are not"
                    f" checked ({self._agent.ungated}); end it and start it again"
                )
            return None
        self._project = self._open(self._root)
        if self._claiming is not None:  # intents count from now on
            claiming, self._claiming = self._claiming, None
            self._parts.spawn(claiming.ended())
        if not begun:  # what it says is not heard as directives of this kind
            self._tell(self._project.rules(words=False))
        return self._project

    def _at_hand(self) -> GovernedProject | None:
        """The same, and None where it cannot be opened: told where a call is refused for it."""
        with contextlib.suppress(RelayError, OSError):
            return self._now()
        return None

    def _opened(self) -> GovernedProject:
        project = self._now()
        if project is None:
            free = self._agent.ungoverned and self._root
            why = "was started with --ungoverned" if free else "is not governed"
            if self._agent.intent:
                why = f"writes for {self._agent.intent} alone, to which the kernel holds it"
            raise RelayError(f"{self._agent.name} {why}", code="not_governed")
        return project

    async def _begin(self) -> None:
        if (project := self._now()) is not None:
            self._tell(await asyncio.to_thread(project.rules))

    async def _tell_confined(self) -> None:
        """Write down, once in a run, to which intent the kernel holds the agent; one that asks
        before its calls has selected it."""
        intent = self._agent.intent
        self._parts.note(f"confined to {intent}")
        project = self._now() or self._open(self._root)
        try:
            how = {"event": "confined", "by": self._agent.person}
            await project.note(how, intent)
            if self._project is not None:
                self._tell(await project.do("select", intent, self._agent.person))
        finally:
            if self._project is None:
                project.close()
        self._told = True
        self._parts.changed()

    async def _work(self, command: FeatureCommand) -> None:
        try:
            async with self._order:
                told = await self._opened().do(command.action, command.text.strip())
                self._chosen |= self._works and command.action == "select"
        except RelayError as error:
            told = _refused(command, error.line)
        except Exception as error:
            traceback.print_exc()  # into the log of this run
            told = _refused(command, f"relay failed at it: {type(error).__name__}: {error}")
        finally:
            self._pending.pop(command.id, None)
            if not self._pending:
                self._idle.set()
            self._parts.changed()
        if not self._gone:
            # But for a lesson the agent goes on with what it is answered.
            mode = None if command.action == "learn" else QueueMode.STEER
            self._parts.answer(command.id, told, mode)

    async def _claims_over(self, claiming: Claiming) -> None:
        await claiming.turn_ended()
        await self._show_held()

    async def _show_held(self) -> None:
        """Tell the person which files the agent holds. Never raises."""
        async with self._showing:
            held: list[str] = []
            if self._claiming is not None:
                held = await self._claiming.holds()
            with contextlib.suppress(RelayError):
                if self._project is not None:
                    held = await asyncio.to_thread(self._project.gate.holds)
            self._parts.remark(held_remark(held))

    async def _turn_over(self, project: GovernedProject, chosen: bool) -> None:
        reminder, violation = await project.turn_ended(chosen=chosen)
        await self._show_held()
        text = "\n\n".join(filter(None, (self._violated(violation), reminder)))
        if text and self._door is not None and self._door.tells_once:
            self._door.give(text)

    def _violated(self, violation: str) -> str:
        """Tell the person of it; what the agent is told."""
        if not violation:
            return ""
        self._parts.note(violation)
        return f"{violation}\nUndo it, or tell the person why it has to be. They know of it."

    def _tell(self, text: str) -> None:
        if self._door is not None:
            self._door.give(text)


def _unopened(kind: str, call: AgentHookCall, error: Exception) -> str:
    """What becomes of a call where the project cannot be opened: only what surely reads goes on."""
    from relay.features.governance import refusals
    from relay.features.governance.call_plan import gate_call
    from relay.features.governance.gate import surely_reads

    asked = gate_call(kind, call)
    return "" if surely_reads(asked) else refusals.engine_failed(error).text(asked.tool)


def _refused(command: FeatureCommand, why: str) -> str:
    return f"not done: @{NAMESPACE}:{command.action}: {why}"


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def project_opener(
    home: Home,
    agent: GovernedAgent,
    pid: int,
    broker: Broker | None,
    model: Callable[[], str] = lambda: "",
) -> Callable[[str], GovernedProject]:
    """What opens a governed project for the ``agent``, whose process is ``pid``; without a
    ``broker`` no person can be asked. ``model()``: the one that spoke last."""

    def opened(root: str) -> GovernedProject:
        # Most sessions need none of it.
        from relay.features.governance.call_plan import GovernedRun
        from relay.features.governance.confined_shell import ConfinedShell
        from relay.features.governance.gate import BrokerApprover, Gate
        from relay.features.governance.governance_store import GovernanceStore
        from relay.features.governance.governed_project import GovernedProject
        from relay.features.governance.orchestration import IntentsFile
        from relay.features.governance.trace import Trace

        scratch = os.path.join(home.run_folder(agent.run), "scratch")
        make_private_folder(os.path.dirname(scratch))
        make_private_folder(scratch)
        shell = None
        if (given := agent.shell) is not None:
            folder = home.run_folder(agent.run)
            shell = ConfinedShell(folder, agent.kind, **given)
        run = GovernedRun(
            agent.run,
            agent.name,
            root,
            agent.cwd,
            pid,
            kind=agent.kind,
            scratch=(os.path.realpath(scratch), *_plans(agent.kind, root)),
            kept_out=(os.path.realpath(home.root),),
            mcp=agent.mcp,
            shell=shell,
        )
        store, intents = GovernanceStore.open(home), IntentsFile(root)
        trace = Trace(root, store, now_ms)
        gate = Gate(
            run,
            intents=intents,
            store=store,
            trace=trace,
            approver=None if broker is None else BrokerApprover(broker),
            now_ms=now_ms,
        )
        return GovernedProject(gate, intents, trace, now_ms, model, store.close)

    return opened


def _plans(kind: str, root: str) -> list[str]:
    """Where the agent writes its plans by its tools for files, outside of the project ``root``."""
    home = os.path.expanduser("~")
    if kind == "claude":
        folder = os.path.join(os.environ.get("CLAUDE_CONFIG_DIR") or f"{home}/.claude", "plans")
    elif kind == "gemini":
        folder = os.path.join(os.environ.get("GEMINI_CLI_HOME") or home, ".gemini", "tmp")
    else:
        return []
    real = os.path.realpath(folder)
    return [] if is_within(real, root) or is_within(root, real) else [real]
