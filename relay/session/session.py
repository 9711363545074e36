"""One wrapped agent's session: what it says becomes messages, what others say is delivered to it.

It routes events (session_events) to its parts, and commands (session_commands) come out. It owns no
terminal, socket or clock. It may be killed at any moment: all state that must not be lost is in the
checkpoint that each acknowledgement carries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from relay.agents.base import AgentAdapter
from relay.core.bounded import RecentSet
from relay.core.message import AgentState, Message, State
from relay.core.source_events import Proof, StateChange
from relay.directive.grammar import Match
from relay.hooks.context import OUTPUT_ENTRIES_MAX, recent_messages, recent_output
from relay.hooks.events import HookEventName
from relay.hooks.registry import Registry
from relay.protocol import frames
from relay.session import session_commands as commands
from relay.session import session_events as events
from relay.session.detector import AgentSaid, Detection, ForAgent, Heard
from relay.session.handler_lanes import HandlerLanes, await_seconds, not_injected
from relay.session.lifecycle import HangupTimer, Lifecycle
from relay.session.outbox import Outbox, ReplyTimeouts
from relay.session.run_info import RunInfo
from relay.session.session_commands import (
    Acknowledge,
    DriverCommand,
    PersonNote,
    ReadPump,
)
from relay.session.session_events import SessionEvent
from relay.session.sources import SourceSelector
from relay.session.turn_report import TurnReports
from relay.session.typing_policy import Guards

#: Remembered ids of messages from the broker; one that is offered again is not delivered again.
KNOWN_MAX = 10_000
#: A program that relay reads from its screen alone is looked at so often until it is at a prompt;
#: after so many seconds it counts as started all the same: it may never be at one.
LOOK, STARTS = 0.25, 15.0
_UNDELIVERED = (State.FAILED, State.CANCELLED)


@dataclass(frozen=True, slots=True)
class SessionAgent:
    """The wrapped agent, as its session knows it."""

    sources: SourceSelector  # what it says, and whether it works
    guards: Guards  # whether it may be typed into; deliveries read them, too
    turns: TurnReports  # what it answers, and what it may use for that
    adapter: AgentAdapter | None = None  # None for a program of which nothing special is known


class Session:
    """Routes the events of one wrapped agent; times are those of one monotonic clock, in seconds.

    ``kept``: services with a part of the checkpoint, by name.
    """

    def __init__(
        self,
        run: RunInfo,
        registry: Registry,
        agent: SessionAgent,
        kept: Mapping[str, Checkpointed],
        *,
        new_id: Callable[[], str],
        now_ms: Callable[[], int],
    ) -> None:
        self._run = run
        self._sources, self._guards, self._adapter = agent.sources, agent.guards, agent.adapter
        self.turns = turns = agent.turns
        self._kept = kept
        self._new_id = new_id
        self._now_ms = now_ms
        #: The agent's last words and messages, for handlers.
        self.output = recent_output()
        self.messages = recent_messages()
        self.handlers = HandlerLanes(registry, new_id, turns.gate.refuses_words)
        self.lifecycle = Lifecycle(registry, new_id, idle_seconds=run.idle_seconds)
        self.outbox = Outbox()
        self.hangup = HangupTimer(run.end_seconds)
        self._acks, self._replies = AckTracker(run.offset), ReplyTimeouts()
        self._state = StateChange(AgentState.STARTING)
        self._started_at = 0.0
        self._look_at: float | None = None  # when to look whether it has started
        self._reported: commands.ReportAgent | None = None
        self._known = RecentSet[str](KNOWN_MAX)
        self._keys_dealt_with = 0  # the person's last key that an earlier session handled
        self._remark = ""
        # A message has reached the agent since the person spoke to it, maybe in an earlier session.
        self._reached = run.restarts > 0

    def handle(self, event: SessionEvent, now: float) -> Iterator[DriverCommand]:
        """Handle one event. Returns commands, which are carried out in their order."""
        yield from self._without_own(self._route(event, now), now)

    def _without_own(self, found: Iterable[DriverCommand], now: float) -> Iterator[DriverCommand]:
        """Carry out the session's own commands, and pass on the others."""
        for command in found:
            if isinstance(command, commands.PersonNote):
                self._sources.note(command.text)
                yield from self._report_agent()
            elif isinstance(command, commands.NoteOver):
                self._sources.forget(command.text)
                yield from self._report_agent()
            elif isinstance(command, commands.AgentRemark):
                self._remark = command.text
                yield from self._report_agent()
            elif isinstance(command, commands.AgentNotice):
                # A message for which there is no room becomes a note.
                told = self.outbox.notice(command, self._run.name, self._new_id, now)
                yield from self._without_own(told, now)
            elif isinstance(command, commands.SendRequested):
                yield from self._without_own(self._send(command.fields, now), now)
            else:
                yield command

    def deadline(self) -> float | None:
        """When TimePassed is due."""
        timed = (self.lifecycle, self.outbox, self._acks, self._replies, self.hangup, self.turns)
        due = (self._look_at, self._sources.next_deadline(), *(one.deadline() for one in timed))
        return min((one for one in due if one is not None), default=None)

    # -- routing ----------------------------------------------------------------------------------

    def _route(self, event: SessionEvent, now: float) -> Iterator[DriverCommand]:
        match event:
            case events.AgentWrote():
                yield from self._output(event.data, now)
            case events.PersonTyped():
                yield from self._typed(event, now)
            case events.TerminalResized():
                yield from self._heard(self._sources.resize(event.cols, event.rows, now), now)
            case events.OutputRested():
                yield from self._heard(self._sources.tick(now), now)
            case events.AgentStopped():
                self._guards.job(event.stopped)
                yield from (*self._report_agent(), commands.LookAgain())
            case events.TerminalGone() if not self.hangup.begun:
                yield from self._terminal_gone(now)
            case events.MessageArrived():
                yield from self._arrived(event.message, now)
            case events.ReceiptArrived(fields) if fields["state"] in _UNDELIVERED:
                why = fields.get("reason") or "unknown"
                text = f"not delivered to {fields['to']}: {why}"
                yield commands.AgentNotice(text, mistake=False)
            case commands.SessionAsked() | commands.FeatureRequested():
                yield event
            case commands.ReportEvent():
                if event.kind == "tool_call":
                    self.turns.used(event.meta)
                yield event
            case events.BrokerReturned():
                self._reported = None
                yield from self._report_agent()
                yield commands.TellHeldAgain()
            case events.SendAnswered():
                self._replies.reached(event.id, event.answer)
                yield from self.outbox.answered(event.id, event.answer, now)
                yield from self._acks.pace(self._busy, now, moved=True)
            case events.SendFailed():
                yield from self.outbox.failed(event.id, event.error, now)
                yield from self._acks.pace(self._busy, now)
            case events.DeliveryReported():
                yield from self._delivered(event, now)
            case events.TurnStopped():
                self.turns.stopped(event.what)
            case events.TurnReported():
                self.turns.told(event.ids)
                self._acks.changed(now)
            case events.HookReported():
                yield from self._heard(self._sources.hook(event.event, now), now)
                yield from self._report_agent()
                self._acks.changed(now)
            case events.SourcesHeard():
                yield from self._heard(event.heard, now)
            case events.SourcesRead():
                yield from self._report_agent()
                self._acks.changed(now)
                yield commands.CheckSteered()
            case events.HandlersEnded():
                yield from self.handlers.ended(event)
                self._acks.changed(now)
                yield from self._acks.pace(self._busy, now, moved=True)
            case events.HooksFired():
                yield from self._fired(event, now)
            case events.InjectRequested():
                yield commands.InjectText(self._new_id(), event.text)
            case events.HooksObserved():
                yield from self.lifecycle.observe(event.hook, event.fields)
            case events.KindsWanted():
                self.lifecycle.tell_of(event.kinds)
            case events.InjectionRefused():
                self.hangup.delivery(event.id, State.FAILED, now)
                yield from not_injected(event)
            case (
                commands.AgentNotice()
                | commands.PersonNote()
                | commands.NoteOver()
                | commands.AgentRemark()
                | commands.SendRequested()
            ):
                yield event
            case events.SessionStarted():
                yield from self._started(now)
            case events.AgentGone():
                self.lifecycle.agent_gone()
                yield from self._heard(self._sources.finish(now), now)
                yield from self.turns.gone(now)
                yield from self.hangup.agent_gone()
            case events.LastHooksDue():
                yield from self.lifecycle.end("exit", event.seconds)
            case events.EverythingSettled():
                self._acks.changed(now)
                yield from self._acks.acknowledge(self._checkpoint())
            case events.PumpCheckpoint():
                yield from self._restore(event.state)
            case events.TimePassed():
                yield from self._tick(now)  # the driver handles the end and the hello

    def _heard(self, heard: Iterable[Heard], now: float) -> Iterator[DriverCommand]:
        for one in heard:
            if isinstance(one, Detection):
                yield from self._detected(one, now)
            elif isinstance(one, ForAgent):
                yield commands.AgentNotice(one.text)
            elif isinstance(one, AgentSaid):
                for text in one.texts[-OUTPUT_ENTRIES_MAX:]:
                    self.output.append(text)
                yield commands.TellFeatures(one.texts)
                self.turns.said(one.texts, now)
                yield from self.lifecycle.output(one.texts, now)
            elif isinstance(one, StateChange):
                yield from self._state_changed(one, now)
            elif isinstance(one, Proof) and one.by != "screen":
                # A terminal echoes input that its program has not read: typing checks that itself.
                yield commands.TextProven(one.text, one.by)
                yield from self.turns.proven(one.text, now)

    # -- from the pump ----------------------------------------------------------------------------

    def _output(self, data: bytes, now: float) -> Iterator[DriverCommand]:
        self._acks.output(len(data), now)  # first: every byte is counted, whatever fails later
        self._guards.output(now, len(data))
        self.hangup.output(now)
        self.lifecycle.active(now)
        yield from self._heard(self._sources.output(data, now), now)
        yield from self._acks.pace(self._busy, now)

    @property
    def _busy(self) -> bool:
        """Whether so much waits that the session should read no more for now."""
        return self.outbox.busy or self.handlers.busy

    def _typed(self, typed: events.PersonTyped, now: float) -> Iterator[DriverCommand]:
        activity, known = typed.activity, typed.sequence <= self._keys_dealt_with
        if activity in (frames.FLUSHED, frames.INTERRUPTED):
            # The line that was being typed is thrown away too.
            if not known:
                yield commands.InputFlushed(typed.unread)
            activity = frames.CLEARED
        self._guards.activity(typed.sequence, typed.activity, now)
        if not known:  # else the pump repeats it for the guards: no line that follows is its echo
            yield from self._heard(self._sources.activity(activity, now), now)
            if activity == frames.ENTERED:
                yield from self._person_spoke(now)
        yield commands.LookAgain()

    def _person_spoke(self, now: float) -> Iterator[DriverCommand]:
        if self._adapter is not None:
            self._adapter.entered(now)
        self.outbox.person()
        self.lifecycle.person()
        yield commands.ResetHandlerLimits()
        if self._reached:
            self._reached = False
            yield commands.ReportPerson()

    def _terminal_gone(self, now: float) -> Iterator[DriverCommand]:
        self.hangup.begin(now)
        yield from self._report_agent()
        fired = list(self.lifecycle.end("hangup", self._run.end_seconds))
        self._acks.changed(now)
        yield from fired
        if not self.lifecycle.ending:  # there are no session-end hooks, or they have run
            yield from self.hangup.told(set(), now)

    # -- from the broker --------------------------------------------------------------------------

    def _arrived(self, message: Message, now: float) -> Iterator[DriverCommand]:
        by_relay = message.sender_kind == "relay"
        if by_relay and message.created_at < self._run.started_ms:
            # A notice to an earlier agent of this name, maybe with another project's memories.
            reason = "the agent that it was for has ended"
            yield commands.ReportDelivery(message, State.FAILED, reason)
            return
        if not self._known.add(message.id):
            return
        yield from self.turns.arrived(message)
        self._acks.changed(now)
        self._replies.heard(message)
        if not by_relay:
            self.messages.append(message)
            yield from self.lifecycle.message(message.id, message.sender, message.body)

    def _delivered(self, event: events.DeliveryReported, now: float) -> Iterator[DriverCommand]:
        self._reached |= event.state in (State.SUBMITTED, State.SEEN)
        self.hangup.delivery(event.id, event.state, now)
        if event.state.final:
            self.lifecycle.settled(event.id)
        yield from self.turns.delivered(event.id, event.state, now)

    def _send(self, fields: dict[str, Any], now: float) -> Iterator[DriverCommand]:
        self.hangup.sends(fields, self._run.name, asked=self.lifecycle.ending)
        yield from self.outbox.send(fields)
        self._acks.changed(now)
        yield from self._acks.pace(self._busy, now)  # before as much again is read

    # -- from the sources -------------------------------------------------------------------------

    def _detected(self, heard: Detection, now: float) -> Iterator[DriverCommand]:
        """The agent said a directive."""
        found = heard.found
        if isinstance(found, Match) and found.namespace == "relay":
            said = Message(heard.id, self._run.name, found.target, found.body, self._now_ms())
            self.messages.append(said)
            if (seconds := await_seconds(found)) is not None:
                self._replies.ask(heard.id, found.target, seconds, now)
        yield from self.handlers.take(heard)

    def _state_changed(self, change: StateChange, now: float) -> Iterator[DriverCommand]:
        self._state = change = self._sources.state_changed(change, now)
        self._guards.changed(change, now)
        self.hangup.agent_state(change.state, now, tells=not self._sources.screen_only)
        self.turns.state_changed(change, now)
        yield commands.LookAgain()
        yield commands.TurnChanged(change.state)
        yield from self._report_agent()

    # -- hooks and time ---------------------------------------------------------------------------

    def _fired(self, fired: events.HooksFired, now: float) -> Iterator[DriverCommand]:
        told = set()
        for command in self.lifecycle.fired(fired, now):
            if isinstance(command, commands.InjectText):
                told.add(command.id)
            yield command
        if fired.hook is not HookEventName.SESSION_END:
            return
        if fired.result is None and not self.hangup.begun:
            yield commands.PersonNote(
                "on_session_end took too long after the agent's end, and was ended"
            )
        yield from self.hangup.told(None if fired.result is None else told, now)

    def _restore(self, checkpoint: dict[str, Any]) -> Iterator[DriverCommand]:
        """Continue from the checkpoint of an earlier session; the sources have their part."""
        self.lifecycle.restore(checkpoint.get("fired", {}))
        self._keys_dealt_with = checkpoint.get("pressed", 0)
        yield from self.handlers.restore(checkpoint.get("unfinished", []))
        yield from self.outbox.restore(checkpoint.get("pending", []))
        self._replies.restore(checkpoint.get("questions", []))
        yield from self.turns.look_up(self._run.name)

    def _started(self, now: float) -> Iterator[DriverCommand]:
        """Start delivering, and fire the session-start hooks unless an earlier session has."""
        # It is as the last session left it: its source reports changes only.
        state = self._sources.agent_state
        if self._sources.screen_only and self._run.restarts:
            state = AgentState.IDLE
        if state is AgentState.STARTING:
            self._started_at = self._look_at = now
        else:
            self._state = StateChange(state)
            self._guards.changed(self._state, now)
        self.turns.state_changed(self._state, now)
        yield commands.StartDelivering()
        self.lifecycle.begin(now)
        yield from self.lifecycle.start()
        if self.lifecycle.has(HookEventName.SESSION_END):
            yield commands.KeepTerminal(self._run.end_seconds)
        yield from self._report_agent()

    def _look_for_prompt(self, now: float) -> Iterator[DriverCommand]:
        """A program that relay reads from its screen alone has started once it is at a prompt."""
        if self._look_at is None or now < self._look_at:
            return
        self._look_at = None
        if self._state.state is not AgentState.STARTING:
            return
        late = now >= self._started_at + STARTS
        if self._sources.screen_only and (late or self.turns.at_prompt(now)):
            yield from self._state_changed(StateChange(AgentState.IDLE), now)
        else:
            self._look_at = now + LOOK

    def _tick(self, now: float) -> Iterator[DriverCommand]:
        found = list(self._due(now))
        yield from found
        if found:
            self._acks.changed(now)
        elif self._acks.due(now):
            # Only in a turn of its own: what other commands lead to belongs into the checkpoint.
            yield from self._acks.acknowledge(self._checkpoint())
            yield from self.turns.written()

    def _due(self, now: float) -> Iterator[DriverCommand]:
        yield from self._heard(self._sources.tick(now), now)
        yield from self._look_for_prompt(now)
        yield from self._report_agent()
        yield from self.lifecycle.tick(now)
        yield from self.outbox.tick(now)
        yield from self._acks.tick(now)
        yield from self.hangup.tick(now)
        yield from self.turns.tick(now)
        yield from self._replies.tick(now)

    def _checkpoint(self) -> bytes:
        extra: dict[str, Any] = {
            "unfinished": self.handlers.state(),
            "pending": self.outbox.state(),
            "questions": self._replies.state(),
            "fired": self.lifecycle.state(),
            "pressed": self._guards.sequence,
        }
        return self._sources.checkpoint(extra | {n: kept.state() for n, kept in self._kept.items()})

    # -- to the agent, the person and the pump ----------------------------------------------------

    def _report_agent(self) -> Iterator[DriverCommand]:
        heard, shown = self._sources, self._sources.shown(self._state)
        shown = self.hangup.shown(self._guards.shown(shown))
        how = heard.source, tuple(heard.notes), heard.conversation, heard.usage, heard.question
        report = commands.ReportAgent(
            shown.state.value, shown.reason, *how, shown.retry, shown.cause, self._remark
        )
        if report != self._reported:
            self._reported = report
            yield report


