"""One wrapped agent's session: what it says becomes messages, what others say is delivered to it.

The session owns no terminal and no agent: it reads frames from the pump, asks the broker, and runs
the user's handlers. It may be killed at any moment. What it must not lose stands in the checkpoint
that every acknowledgement carries; a next session goes on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from relay.core.errors import RelayError
from relay.core.message import AgentState, Message, State
from relay.core.source_events import Proof, StateChange
from relay.directive.grammar import Match
from relay.hooks.context import (
    OUTPUT_ENTRIES_MAX,
    Context,
    Identity,
    recent_messages,
    recent_output,
)
from relay.hooks.events import HookEventName
from relay.hooks.registry import Registry
from relay.hooks.run_functions import FunctionRunner
from relay.protocol import frames
from relay.session.acknowledgement import Link, Progress
from relay.session.actions import SessionActions
from relay.session.background import Tasks
from relay.session.broker_reports import Reports
from relay.session.builtin import await_seconds
from relay.session.delivery import DeliveryQueue
from relay.session.detector import Detection
from relay.session.dispatch import Dispatcher
from relay.session.hangup import HangUp
from relay.session.hook_setup import SessionConfig, SessionHooks
from relay.session.last_delivery import LastDelivery
from relay.session.lifecycle import Lifecycle
from relay.session.memory_commands import Remembering
from relay.session.outbox import Sender
from relay.session.reply_timeouts import Awaiting
from relay.session.run_info import Broker, Facts
from relay.session.shutdown import end
from relay.session.sources import SourceSelector
from relay.session.timer import Alarm
from relay.session.typing_policy import Guards

if TYPE_CHECKING:
    from relay.session.auto_save import LastWords

_SIZE = struct.Struct(">4H")


class Session:
    """Wires the parts and moves events between them. Built once the first frame has come."""

    def __init__(
        self,
        facts: Facts,
        registry: Registry,
        broker: Broker,
        link: Link,
        guards: Guards,
        *,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> None:
        self.facts = facts
        self.guards = guards
        self._registry = registry
        self._link = link
        self.now = clock
        self._now_ms = now_ms
        self.tasks = Tasks(self.note)
        self._alarm = Alarm(self._deadlines, self._tick, clock)
        self.more_state: Callable[[], dict[str, Any]] = dict
        self._state = StateChange(AgentState.STARTING)
        self._output = recent_output()
        self._messages = recent_messages()
        self.awaiting = Awaiting()
        self.exited = asyncio.Event()
        self.exit_unread: int | None = None
        self._dealt_with = 0  # of the person's keys, by earlier sessions: the last sequence
        self.orderly = False  # the pump has said that the agent exited
        self._identity = Identity(
            facts.name, facts.name, facts.run_id, facts.cwd, facts.env, facts.task
        )
        self.reports = Reports(
            broker.request,
            self.note,
            self.spawn,
            run_id=facts.run_id,
            started_ms=facts.started_ms,
            restarts=facts.restarts,
        )
        self.sender = Sender(broker.request, self.tell, self.note, self.spawn)
        self.on_enter: Callable[[float], None] = lambda now: None
        self.on_rest: Callable[[float], None] = lambda seconds: None
        self.progress = Progress(
            link, facts.offset, self._checkpoint, self.note, busy=lambda: self.sender.busy
        )
        self.sender.on_room = self.progress.go_on
        self.actions = SessionActions(
            asyncio.get_running_loop(),
            self.sender.send,
            lambda op, extra: asyncio.ensure_future(broker.request(op, **extra)),
            now_ms,
            own_name=facts.name,
            person=facts.person,
            texts_max=facts.texts_max,
            note=self.note,
            memory=facts.memory_fields,
        )
        self.remembering = Remembering(
            broker.request,
            self.actions.answer,
            self.note,
            self.spawn,
            settings=facts.memory_fields,
            changed=lambda: self.progress.heard(0),
        )
        self.actions.remember = self.remembering.take
        self.last_words: LastWords | None = None  # with auto_save
        runner = FunctionRunner(registry, timeout=facts.handler_timeout)
        self.context = Context(self._identity, self.actions, self._output, self._messages)
        self.dispatcher = Dispatcher(
            registry,
            runner,
            context=self._match_context,
            claim=self.reports.claim_match,
            inject=self.context.inject,
            tell=self.tell,
            note=self.note,
            spawn=self.spawn,
        )
        self.transcript_path: Callable[[], str] = str
        self.hooks = SessionHooks(
            SessionConfig(self._identity, self.context, lambda: self.transcript_path()),
            registry,
            runner,
            broker.request,
            env=facts.env,
            note=self.note,
            spawn=self.spawn,
        )
        self.engine = self.hooks.engine
        self.lifecycle = Lifecycle(
            self.engine,
            inject=self.context.inject,
            note=self.note,
            spawn=self.spawn,
            idle_seconds=facts.idle_seconds,
            changed=lambda: self.progress.heard(0),
        )
        self.goodbye = LastDelivery(clock)
        self.leaving = HangUp(
            self.goodbye,
            lambda: self.lifecycle.end("hangup"),
            over=lambda: link.farewell(0),
            note=self.note,
            clock=clock,
            seconds=facts.end_seconds,
        )
        self.reports.on_delivery = self._delivery
        self.ears: SourceSelector
        self.courier: DeliveryQueue

    def connect(self, ears: SourceSelector, courier: DeliveryQueue) -> None:
        """Add the two parts that need the session's callbacks to be built."""
        self.ears = ears
        self.courier = courier
        for note in self.facts.notes:
            ears.note(note)

    # -- starting and ending --------------------------------------------------------------------

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Go on where an earlier session of this run was."""
        self.dispatcher.restore(checkpoint.get("unfinished", []))
        self.sender.restore(checkpoint.get("pending", []))
        self.remembering.restore(checkpoint.get("memory", []))
        self.lifecycle.restore(checkpoint.get("fired", {}))
        self._dealt_with = checkpoint.get("pressed", 0)

    def begin(self) -> None:
        """Start delivering, and fire the session-start hooks unless an earlier session has."""
        if self.ears.source == "screen":
            # Nothing says when such a program is at rest; what can be seen, the door looks at.
            self._state = StateChange(AgentState.IDLE)
            self.guards.state = AgentState.IDLE
        elif self.ears.agent_state is not AgentState.STARTING:
            # As the session before this one left it: the source tells only of changes.
            self._state = StateChange(self.ears.agent_state)
            self.guards.changed(self._state, self.now())
        self.spawn(self.courier.run())
        self.lifecycle.begin(self.now())
        if self.lifecycle.has(HookEventName.SESSION_START):
            self.lifecycle.background(self._start_hooks())
        if self.lifecycle.has(HookEventName.SESSION_END):
            self._link.farewell(self.facts.end_seconds)
        self._report_state()
        self._alarm.set()

    async def _start_hooks(self) -> None:
        if await self.reports.claim_start():
            await self.lifecycle.fire(HookEventName.SESSION_START, source="startup")

    async def end(self) -> None:
        """The agent is gone: settle what it said, run the last hooks, say what came of it."""
        await end(self)

    def stop(self) -> None:
        """Nothing more is acknowledged, and nothing is due any more."""
        self.progress.stop()
        self._alarm.cancel()

    def spawn(self, work: Awaitable[None]) -> None:
        """Run ``work`` in this session; a failure is noted, never raised."""
        self.tasks.spawn(work)

    # -- from the pump --------------------------------------------------------------------------

    def frame(self, kind: int, payload: bytes) -> None:
        """One frame of the pump's."""
        now = self.now()
        if kind == frames.OUTPUT:
            self.guards.output(now)
            self.goodbye.output(now)
            self.lifecycle.active(now)
            self.ears.output(payload, now)
            self.progress.heard(len(payload))
            self.progress.slow_down()
        elif kind == frames.ACTIVITY:
            self._pressed(int.from_bytes(payload[:4], "big"), payload[4:5], payload[5:9], now)
            self.courier.look_again()
        elif kind == frames.SIZE:
            cols, rows, _, _ = _SIZE.unpack(payload)
            self.ears.resize(cols, rows, now)
        elif kind == frames.REST:
            self.on_rest(int.from_bytes(payload, "big") / 1000)
            self.ears.tick(self.now())
        elif kind == frames.JOB:
            self.guards.job(payload == frames.STOPPED)
            self.courier.look_again()
        elif kind == frames.GOING:
            self.spawn(self.leaving.say())
        elif kind == frames.EXIT:
            self.exit_unread = json.loads(payload).get("unread")
            self.orderly = True
            self.exited.set()
        self._alarm.set()

    def _pressed(self, sequence: int, activity: bytes, unread: bytes, now: float) -> None:
        if activity == frames.FLUSHED:
            # The line that was being written is thrown away too.
            if sequence > self._dealt_with:
                self.spawn(self.courier.thrown_away(int.from_bytes(unread, "big")))
            activity = frames.CLEARED
        self.guards.activity(sequence, activity, now)
        if sequence <= self._dealt_with:
            return  # the pump repeats it for the guards: no line that follows is its echo
        self.ears.activity(activity, now)
        if activity == frames.ENTERED:
            self.on_enter(now)
            self.sender.person()
            self.reports.person()
            self.lifecycle.person()
            self.actions.person()

    def heard_elsewhere(self) -> None:
        """A source other than the terminal has said something, has failed or hears again."""
        self._report_state()
        self.progress.heard(0)
        self._alarm.set()

    def hook(self, event: dict[str, Any]) -> None:
        """The agent's own hook reports."""
        self.ears.hook(event, self.now())
        # The agent may wait: what follows from it is for others.
        asyncio.get_running_loop().call_soon(self.heard_elsewhere)

    def lost(self) -> None:
        """The pump has hung up: the agent is gone."""
        self.exited.set()

    # -- from the broker ------------------------------------------------------------------------

    def deliver(self, message: Message) -> None:
        """A message for the agent."""
        if message.sender_kind == "relay" and message.created_at < self.facts.started_ms:
            # What relay told an agent before this one: it may be of another project's memories.
            reason = "the agent that it was for has ended"
            self.spawn(self.reports.delivery(message, State.FAILED, reason, ""))
            return
        if self.courier.offer(message) and message.sender_kind != "relay":
            self.awaiting.heard_from(message.sender)
            self._messages.append(message)
            self.lifecycle.message(message.id, message.sender, message.body)

    def receipt(self, fields: dict[str, Any]) -> None:
        """A message of the agent's own changed its state."""
        if fields["state"] == State.FAILED:
            self.tell(f"not delivered to {fields['to']}: {fields.get('reason') or 'unknown'}")

    # -- from the sources -----------------------------------------------------------------------

    def heard(self, heard: Detection) -> None:
        """The agent said something that is for somebody."""
        if isinstance(heard.found, Match) and heard.found.namespace == "relay":
            self._messages.append(
                Message(
                    id=heard.id,
                    sender=self.facts.name,
                    to=heard.found.target,
                    body=heard.found.body,
                    created_at=self._now_ms(),
                )
            )
            if (seconds := await_seconds(heard.found)) is not None:
                self.awaiting.ask(heard.id, heard.found.target, seconds, self.now())
        self.dispatcher.take(heard)

    def said(self, texts: list[str]) -> None:
        """The agent said these lines, whatever they hold."""
        for text in texts[-OUTPUT_ENTRIES_MAX:]:
            self._output.append(text)
        if self.last_words is not None:
            self.last_words.said(texts)
        self.lifecycle.output(texts)

    def proof(self, proof: Proof) -> None:
        """Text that demonstrably reached the agent."""
        if proof.by == "screen":
            # A terminal echoes what its program has not read: the door looks for itself.
            return
        for message, by in self.courier.proven(proof.text, proof.by):
            self.spawn(self.reports.delivery(message, State.SEEN, "", by))

    def state_changed(self, change: StateChange) -> None:
        """The agent is idle, busy or blocked now."""
        self._state = change
        self.guards.changed(change, self.now())
        self.goodbye.state(change.state, tells=self.ears.source != "screen")
        self.courier.look_again()
        self._report_state()

    # -- to the agent and to the person ----------------------------------------------------------

    def tell(self, text: str) -> None:
        """Explain something to the agent, as a message from relay."""
        with contextlib.suppress(RelayError):
            self.actions.tell(text)

    def note(self, text: str) -> None:
        """Something for the person: in ``relay status``, never in the agent's terminal."""
        self.ears.note(text)
        self._report_state()

    # -- inside ---------------------------------------------------------------------------------

    def _match_context(self, heard: Detection) -> Context:
        return Context(self._identity, self.actions.for_match(heard), self._output, self._messages)

    def _checkpoint(self) -> bytes:
        extra: dict[str, Any] = {"unfinished": self.dispatcher.state()}
        extra |= {"pending": self.sender.state(), "fired": self.lifecycle.state()}
        extra |= {"memory": self.remembering.state(), "pressed": self.guards.sequence}
        return self.ears.checkpoint(extra | self.more_state())

    def _delivery(self, identifier: str, state: State) -> None:
        self.goodbye.delivery(identifier, state)
        if state in (State.SEEN, State.FAILED):
            self.lifecycle.settled(identifier)

    def _deadlines(self) -> tuple[float | None, ...]:
        """When a source or a hook is due."""
        ears, lifecycle, awaiting = self.ears, self.lifecycle, self.awaiting
        return ears.next_deadline(), lifecycle.idle_deadline(), awaiting.deadline()

    def _tick(self, now: float) -> None:
        self.ears.tick(now)
        self.lifecycle.tick(now)
        for question in self.awaiting.overdue(now):
            self.tell(f"no answer from {question.to} within {question.seconds:g} s")

    def _report_state(self) -> None:
        change = self._state
        notes = tuple(self.ears.notes)
        self.reports.agent((change.state.value, change.reason, self.ears.source, notes))

    def introduce(self) -> None:
        """The broker has come back, perhaps another one: it knows nothing of how we are."""
        self.reports.forgotten()
        self._report_state()
        self.courier.tell_again()
