"""One session put together from the packages below, and taken apart again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import socket
import time
from dataclasses import dataclass, field, replace
from typing import Any

from relay.agents.base import AgentAdapter, AgentStart
from relay.agents.interpreters import has_terminal, pager_in_front, shows_anything
from relay.agents.known_agents import (
    answers_once,
    make_adapter,
    make_hook_codec,
    profile_of_run,
    rules_of,
    source_of,
    ungated,
    untold,
)
from relay.app.session_broker import RegisteredBroker
from relay.config.load import LoadedConfig
from relay.core.agent_names import owner_name
from relay.core.environment import original, takes_utf8
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.core.plain import encodable
from relay.hooks.context import Context, Identity
from relay.hooks.run_functions import FunctionRunner
from relay.protocol.nested_wrap import NestedOutput
from relay.screen.source import make_source
from relay.session.actions import SessionActions
from relay.session.agent_questions import OpenQuestions, QuestionWatch
from relay.session.agent_terminal import AgentTerminal, open_agent_tty
from relay.session.background import Tasks
from relay.session.broker_reports import Broker, BrokerReports
from relay.session.delivery import DeliveryQueue
from relay.session.detector import DirectiveDetector
from relay.session.door import SessionFacts, SessionFeatures
from relay.session.driver import AdapterFeed, LateClock, Services, SessionDriver
from relay.session.feature_parts import FeatureParts, SessionModules
from relay.session.hook_server import HookServer
from relay.session.paste_typing import AgentRecords
from relay.session.profile_fit import ProfileFit
from relay.session.pump_link import PumpLink
from relay.session.run_info import RunInfo, account_of, texts_max
from relay.session.screen_requests import ScreenRequests
from relay.session.session import Checkpointed, Session, SessionAgent
from relay.session.session_commands import PersonNote
from relay.session.session_events import EventQueue, HookReported, PumpCheckpoint, PumpHello
from relay.session.session_hooks import (
    RemoteRequests,
    SessionConfig,
    SessionHookLog,
    SessionHooks,
    make_engine,
)
from relay.session.sources import OthersInFront, SourceSelector
from relay.session.stall_watch import StallWatch
from relay.session.steering import Steering
from relay.session.tool_hooks import ToolHookEndpoint
from relay.session.turn_report import TurnReports, gate_of_run
from relay.session.turn_stopper import TurnStopper
from relay.session.typing_policy import Guards, PagerWatch
from relay.session.typist import Typist

#: Lines in which is noted what is wrong with hook files; ``relay config check`` says all.
HOOK_PROBLEMS_MAX = 5
#: When a hook's answer takes longer, the agent's records are read meanwhile. Seconds.
_HELD_UP = 0.05


@dataclass(slots=True)
class Start:
    """What the pump hands over: its own descriptor, others by their names, and facts."""

    pump: int
    fds: dict[str, int | None]
    args: dict[str, Any]
    config: LoadedConfig | None = None  # given by a program that uses Relay, else looked for
    features: SessionModules = field(default_factory=SessionModules)


def session_facts(start: Start, hello: PumpHello, config: LoadedConfig) -> SessionFacts:
    """What features are told of the session."""
    launch = start.args.get("launch") or {}
    kind = start.args.get("profile") or ""
    return SessionFacts(kind, launch, hello.facts, config.settings, config.unusable)


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class SessionParts:
    """Everything that one session is made of."""

    def __init__(
        self,
        start: Start,
        hello: PumpHello,
        checkpoint: PumpCheckpoint,
        config: LoadedConfig,
        link: PumpLink,
        queue: EventQueue,
    ) -> None:
        home = Home(start.args["home"])
        self._start = start
        self._hello = hello.facts
        self._checkpoint = checkpoint
        self._registry = config.registry
        self._namespaces = config.registry.namespaces()
        self._link = link
        self._queue = queue
        self._home = home
        self._clock = LateClock()
        self._tasks = Tasks(queue)
        self._terminal = open_agent_tty(self._hello.get("tty"), self._hello["pid"])
        self._launch: dict[str, Any] = start.args.get("launch") or {}
        self._profile, unusable = profile_of_run(start.args, home.profiles)
        self._kind = self._profile.name
        env = {os.fsdecode(name): os.fsdecode(value) for name, value in original().items()}
        self._run = self._run_info(config, env)
        self._adapter = self._make_adapter()
        self._registered = RegisteredBroker(home, queue)
        self._features = SessionFeatures(queue)
        # What is noted stands in the order in which a person needs it.
        saved = [str(note) for note in checkpoint.state.get("notes", [])]
        told = [str(self._launch[key]) for key in ("degraded", "newer") if self._launch.get(key)]
        notes = [*saved, *told, *unusable]
        notes += [*config.not_applied, *config.hook_problems[:HOOK_PROBLEMS_MAX]]

        hooked = {hook.event for hook in config.registry.all_hooks()}
        for missed in (ungated, untold):
            notes += missed(self._kind, self._launch, hooked)
        self._sources = self._make_sources(notes)
        self._guards = Guards(self._asking, self._pager, self._hello["offset"])
        self._feed = AdapterFeed(self._sources, queue)
        facts = replace(session_facts(start, hello, config), kind=self._kind)
        self.driver = self._make_driver(facts, self._registered)
        # The agent's records are worth a look.
        self._wake = self._adapter.wake if self._adapter else asyncio.Event()
        self._server = HookServer(self._answer_hook, start.args["token"])

    async def begin(self) -> None:
        """Register with the broker, start the session, and serve the agent's hooks."""
        args = self._start.args
        self._registered.start(
            name=args["name"],
            run=args["run_id"],
            token=args["token"],
            kind=self._kind,
            pid=self._hello["pid"],
            # Paths and arguments may be any bytes; the broker only shows them.
            cwd=encodable(args["cwd"]),
            command=encodable(shlex.join(args["argv"])),
            resume=bool(self._checkpoint.state),
            roles=args.get("roles") or [],
            join=args.get("join") or [],
            **self._features.registration(),
        )
        # Before anything is awaited: what was said before the checkpoint comes before what is
        # queued by now, or comes from the agent's hooks.
        self.driver.start(self._checkpoint)
        if self._adapter is not None:
            self._tasks.spawn(self._adapter.watch(self._feed))
        stalls = StallWatch(
            self._guards, self._sources, self._hello["pid"], self._queue, self._clock
        )
        self._tasks.spawn(stalls.run())
        self._tasks.spawn(self._fit.run(self._sources, self._queue, self._clock))
        for name in ("unix", "tcp"):
            if (fd := self._start.fds.get(name)) is not None:
                await self._server.serve(socket.socket(fileno=fd))

    async def read_last_records(self) -> None:
        """Read what the agent has written beside its terminal since the last look."""
        if self._adapter is not None:
            await self._adapter.read(self._feed)

    def restore_terminal(self) -> None:
        """The pump was killed: undo on the outer terminal what the program had set there."""
        if (path := self._start.args.get("terminal")) and not self.driver.orderly:
            # Opened only now: a terminal that is held open has no end for its reader.
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
                with contextlib.closing(os.fdopen(fd, "wb", buffering=0)) as terminal:
                    terminal.write(self._screen.reset_sequences())

    async def close(self, *, over: bool) -> None:
        """Hang up everywhere. Unless the run is ``over``, the next session needs the socket."""
        self.driver.stop()
        await self._server.close()
        await self._registered.close(over=over)
        self._link.close()
        self._terminal.close()
        if self._adapter is not None:
            await self._adapter.close()
        if over:
            self._home.remove_run(self._run.run_id)

    # -- the agent's hooks ------------------------------------------------------------------------

    async def _answer_hook(self, event: dict[str, Any]) -> dict[str, Any]:
        try:
            self.driver.take(HookReported(event))
        except Exception as error:
            text = f"a hook's report could not be used: {type(error).__name__}: {error}"
            self._queue.post(PersonNote(text))
            raise
        if self._gate is None:
            self._wake.set()
            return {}
        # The agent waits: its records are read afterwards, or when that takes long.
        later = asyncio.get_running_loop().call_later(_HELD_UP, self._wake.set)
        try:
            return await self._gate.answer(event)  # never raises
        finally:
            later.cancel()
            self._wake.set()

    # -- making the parts -------------------------------------------------------------------------

    def _run_info(self, config: LoadedConfig, env: dict[str, str]) -> RunInfo:
        args, settings = self._start.args, config.settings
        return RunInfo(
            run_id=args["run_id"],
            name=args["name"],
            person=owner_name(),
            started_ms=self._hello["started_ms"],
            cwd=args["cwd"],
            project=args.get("project", ""),
            env=env,
            account=account_of(self._kind, env),
            task=args.get("task") or settings.task,
            idle_seconds=settings.idle_seconds,
            handler_timeout=settings.handler_timeout,
            texts_max=texts_max(os.environ),
            end_seconds=settings.end_seconds,
            offset=self._hello["offset"],
            restarts=self._hello["restarts"],
        )

    def _make_adapter(self) -> AgentAdapter | None:
        return make_adapter(
            self._kind,
            AgentStart(
                started_ms=self._run.started_ms,
                pid=self._hello["pid"],
                cwd=self._run.cwd,
                folder=self._home.run_folder(self._run.run_id),
                launch=self._launch,
                env=self._run.env,
                checkpoint=self._checkpoint.state,
                clock=self._clock,
                terminal=self._terminal,
                profile=self._profile,
            ),
        )

    def _make_sources(self, notes: list[str]) -> SourceSelector:
        """The sources, going on from the checkpoint if there is one."""
        state = self._checkpoint.state
        detector = DirectiveDetector(self._run.run_id, self._run.started_ms, self._namespaces)
        if state:
            detector.restore(state["hearing"])
        self._screen = make_source(
            self._hello["cols"] or 80,
            self._hello["rows"] or 24,
            self._clock(),
            saved=state.get("screen", "").encode(),
            cache=os.path.join(self._home.root, "cache"),
            namespaces=self._namespaces,
            style=self._profile.screen,
        )
        own = source_of(self._adapter, self._profile)
        drawn = (self._screen, self._terminal)
        seen = bool(state.get("fit", {}).get("seen"))
        self._fit = ProfileFit(self._profile, self._adapter, own, *drawn, seen=seen)
        inner = NestedOutput(self._run.run_id, state.get("inner", 0), self._hello["pid"])
        rules = rules_of(self._profile, self._start.args, self._adapter)
        self._asking = OpenQuestions(*drawn, rules, state.get("prompt", {}), self._fit.composer)
        self._pager = pager = PagerWatch(pager_in_front, self._hello["pid"])
        self._questions = QuestionWatch(self._screen, self._asks, now_ms, self._profile.inset)
        deaf = shows_anything(self._kind) and not self._start.args.get("hear")
        others = OthersInFront(pager, inner, has_terminal)
        read = (detector, self._screen, own, others, self._questions)
        sources = SourceSelector(*read, deaf=deaf)
        for note in notes:
            sources.note(note)
        return sources

    def _asks(self, rows: list[str]) -> list[str]:
        """Which rows of the agent's screen ask its person something, the others blank."""
        questions, adapter = self._asking, self._adapter
        if adapter is None and questions.rules.refusal:
            return []  # what stands there may be a file's words: no answer is typed either
        if adapter is not None and self._profile.asks(rows, self._screen.title):
            return rows
        state = questions.composer(rows)
        if adapter is not None or state != "unknown":
            return rows if state == "dialog" else []
        if self._pager.there(self._clock()) or not questions.asks():
            return []
        return questions.unanswered(rows)

    def _make_driver(self, facts: SessionFacts, broker: Broker) -> SessionDriver:
        run, queue, tasks = self._run, self._queue, self._tasks
        reports = BrokerReports(broker, queue, tasks, run)
        deliveries = self._make_deliveries(reports)
        loop, features = asyncio.get_running_loop(), self._features
        actions = SessionActions(loop, queue, broker, run, now_ms, features)
        self._open_features(facts, broker, actions)
        kept: dict[str, Checkpointed] = {"features": features, "prompt": self._asking}
        kept["fit"] = self._fit
        if self._adapter is not None:
            kept["native"] = self._adapter
        kept |= {"turns": self._turns, "gate": self._turns.gate}
        session = Session(
            run,
            self._registry,
            SessionAgent(self._sources, self._guards, self._turns, self._adapter),
            kept,
            new_id=lambda: new_ulid(now_ms()),
            now_ms=now_ms,
        )
        requests = ScreenRequests(
            *(self._at, self._questions, self._stopper),
            *(self._kind, self._sources, session.output),
        )
        identity = Identity(run.name, run.name, run.run_id, run.cwd, run.env, run.task)
        context = Context(identity, actions, session.output, session.messages)
        runner = FunctionRunner(self._registry, timeout=run.handler_timeout)
        log = SessionHookLog(broker, queue, tasks, verbose=bool(run.env.get("RELAY_DEBUG")))
        config = SessionConfig(identity, context, self._adapter)
        engine = make_engine(config, self._registry, runner, env=run.env, log=log)
        answers = {**features.requests(), **requests.answers()}
        remote = RemoteRequests(engine.requests, broker, queue, answers)
        hooks = SessionHooks(runner, log, engine, remote)
        steering = None
        if self._adapter is not None and (injection := self._adapter.injection) is not None:
            steering = Steering(deliveries, injection, reports, tasks, self._clock)
        codec, gate = make_hook_codec(self._kind), self._turns.gate.refuses
        given = (hooks.engine, queue, steering, gate, features.guards)
        self._gate = ToolHookEndpoint(codec, *given) if codec else None
        services = Services(
            pump=self._link,
            broker=broker,
            reports=reports,
            deliveries=deliveries,
            steering=steering,
            registry=self._registry,
            runner=runner,
            actions=actions,
            identity=identity,
            hooks=hooks,
            features=features,
            tasks=tasks,
        )
        return SessionDriver(queue, session, services, self._clock)

    def _open_features(self, facts: SessionFacts, broker: Broker, actions: SessionActions) -> None:
        modules, state = self._start.features, self._checkpoint.state
        parts = FeatureParts(
            facts,
            self._run,
            self._home,
            broker,
            actions,
            self._queue,
            self._tasks,
            self._sources,
            state.get("features", {}),
        )
        self._features.use(modules.open(parts))
        for problem in modules.problems:
            self._queue.post(PersonNote(problem))

    def _make_deliveries(self, reports: BrokerReports) -> DeliveryQueue:
        adapter = None if answers_once(self._kind, self._launch) else self._adapter
        drawn = (self._terminal, self._screen)
        self._at = AgentTerminal(self._link, *drawn, self._guards, self._asking, self._clock)
        typist = Typist(
            self._at,
            AgentRecords(adapter),
            ascii_only=not takes_utf8(self._run.env),
            written=frozenset(self._hello.get("written", ())),
        )
        self._stopper = TurnStopper(self._at, adapter, self._profile, self._queue)
        gate = gate_of_run(self._kind, self._launch, self._checkpoint.state)
        told = (typist.at_prompt, self._guards.quiet_for, gate)
        turns = self._turns = TurnReports(self._sources, now_ms, *told)
        turns.restore(self._checkpoint.state.get("turns"), self._clock())
        return DeliveryQueue(
            typist,
            reports,
            self._guards,
            self._clock,
            self._stopper,
            settling=turns.settling,
        )