#: Output is acknowledged after this many bytes (half of what the pump keeps), or this many seconds
#: after the first of it. Each acknowledgement costs a checkpoint, some milliseconds.
ACK_BYTES = 4 * 1024 * 1024
ACK_SECONDS = 0.1
#: How long the pump may stay unread without progress, and how soon progress is acknowledged: the
#: pump drops a session that makes none for five seconds.
PAUSE_MAX = 1.0


class Checkpointed(Protocol):
    """A service with a state that a next session needs."""

    def state(self) -> Any: ...


class AckTracker:
    """Counts the output from ``offset`` on and says when it is to be acknowledged.

    The pump forgets acknowledged output, so each acknowledgement carries a checkpoint from which
    the next session could continue. While much waits for the broker or for handlers, and makes
    progress, the session does not read the pump: the pump keeps the output and, when it can keep no
    more, slows the agent down.
    """

    def __init__(self, offset: int) -> None:
        self._offset = self._acked = offset
        self._ack_at: float | None = None  # None: nothing has changed since the last one
        self._resume_at: float | None = None  # None: the pump is read
        self._read = False  # whether something was read since the last pause

    def output(self, size: int, now: float) -> None:
        """``size`` bytes of output were read."""
        self._offset += size
        self._read = True
        self.changed(now)

    def changed(self, now: float) -> None:
        """Note that the last checkpoint is out of date."""
        if self._offset - self._acked >= ACK_BYTES:
            self._ack_at = now
        elif self._ack_at is None:
            self._ack_at = now + ACK_SECONDS

    def due(self, now: float) -> bool:
        """Whether to acknowledge now."""
        return self._ack_at is not None and now >= self._ack_at

    def acknowledge(self, checkpoint: bytes) -> Iterator[DriverCommand]:
        """Acknowledge all output until now."""
        self._acked, self._ack_at = self._offset, None
        if len(checkpoint) > frames.FRAME_MAX - 8:
            # The pump would end this session for it, and the next one for the same reason.
            yield PersonNote("too much waits to be kept across a restart of relay's session")
            checkpoint = b""
        yield Acknowledge(self._offset, checkpoint)

    def pace(self, busy: bool, now: float, *, moved: bool = False) -> Iterator[DriverCommand]:
        """Read no more while much waits (``busy``), but not for long unless it goes on (``moved``).

        A pump that is not read is deaf: a handler that hangs must not cause that.
        """
        if not busy:
            yield from self._go_on()
        elif self._resume_at is not None:
            if moved:
                self._resume_at = now + PAUSE_MAX
                self._ack_at = now + PAUSE_MAX if self._ack_at is None else self._ack_at
        elif self._read:
            self._read = False
            self._resume_at = now + PAUSE_MAX
            yield ReadPump(False)

    def _go_on(self) -> Iterator[DriverCommand]:
        if self._resume_at is not None:
            self._resume_at = None
            yield ReadPump(True)

    def deadline(self) -> float | None:
        """When ``tick`` is due, or an acknowledgement."""
        due = (self._ack_at, self._resume_at)
        return min((one for one in due if one is not None), default=None)

    def tick(self, now: float) -> Iterator[DriverCommand]:
        """Time has passed."""
        if self._resume_at is not None and now >= self._resume_at:
            yield from self._go_on()
