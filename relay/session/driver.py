"""The driver of one session: takes events from the queue, carries commands out, keeps the timer.

It decides nothing. Work that takes time runs beside it (deliveries, requests to the broker,
handlers, hooks), and its result is posted as an event.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relay.core.errors import RelayError
from relay.core.message import State
from relay.core.source_events import SourceEvent
from relay.directive.grammar import Match
from relay.hooks.context import Context, Identity
from relay.hooks.events import HookEventName
from relay.hooks.registry import Registry
from relay.hooks.run_functions import FunctionRunner
from relay.session import session_commands as commands
from relay.session import session_events as events
from relay.session.actions import SessionActions
from relay.session.background import Tasks, failure
from relay.session.broker_reports import Broker, BrokerReports
from relay.session.delivery import DeliveryQueue
from relay.session.detector import Detection, Heard
from relay.session.door import SessionFeatures
from relay.session.handler_lanes import COMMAND_FIELDS
from relay.session.pump_link import PumpLink
from relay.session.session import Session
from relay.session.session_commands import DriverCommand
from relay.session.session_events import EventQueue, SessionEvent
from relay.session.session_hooks import SessionHooks
from relay.session.sources import SourceSelector
from relay.session.steering import Steering

#: How long the last words, hooks and messages of an agent that has ended may take. Seconds.
CLOSING_DEADLINE = 20.0
#: How much of that the hooks of earlier events may use up before the session-end hooks.
HOOKS_DEADLINE = 8.0
#: How long the last notes may take to reach the broker.
TELLING_DEADLINE = 2.0
#: How long its last words are kept for a broker that is away or has no room: nobody waits for us.
SENDING_DEADLINE = 600.0
#: Seconds until due work is tried again after a fault of relay itself in it.
FAULT_REST = 1.0


class LateClock:
    """A monotonic clock for output that is read late: the agent's rests are added to it.

    Two lines with a second between them are two utterances, also if a new session reads both at
    once.
    """

    def __init__(self) -> None:
        self._skipped = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._skipped

    def skip(self, seconds: float) -> None:
        """Take note that the agent rested for ``seconds`` before what it wrote next."""
        self._skipped += seconds


@dataclass(frozen=True)
class Services:
    """What carries a session's commands out."""

    pump: PumpLink
    broker: Broker
    reports: BrokerReports
    deliveries: DeliveryQueue
    steering: Steering | None  # None if the agent gets no messages with the answers to its hooks
    registry: Registry
    runner: FunctionRunner
    actions: SessionActions
    identity: Identity
    hooks: SessionHooks
    features: SessionFeatures
    tasks: Tasks


