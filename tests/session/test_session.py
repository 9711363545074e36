"""A session as a script: events in, commands out; and when it acknowledges output."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from relay.agents.codex.source import CodexSource
from relay.core.errors import BrokerUnavailable, UsageError
from relay.core.message import AgentState, State
from relay.core.source_events import Proof, StateChange
from relay.directive.grammar import Match
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Decision
from relay.hooks.registry import BUILTIN, Registry
from relay.protocol import frames
from relay.session import handler_lanes, outbox
from relay.session.detector import Detection, ForAgent
from relay.session.session import ACK_BYTES, PAUSE_MAX, STARTS, AckTracker
from relay.session.session_commands import (
    Acknowledge,
    DeliverMessage,
    FireHooks,
    InjectText,
    InputFlushed,
    KeepTerminal,
    PersonNote,
    ReadPump,
    ReportAgent,
    ReportDelivery,
    ReportEvent,
    ReportPerson,
    RunHandlers,
    SendMessage,
    SendRequested,
    TellFeatures,
    TellHeldAgain,
    TextProven,
)
from relay.session.session_events import (
    AgentExited,
    AgentGone,
    AgentStopped,
    AgentWrote,
    BrokerReturned,
    DeliveryReported,
    HandlersEnded,
    HooksFired,
    HooksObserved,
    InjectionRefused,
    LastHooksDue,
    MessageArrived,
    PersonTyped,
    PumpCheckpoint,
    ReceiptArrived,
    SendAnswered,
    SendFailed,
    SessionStarted,
    SourcesHeard,
    TerminalGone,
)
from tests.session.playbook import MESSAGE, Playbook, find, notice

OK: dict[str, Any] = {"deliveries": [{"to": "Bob", "state": "queued"}]}


def with_hooks(*names: HookEventName) -> Registry:
    registry = Registry()
    for name in names:
        registry.add_hook(name, lambda: None)
    return registry


def with_handlers(*namespaces: str, builtin: bool = False) -> Registry:
    registry = Registry()
    for namespace in namespaces:
        if builtin:
            registry.add_pattern(namespace, "*", lambda target, body: None, source=BUILTIN)
        else:
            registry.add_pattern(namespace, "*", lambda target: None)
    return registry


def asked(target: str) -> Detection:
    """``@relay:target [await:30s] hi``."""
    match = Match("relay", target, "hi", {"await": "30s"}, False, "@relay:")
    return Detection("id1", match)


# -- what the agent says --------------------------------------------------------------------------


def test_a_handler_of_the_users_runs_and_its_answer_is_injected() -> None:
    playbook = Playbook(with_handlers("deploy"))
    heard = find("deploy", "staging")
    playbook >> SourcesHeard([heard]) << RunHandlers(heard)
    assert isinstance(heard.found, Match)
    why = UsageError("the text is empty", hint="give at least one visible character")
    told = "not done: @deploy:staging: the text is empty (give at least one visible character)"
    playbook >> InjectionRefused("new1", heard.found, why) << notice("new1", told)
    playbook >> HandlersEnded(heard)
    playbook.done()
    assert playbook.session.handlers.idle


def test_an_answer_that_does_not_come_in_time_is_missed_aloud() -> None:
    playbook = Playbook(with_handlers("relay", builtin=True))
    question = asked("Bob")
    playbook >> SourcesHeard([question])
    assert playbook.take(SendMessage)[0].fields["await"]
    playbook.take(ReportEvent)
    playbook.at(29.0).done()
    playbook.at(30.0) << notice("new1", "no answer from Bob within 30 s", question=question.id)


def test_an_answer_in_time_is_not_missed() -> None:
    playbook = Playbook(with_handlers("relay", builtin=True))
    question = asked("Ann")
    playbook >> SourcesHeard([question])
    assert playbook.take(SendMessage)[0].fields["await"]
    playbook.take(ReportEvent)
    playbook >> MessageArrived(MESSAGE) << DeliverMessage(MESSAGE)
    playbook.at(60.0).done()


def test_what_cannot_be_delivered_is_told() -> None:
    playbook = Playbook()
    playbook >> ReceiptArrived({"state": "failed", "to": "Bob", "reason": "he has ended"})
    playbook << notice("new1", "not delivered to Bob: he has ended")
    # The agent did not do it again: its person, who may have refused them all, is told nothing.
    playbook >> ReceiptArrived({"state": "failed", "to": "Bob", "reason": "he has ended"})
    playbook.done()


def test_while_much_waits_for_the_broker_the_pump_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "BUSY_AT", 1)
    playbook = Playbook()
    said = {"id": "id1", "to": ["Bob"], "body": "hello"}
    playbook >> AgentWrote(b"what led to it")
    playbook >> SendRequested(said) << SendMessage(said) << ReadPump(False)
    playbook >> SendAnswered("id1", OK) << ReadPump(True)


# -- what others say ------------------------------------------------------------------------------


def test_a_message_is_delivered_once_and_its_hooks_are_told() -> None:
    playbook = Playbook(with_hooks(HookEventName.MESSAGE_RECEIVED))
    fields = {"sender": "Ann", "body": "hi"}
    playbook >> MessageArrived(MESSAGE) << DeliverMessage(MESSAGE)
    playbook << FireHooks(HookEventName.MESSAGE_RECEIVED, fields)
    playbook >> MessageArrived(MESSAGE)
    playbook.done()


def test_what_relay_told_an_earlier_agent_of_that_name_is_not_for_this_one() -> None:
    playbook = Playbook(started_ms=1000)
    old = replace(MESSAGE, sender="relay", sender_kind="relay", created_at=999)
    why = "the agent that it was for has ended"
    playbook >> MessageArrived(old) << ReportDelivery(old, State.FAILED, why)
    # What others said waits for whoever has the name, and what relay says now is for this one.
    other = replace(MESSAGE, id=f"01K{8:023d}", created_at=999)
    playbook >> MessageArrived(other) << DeliverMessage(other)
    new = replace(old, id=f"01K{9:023d}", created_at=1000)
    playbook >> MessageArrived(new) << DeliverMessage(new)


@pytest.mark.parametrize("by", ["hook", "transcript"])
def test_what_the_agents_records_show_proves_a_message(by: str) -> None:
    playbook = Playbook()
    playbook >> SourcesHeard([Proof("Relay message k3", by)]) << TextProven("Relay message k3", by)
    playbook >> SourcesHeard([Proof("Relay message k3", "screen")])
    playbook.done()


def test_a_broker_that_returns_is_told_everything_again() -> None:
    playbook = Playbook()
    idle = ReportAgent("idle", "", "screen", ())
    playbook >> SessionStarted()
    playbook.at(0) << idle
    playbook >> BrokerReturned() << idle << TellHeldAgain()
    playbook >> SourcesHeard([StateChange(AgentState.BUSY)])
    playbook << ReportAgent("busy", "", "screen", ())


def test_a_program_heard_by_its_screen_alone_starts_until_it_is_at_a_prompt() -> None:
    playbook = Playbook()
    turns = playbook.session.turns
    turns.at_prompt = lambda now: now >= 5
    playbook >> SessionStarted() << ReportAgent("starting", "", "screen", ())
    assert not playbook.at(4.9).take(ReportAgent)
    playbook.at(5.2) << ReportAgent("idle", "", "screen", ())
    never = Playbook()  # as htop
    never.session.turns.at_prompt = lambda now: False
    never >> SessionStarted() << ReportAgent("starting", "", "screen", ())
    never.at(STARTS + 1) << ReportAgent("idle", "", "screen", ())


# -- the person -----------------------------------------------------------------------------------


def test_a_stopped_agent_and_one_whose_terminal_has_gone_say_so() -> None:
    playbook = Playbook()
    playbook >> SessionStarted()
    playbook.at(0) << ReportAgent("idle", "", "screen", ())
    stopped = ReportAgent("stopped", "Ctrl-Z; fg in its terminal", "screen", ())
    playbook >> AgentStopped(True) << stopped
    playbook >> AgentStopped(False) << ReportAgent("idle", "", "screen", ())
    playbook >> TerminalGone()
    playbook << ReportAgent("ending", "its terminal is closed", "screen", ())


def test_a_key_that_flushes_counts_like_every_other_key() -> None:
    """The pump numbers it: a session that forgot it would have every later write refused."""
    playbook = Playbook()
    playbook >> PersonTyped(7, frames.FLUSHED, 12) << InputFlushed(12)
    assert playbook.guards.sequence == 7
    assert playbook.guards.person(1e9) is None


def test_a_key_that_an_earlier_session_dealt_with_hides_no_line_of_the_agents() -> None:
    first = Playbook(with_handlers("relay", builtin=True))
    first >> SessionStarted() >> PersonTyped(3, frames.ENTERED)
    checkpoint = first.checkpoint()
    # The pump repeats the last key for a next session.
    second = Playbook(with_handlers("relay", builtin=True), restarts=1)
    second >> PumpCheckpoint(checkpoint) >> SessionStarted()
    second >> PersonTyped(3, frames.ENTERED) >> AgentWrote(b"@relay:Ann first\r\n\r\n")
    assert [sent.fields["body"] for sent in second.take(SendMessage)] == ["first"]
    assert second.guards.sequence == 3
    # A key that is new is the person's, and so is its echo.
    second >> PersonTyped(4, frames.ENTERED) << ReportPerson()
    second >> AgentWrote(b"@relay:Ann typed\r\n@relay:Ann second\r\n\r\n")
    assert [sent.fields["body"] for sent in second.take(SendMessage)] == ["second"]


def test_the_broker_learns_once_that_the_person_spoke_after_something_had_come() -> None:
    playbook = Playbook()
    playbook >> PersonTyped(1, frames.ENTERED)
    playbook >> DeliveryReported(MESSAGE.id, State.SUBMITTED)
    playbook >> PersonTyped(2, frames.ENTERED) << ReportPerson()
    playbook >> PersonTyped(3, frames.ENTERED)
    playbook.done()


# -- checkpoints ----------------------------------------------------------------------------------


def test_output_is_acknowledged_with_a_checkpoint_in_which_what_it_led_to_stands() -> None:
    playbook = Playbook(with_handlers("relay", builtin=True), offset=100)
    line = b"@relay:Bob hello\r\n\r\n"
    playbook >> AgentWrote(line + bytes(ACK_BYTES))
    assert not [one for one in playbook.commands if isinstance(one, Acknowledge)]
    (sent,) = playbook.take(SendMessage)
    playbook.at(0.0)
    (ack,) = playbook.take(Acknowledge)
    assert ack.offset == 100 + len(line) + ACK_BYTES
    assert json.loads(ack.checkpoint)["pending"] == [sent.fields]


def test_output_counts_whatever_fails_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    playbook = Playbook()
    with monkeypatch.context() as patched:
        patched.setattr(playbook.sources, "output", None)
        with pytest.raises(TypeError):
            playbook >> AgentWrote(b"lost")
    playbook >> AgentWrote(b"heard")
    playbook.at(1.0)
    assert playbook.take(Acknowledge)[-1].offset == len(b"lostheard")


def test_what_has_no_answer_yet_is_taken_up_by_the_next_session() -> None:
    first = Playbook(with_handlers("deploy"))
    heard = find("deploy", "staging")
    said = {"id": "id7", "to": ["Bob"], "body": "hello"}
    first >> SourcesHeard([heard]) << RunHandlers(heard)
    first >> SendRequested(said) << SendMessage(said)
    first >> SendFailed("id7", BrokerUnavailable("away"))
    second = Playbook(with_handlers("deploy"))
    second >> PumpCheckpoint(first.checkpoint()) << RunHandlers(heard) << SendMessage(said)


@pytest.mark.parametrize(
    ("state", "held"),
    [
        (AgentState.IDLE, None),
        (AgentState.BUSY, None),
        (AgentState.BLOCKED, "a dialog waits for the person"),
        (AgentState.LIMITED, "its model does not answer"),
    ],
)
def test_a_next_session_knows_the_state_that_its_source_was_left_in(
    state: AgentState, held: str | None
) -> None:
    source = CodexSource(0.0)
    source.restore({**source.state(), "state": state.value})
    playbook = Playbook(structured=source)
    playbook >> SessionStarted() << ReportAgent(state.value, "", "structured", ())
    hold = playbook.guards.person(0.0) or playbook.guards.limited(0.0)
    assert (hold.reason if hold else None) == held


# -- hooks ----------------------------------------------------------------------------------------


def test_hooks_that_the_agent_does_not_wait_for_cannot_stop_it_and_that_is_said_once() -> None:
    before = HookEventName.BEFORE_AGENT
    playbook = Playbook(with_hooks(before))
    denied = Aggregated(decision=Decision.DENY, reason="no", inject=["one"], context="two")
    for first in (1, 3):
        playbook >> HooksObserved(before, {"prompt": "x"}) << FireHooks(before, {"prompt": "x"})
        playbook >> HooksFired(before, denied)
        playbook << InjectText(f"new{first}", "one") << InjectText(f"new{first + 1}", "two")
    (note,) = playbook.notes
    assert "cannot be kept from going on" in note


# -- the end --------------------------------------------------------------------------------------


def test_the_agent_has_time_for_what_its_last_hooks_say_when_its_terminal_goes() -> None:
    end = HookEventName.SESSION_END
    playbook = Playbook(with_hooks(end), end_seconds=10.0)
    playbook >> SessionStarted() << KeepTerminal(10.0)
    playbook >> TerminalGone() << FireHooks(end, {"reason": "hangup"}, 10.0)
    playbook >> TerminalGone()  # said twice
    playbook >> HooksFired(end, Aggregated(inject=["save it"])) << InjectText("new1", "save it")
    playbook.at(3.0).done()
    playbook >> DeliveryReported("new1", State.SEEN)
    playbook.at(7.0) << KeepTerminal(0)
    playbook >> AgentGone() >> LastHooksDue(5.0)  # the hooks are not fired again
    playbook.done()


def test_what_its_last_hooks_inject_themselves_is_waited_for_too() -> None:
    end = HookEventName.SESSION_END
    playbook = Playbook(with_hooks(end), end_seconds=10.0)
    playbook >> TerminalGone() << FireHooks(end, {"reason": "hangup"}, 10.0)
    ours = {"to": ["Ben"], "body": "save it", "notice": True, "id": "own"}
    other = {"to": ["Bob"], "body": "I am going", "id": "other"}
    for fields in (ours, other):
        playbook >> SendRequested(fields) << SendMessage(fields)
    playbook >> HooksFired(end, Aggregated())
    playbook.at(3.0).done()
    playbook >> DeliveryReported("own", State.SEEN)
    playbook.at(7.0) << KeepTerminal(0)


def test_without_last_hooks_the_terminal_goes_at_once() -> None:
    playbook = Playbook()
    playbook >> TerminalGone() << KeepTerminal(0)


def test_the_last_words_are_heard_and_nobody_is_told_what_hooks_say_of_them() -> None:
    output, end = HookEventName.OUTPUT, HookEventName.SESSION_END
    playbook = Playbook(with_hooks(output, end))
    playbook >> SessionStarted() >> HooksFired(HookEventName.SESSION_START, Aggregated())
    playbook >> AgentWrote(b"ERROR: boom") >> AgentExited(0) >> AgentGone()
    playbook << TellFeatures(["ERROR: boom"])
    assert not playbook.session.lifecycle.quiet
    playbook.at(1.0) << FireHooks(output, {"output": "ERROR: boom"})
    playbook >> HooksFired(output, Aggregated(inject=["fix it"]))
    assert playbook.session.lifecycle.quiet
    playbook >> LastHooksDue(5.0) << FireHooks(end, {"reason": "exit"}, 5.0)
    playbook >> HooksFired(end, Aggregated())
    playbook.done()


def test_the_agent_is_told_of_a_near_miss_as_of_anything_else() -> None:
    playbook = Playbook() >> SourcesHeard([ForAgent("no message")])
    fields = {"to": ["Ben"], "body": "no message", "notice": "about"}
    (sent,) = [one.fields for one in playbook.commands if isinstance(one, SendMessage)]
    assert {**sent, "notice": "about"} == fields | {"id": sent["id"]} and sent["notice"]
    playbook.commands.clear()


def test_a_checkpoint_that_fits_no_frame_is_left_out_and_noted() -> None:
    note, acknowledge = AckTracker(5).acknowledge(bytes(frames.FRAME_MAX))
    assert isinstance(note, PersonNote) and "too much" in note.text
    assert acknowledge == Acknowledge(5, b"")


def test_the_pump_is_not_read_while_much_waits_but_not_for_long() -> None:
    acks = AckTracker(0)
    acks.output(1, 1.0)
    assert list(acks.pace(True, 1.0)) == [ReadPump(False)]
    assert list(acks.pace(True, 1.5)) == []
    assert list(acks.tick(1.0 + PAUSE_MAX)) == [ReadPump(True)]
    assert list(acks.pace(True, 2.5)) == []  # not before something more was read
    acks.output(1, 3.0)
    assert list(acks.pace(True, 3.0)) == [ReadPump(False)]
    assert list(acks.pace(False, 3.0)) == [ReadPump(True)] and list(acks.pace(False, 3.0)) == []


def test_the_pump_is_not_read_for_as_long_as_what_waits_goes_on() -> None:
    acks = AckTracker(0)
    acks.output(1, 0.0)
    assert list(acks.pace(True, 0.0)) == [ReadPump(False)]
    list(acks.acknowledge(b""))
    for tenths in range(5, 100, 5):
        assert list(acks.tick(tenths / 10)) == []
        assert list(acks.pace(True, tenths / 10, moved=True)) == []
    assert acks.due(1.5)  # the pump learns of it
    assert list(acks.tick(9.5 + PAUSE_MAX)) == [ReadPump(True)]


def test_while_much_waits_for_handlers_the_pump_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handler_lanes, "BUSY_AT", 1)
    registry = Registry()
    registry.add_pattern("deploy", "*", lambda target, message, ctx: None)
    heard = find("deploy", "x")
    playbook = Playbook(registry) >> SourcesHeard([heard]) << RunHandlers(heard)
    playbook >> AgentWrote(b"more") << ReadPump(False)
    playbook >> HandlersEnded(heard) << ReadPump(True)


def test_what_a_hook_has_for_the_agent_and_cannot_be_sent_is_noted() -> None:
    playbook = Playbook()
    playbook >> InjectionRefused("new1", None, UsageError("the text is too long"))
    assert "the text is too long" in playbook.notes[0]
