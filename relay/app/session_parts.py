"""Puts one session together from the packages below: sources, doors, broker client, listeners."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import time
from typing import TYPE_CHECKING, Any

from relay.agents.base import AgentStart, Blocked, TypingRules
from relay.agents.interpreters import at_prompt, shell_in_front
from relay.agents.known_agents import (
    make_adapter,
    make_hook_codec,
    profile_named,
    ungated,
    untold,
)
from relay.app.session_broker import RegisteredBroker
from relay.app.session_env import LateClock, inner_terminal, takes_utf8, texts_max
from relay.app.session_steering import Steered
from relay.broker.directory import owner_login, person_name
from relay.config.load import LoadedConfig
from relay.core.environment import original
from relay.core.message import Message
from relay.core.paths import Home
from relay.core.plain import encodable
from relay.protocol.broker import message_from
from relay.screen.line_source import make_source
from relay.session.delivery import DeliveryQueue
from relay.session.delivery_channel import DeliveryChannel
from relay.session.detector import DirectiveDetector
from relay.session.fallback_channel import FallbackChannel
from relay.session.hook_server import HookServer
from relay.session.memory_scope import MemoryGate, chosen
from relay.session.native_channel import NativeChannel
from relay.session.pump_link import PumpLink
from relay.session.run_info import Facts
from relay.session.session import Session
from relay.session.sources import SourceSelector
from relay.session.steering import waits
from relay.session.tool_hooks import ToolHookEndpoint
from relay.session.typing_channel import TypingChannel
from relay.session.typing_policy import Guards

if TYPE_CHECKING:
    from relay.app.session_main import Start

#: When a hook's answer takes longer, the agent's records are read meanwhile. Seconds.
_HELD_UP = 0.05


class Parts:
    """Everything that one session is made of, and how it is taken apart again."""

    def __init__(
        self,
        start: Start,
        hello: dict[str, Any],
        checkpoint: dict[str, Any],
        config: LoadedConfig,
        link: PumpLink,
        home: Home,
    ) -> None:
        args = start.args
        self._start = start
        self._hello = hello
        self._checkpoint = checkpoint
        self._config = config
        self._link = link
        self._home = home
        self._guards = Guards()
        self._clock = LateClock()
        self._terminal = inner_terminal(hello)
        env = {os.fsdecode(name): os.fsdecode(value) for name, value in original().items()}
        self._store = chosen(config.settings.memory.store, env, config.unusable)
        self.facts = Facts(
            run_id=args["run_id"],
            name=args["name"],
            person=person_name(owner_login()),
            started_ms=hello["started_ms"],
            cwd=args["cwd"],
            env=env,
            task=args.get("task") or config.settings.task,
            idle_seconds=config.settings.idle_seconds,
            handler_timeout=config.settings.handler_timeout,
            texts_max=texts_max(os.environ),
            end_seconds=config.settings.end_seconds,
            offset=hello["offset"],
            restarts=hello["restarts"],
            secrets=config.settings.memory.secrets,
            store=self._store.fields,
            notes=[str(note) for note in checkpoint.get("notes", [])],
        )
        self._profile = profile_named(args.get("profile") or "")
        self._native = make_adapter(
            self._profile.kind,
            AgentStart(
                started_ms=hello["started_ms"],
                pid=hello["pid"],
                cwd=args["cwd"],
                folder=home.run_folder(args["run_id"]),
                launch=args.get("launch") or {},
                env=self.facts.env,
                checkpoint=checkpoint,
                clock=self._clock,
                terminal=self._terminal,
            ),
        )
        degraded = (args.get("launch") or {}).get("degraded")
        if degraded:
            self.facts.notes.append(str(degraded))
        if self._store.note:
            self.facts.notes.append(self._store.note)
        self._built = self._clock()
        self._channel: NativeChannel | None = None
        self._either: FallbackChannel | None = None
        self._server: HookServer | None = None
        self._broker: RegisteredBroker | None = None
        self._session: Session | None = None
        self._courier: DeliveryQueue
        self._steered: Steered

    async def build(self) -> Session:
        """Connect the parts and start the session."""
        broker = RegisteredBroker(self._home, self._push, self._note, self._returned)
        self._broker = broker
        problem = self._store.problem
        session = Session(
            self.facts,
            self._config.registry,
            broker if problem is None else MemoryGate(broker, problem),
            self._link,
            self._guards,
            clock=self._clock,
            now_ms=lambda: time.time_ns() // 1_000_000,
        )
        self._session = session
        ears = self._ears(session)
        self._make_doors()
        session.on_rest = self._clock.skip
        courier = DeliveryQueue(
            self._choose_door,
            session.reports.delivery,
            self._clock,
            self._guards.limited,
            self._guards.tried,
            self._waits,
        )
        self._courier = courier
        self._steered = Steered(
            session,
            courier,
            self._native.injection if self._native else None,
            self._config.registry.namespaces(),
            self._clock,
        )
        session.connect(ears, courier)
        self._save_last_words(session, broker)
        await self._listen(session, ears)
        args = self._start.args
        broker.start(
            name=args["name"],
            run=args["run_id"],
            token=args["token"],
            kind=self._profile.kind,
            pid=self._hello["pid"],
            # Paths and arguments may be any bytes; the broker only shows them.
            cwd=encodable(args["cwd"]),
            command=encodable(" ".join(args["argv"])),
            resume=bool(self._checkpoint),
        )
        session.restore(self._checkpoint)
        session.begin()
        return session

    def _save_last_words(self, session: Session, broker: RegisteredBroker) -> None:
        """With ``auto_save``; nothing of it is imported without."""
        memory = self._config.settings.memory
        if memory.auto_save and memory.llm is not None:
            from relay.session.auto_save import LastWords

            session.last_words = LastWords(
                memory.llm,
                self.facts.env,
                broker.request,
                session.note,
                settings=self.facts.memory_fields,
            )

    def _ears(self, session: Session) -> SourceSelector:
        """The sources, going on from the checkpoint if there is one."""
        namespaces = self._config.registry.namespaces()
        hearing = DirectiveDetector(self.facts.run_id, self.facts.started_ms, namespaces)
        if self._checkpoint:
            hearing.restore(self._checkpoint["hearing"])
        cols, rows = self._hello["cols"] or 80, self._hello["rows"] or 24
        saved = self._checkpoint.get("screen", "").encode()
        cache = os.path.join(self._home.root, "cache")
        self._screen = make_source(
            cols,
            rows,
            self._clock(),
            saved=saved,
            cache=cache,
            namespaces=namespaces,
            agent=self._profile.kind,
        )
        return SourceSelector(
            hearing,
            self._screen,
            self._native.source if self._native else None,
            on_heard=session.heard,
            on_text=session.said,
            on_state=lambda change: self._steered.state_changed(change),
            on_proof=lambda proof: self._steered.proof(proof),
        )

    def _make_doors(self) -> None:
        """The ways in: typing for every agent, and its own channel where it has one."""
        profile = self._profile
        namespaces = self._config.registry.namespaces()
        self._door = TypingChannel(
            self._link,
            self._terminal,
            self._screen,
            self._guards,
            self._clock,
            shell=profile.kind == "shell",
            manners=self._typing_rules(),
            ascii_only=not takes_utf8(self.facts.env),
            namespaces=lambda: namespaces,
            composer=self._native.composer if self._native else None,
            written=frozenset(self._hello.get("written", ())),
            seen=self._proven,
        )
        native = self._native
        door = native.channel if native else None
        if native is not None and door is not None:
            self._channel = NativeChannel(
                door.submit,
                lambda: door.available,
                lambda: namespaces,
                native.accepted,
                native.seen,
                native.hold,
            )
            if native.typed_first:
                self._either = FallbackChannel(
                    self._door, self._channel, lambda: door.available, self._proven
                )

    def _typing_rules(self) -> TypingRules:
        profile, native, pid = self._profile, self._native, self._hello["pid"]
        if native is not None:
            return TypingRules(
                cooked=native.cooked,
                enter=native.enter,
                spell=native.spell,
                shows_paste=native.shows_paste,
            )
        return TypingRules(
            style=profile.style if profile.style in ("shell", "comment") else None,
            comment=profile.comment,
            refusal=profile.refusal,
            at_prompt=at_prompt,
            in_front=lambda: shell_in_front(pid),
        )

    async def last_words(self) -> None:
        """Hear what the agent has written beside its terminal since the last look."""
        if self._native is not None and self._session is not None:
            await self._native.read(self._session.ears)

    def restore_terminal(self) -> None:
        """The pump was killed: undo on the outer terminal what the program had set there."""
        orderly = self._session is not None and self._session.orderly
        path = self._start.args.get("terminal")
        if path and not orderly:
            # Opened only now: a terminal that is held open has no end for whoever reads it.
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
                with contextlib.closing(os.fdopen(fd, "wb", buffering=0)) as terminal:
                    terminal.write(self._screen.reset_sequences())

    async def close(self, *, over: bool) -> None:
        """Hang up everywhere. Unless the run is ``over``, the next session needs the socket."""
        if self._server is not None:
            await self._server.close()
        if self._broker is not None:
            await self._broker.close()
        self._link.close()
        self._terminal.close()
        if self._native is not None:
            await self._native.close()
        if over:
            shutil.rmtree(self._home.run_folder(self.facts.run_id), ignore_errors=True)
            with contextlib.suppress(OSError):
                os.unlink(self._home.session_socket(self.facts.run_id))

    async def _listen(self, session: Session, ears: SourceSelector) -> None:
        """Answer the agent's hooks, and follow its transcript where it has one."""
        wake = asyncio.Event()
        gate = self._gate(session, ears)

        async def hook(event: dict[str, Any]) -> dict[str, Any]:
            session.hook(event)
            if gate is None:
                wake.set()
                return {}
            # The agent waits: its records are read afterwards, or when that takes long.
            later = asyncio.get_running_loop().call_later(_HELD_UP, wake.set)
            try:
                return await gate.answer(event)
            finally:
                later.cancel()
                wake.set()

        server = HookServer(hook, self._start.args["token"], on_error=self._hook_failed)
        self._server = server
        for fd in (self._start.unix, self._start.tcp):
            if fd is not None:
                await server.serve(socket.socket(fileno=fd))
        native = self._native
        if native is not None:
            session.more_state = lambda: {"native": native.state()}
            session.transcript_path = lambda: native.source.transcript_path or ""
            session.on_enter = native.entered
            session.spawn(native.watch(ears, wake, self._steered.heard_elsewhere))

    def _gate(self, session: Session, ears: SourceSelector) -> ToolHookEndpoint | None:
        """What answers the agent's own hooks, where it has any; says which tools it cannot see."""
        launch = self._start.args.get("launch") or {}
        for missed in (ungated, untold):
            for note in missed(self._profile.kind, launch, session.engine.has):
                ears.note(note)
        words = make_hook_codec(self._profile.kind)
        if words is None:
            return None
        return ToolHookEndpoint(
            words,
            session.engine,
            inject=session.context.inject,
            note=session.note,
            spawn=session.lifecycle.background,
            giver=self._steered.steering,
        )

    def _hook_failed(self, error: BaseException) -> None:
        self._note(f"a hook's report could not be used: {type(error).__name__}: {error}")

    def _waits(self, message: Message, now: float) -> Blocked | None:
        """Of what an agent takes into its running turn, only what is meant for it goes there."""
        if self._channel is None or self._native is None or not self._native.steers:
            return None
        if self._choose_door() is not self._channel:
            return None
        return waits(message, self._guards, now, self._courier.underway(now))

    def _choose_door(self) -> DeliveryChannel | None:
        if self._either is not None:
            return self._either
        if self._channel is None:
            return self._door
        native = self._native
        young = native is not None and self._clock() - self._built < native.patience
        return self._channel if self._channel.available or young else self._door

    def _proven(self, marker: str) -> bool | None:
        """Whether the agent's own records prove that it has ``marker``; None: it has none now."""
        native = self._native
        return native.seen(marker) if native and native.source.trusted else None

    def _returned(self) -> None:
        if self._session is not None:
            self._session.introduce()

    def _note(self, text: str) -> None:
        if self._session is not None:
            self._session.note(text)

    def _push(self, fields: dict[str, Any]) -> None:
        session = self._session
        if session is None:
            return
        if fields["push"] == "deliver":
            message = message_from(fields)
            self._door.offered(message)
            session.deliver(message)
        elif fields["push"] == "receipt":
            session.receipt(fields)
        elif fields["push"] == "ask":
            session.hooks.remote.take(fields)