class SessionDriver:
    """Runs one session until its agent has ended."""

    def __init__(
        self, queue: EventQueue, session: Session, services: Services, clock: LateClock
    ) -> None:
        self._queue = queue
        self._session = session
        self._services = services
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._handled = asyncio.Event()  # set after each drain
        self._end: events.AgentExited | events.PumpLost | None = None
        self._stopped = False

    @property
    def orderly(self) -> bool:
        """Whether the pump has said that the agent exited."""
        return isinstance(self._end, events.AgentExited)

    def start(self, checkpoint: events.PumpCheckpoint) -> None:
        """Continue from the checkpoint of an earlier session of this run, and begin."""
        self._handle(checkpoint)
        self._handle(events.SessionStarted())
        self.drain()

    async def run(self) -> None:
        """Handle events until the end."""
        while not self._stopped:
            await self._queue.filled()
            self.drain()

    async def until_exit(self) -> None:
        """Wait until the agent, or the pump, is gone."""
        await self.until(lambda: self._end is not None, None)

    async def until(self, check: Callable[[], bool], seconds: float | None) -> bool:
        """Wait until ``check`` holds after some event, at most ``seconds``; whether it does."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not check():
                    self._handled.clear()
                    await self._handled.wait()
        return check()

    def take(self, event: SessionEvent) -> None:
        """Handle ``event`` at once, after the queued ones."""
        self._queue.post(event)
        self.drain()

    def drain(self) -> None:
        """Handle the queued events, and work that becomes due meanwhile."""
        if self._stopped:
            return
        rest = 0.0
        self._handle_queued()
        due = self._session.deadline()
        if due is not None and due <= self._clock():
            rest = 0.0 if self._handle(events.TimePassed()) else FAULT_REST
            self._handle_queued()
            due = self._session.deadline()
        self._set_timer(due, rest)
        self._handled.set()

    def _handle_queued(self) -> None:
        while (event := self._queue.take()) is not None:
            self._handle(event)

    def _handle(self, event: SessionEvent) -> bool:
        """Handle ``event``; False after a fault of relay itself, which is noted."""
        if isinstance(event, events.OutputRested):
            self._clock.skip(event.seconds)
        elif isinstance(event, events.AgentExited | events.PumpLost):
            self._end = self._end or event
        try:
            for command in self._session.handle(event, self._clock()):
                try:
                    self._carry_out(command)
                except Exception as error:  # the others are no worse for it
                    self._queue.post(failure(error))
        except Exception as error:
            self._queue.post(failure(error))
            return False
        return True

    def _set_timer(self, due: float | None, rest: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            delay = max(rest, due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self.drain)

    # -- commands ---------------------------------------------------------------------------------

    def _carry_out(self, command: DriverCommand) -> None:
        services = self._services
        match command:
            case commands.Acknowledge():
                services.pump.ack(command.offset, command.checkpoint)
            case commands.ReadPump():
                services.pump.read(command.on)
            case commands.KeepTerminal():
                services.pump.farewell(command.seconds)
            case commands.SendMessage():
                services.tasks.spawn(self._send(command.fields))
            case commands.ReportAgent():
                services.reports.agent(command)
            case commands.ReportPerson():
                services.reports.person()
            case commands.ReportDelivery():
                report = services.reports.delivery(command.message, command.state, command.reason)
                services.tasks.spawn(report)
            case commands.ReportEvent():
                services.reports.event(command)
            case commands.LookUpDeliveries():
                services.tasks.spawn(services.reports.look_up(command.ids, command.name))
            case commands.ReportTurn():
                services.tasks.spawn(services.reports.turn(command.fields))
            case commands.DeliverMessage():
                services.deliveries.offer(command.message)
            case commands.StartDelivering():
                services.tasks.spawn(services.deliveries.run())
            case commands.LookAgain():
                services.deliveries.look_again()
            case commands.InputFlushed():
                services.tasks.spawn(services.deliveries.thrown_away(command.unread))
            case commands.TextProven():
                self._prove(command)
            case commands.TurnChanged():
                if services.steering is not None:
                    services.steering.state_changed(command.state)
                services.features.state_changed(command.state)
            case commands.CheckSteered():
                if services.steering is not None:
                    self._report_seen(services.steering.landed())
            case commands.TellHeldAgain():
                services.deliveries.tell_again()
            case commands.RunHandlers():
                services.tasks.spawn(self._run_handlers(command.detection))
            case commands.FireHooks():
                services.tasks.spawn(self._fire(command))
            case commands.InjectText():
                self._inject(command)
            case commands.SettleSend():
                services.actions.settle(command.id, command.answer)
            case commands.ResetHandlerLimits():
                services.actions.person()
            case commands.FeatureRequested():
                services.features.take(command.namespace, command.command)
            case commands.TellFeatures():
                services.features.said(command.texts)
            case commands.SessionAsked():
                services.hooks.remote.take(command.fields)

    async def _send(self, fields: dict[str, Any]) -> None:
        op = fields.get("ask", "send")
        asked = {name: fields[name] for name in COMMAND_FIELDS.get(op, fields)}
        try:
            answer = await self._services.broker.request(op, **asked)
        except RelayError as error:
            self._queue.post(events.SendFailed(fields["id"], error))
        else:
            self._queue.post(events.SendAnswered(fields["id"], answer))

    def _prove(self, proof: commands.TextProven) -> None:
        self._report_seen(self._services.deliveries.proven(proof.text, proof.by))
        if self._services.steering is not None:
            self._report_seen(self._services.steering.proven(proof.text, proof.by))

    def _report_seen(self, found: list[tuple[Any, str]]) -> None:
        for message, by in found:
            report = self._services.reports.delivery(message, State.SEEN, proof=by)
            self._services.tasks.spawn(report)

    async def _run_handlers(self, heard: Detection) -> None:
        match = heard.found
        assert isinstance(match, Match)
        ended = events.HandlersEnded(heard)
        try:
            if await self._services.reports.claim_match(heard):
                outcomes = await self._services.runner.run_pattern(
                    match.namespace, match.target, match.body, self._context(heard)
                )
                ended = events.HandlersEnded(heard, outcomes)
        except RelayError as error:
            # The next one in this lane is not affected.
            ended = events.HandlersEnded(heard, error=error)
        finally:
            self._queue.post(ended)

    async def _fire(self, fire: commands.FireHooks) -> None:
        result = None
        try:
            async with asyncio.timeout(fire.seconds):
                later = fire.hook is not HookEventName.SESSION_START
                if later or await self._services.reports.claim_start():
                    result = await self._services.hooks.engine.fire(fire.hook, fire.fields)
                    if not later:
                        self._services.features.begin()
        except TimeoutError:
            pass
        finally:
            self._queue.post(events.HooksFired(fire.hook, result))

    def _inject(self, inject: commands.InjectText) -> None:
        try:
            self._services.actions.give(inject.text, inject.id)
        except RelayError as error:  # too long, say; the others are no worse for it
            self._queue.post(events.InjectionRefused(inject.id, inject.match, error))

    def _context(self, heard: Detection) -> Context:
        actions = self._services.actions.for_match(heard)
        session = self._session
        return Context(self._services.identity, actions, session.output, session.messages)

    # -- the end ----------------------------------------------------------------------------------

    async def end(self) -> None:
        """Settle the agent's last words, run the last hooks, report the outcome."""
        session, services = self._session, self._services
        unread = self._end.unread if isinstance(self._end, events.AgentExited) else None
        # First of all: from now on a notice would reach the next agent of that name.
        services.features.agent_gone()
        self.take(events.AgentGone())
        loop = asyncio.get_running_loop()
        end = loop.time() + CLOSING_DEADLINE
        # Before slow work: this decides whether the next run gets the messages again.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_DEADLINE):
                await services.deliveries.close(unread)
        await self.until(lambda: not session.hangup.running, end - loop.time())
        # The start comes before the end, and so does what the agent said last.
        await self.until(lambda: session.lifecycle.quiet, min(HOOKS_DEADLINE, end - loop.time()))
        self.take(events.LastHooksDue(max(0.0, end - loop.time())))
        await self.until(lambda: not session.lifecycle.ending, end - loop.time() + 1.0)
        await self.until(lambda: session.handlers.idle, end - loop.time())
        await services.features.settle(SENDING_DEADLINE)
        if not await self.until(lambda: session.outbox.empty, SENDING_DEADLINE):
            left = len(session.outbox.state())
            print(f"given up: {left} messages that the broker did not take", file=sys.stderr)
        await self.until(lambda: session.turns.empty, end - loop.time() + TELLING_DEADLINE)
        await services.features.end()
        self.take(events.EverythingSettled())
        await services.hooks.close(CLOSING_DEADLINE)
        self.drain()
        await services.reports.settle(TELLING_DEADLINE)  # what went wrong at the end, too
        self.stop()
        await services.tasks.end(CLOSING_DEADLINE / 2)

    def stop(self) -> None:
        """Begin nothing more; those that wait for an answer get none."""
        self._stopped = True
        self._set_timer(None)
        self._services.actions.close()


class AdapterFeed:
    """Takes the records that an agent's adapter has read, to its source and then the session."""

    def __init__(self, sources: SourceSelector, queue: EventQueue) -> None:
        self._sources = sources
        self._queue = queue

    def reported(self, source_events: list[SourceEvent]) -> None:
        self._post(self._sources.reported(source_events))

    def give_up(self, reason: str) -> None:
        self._post(self._sources.give_up(reason))
        self._queue.post(events.SourcesRead())

    def note(self, reason: str) -> None:
        self._queue.post(commands.PersonNote(reason))

    def read(self) -> None:
        """The adapter has handed over all records that there are now."""
        self._queue.post(events.SourcesRead())

    def visible(self) -> list[str]:
        return self._sources.visible()

    @property
    def pastes(self) -> bool:
        return self._sources.pastes

    def _post(self, heard: list[Heard]) -> None:
        if heard:
            self._queue.post(events.SourcesHeard(heard))
