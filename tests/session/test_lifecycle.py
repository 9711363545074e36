"""When hooks fire, what becomes of what they say, and the time after a hangup."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest

from relay.core.message import AgentState, State
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Failure
from relay.hooks.registry import Registry
from relay.session import lifecycle as module
from relay.session.lifecycle import (
    AGENT_LATE,
    HOOKS_LATE,
    OUTPUT_TOGETHER,
    QUIET,
    HangupTimer,
    Lifecycle,
)
from relay.session.session_commands import (
    DriverCommand,
    FireHooks,
    InjectText,
    KeepTerminal,
    PersonNote,
    ReportEvent,
)
from relay.session.session_events import HooksFired

OUTPUT, IDLE, END = HookEventName.OUTPUT, HookEventName.IDLE, HookEventName.SESSION_END
MESSAGE, START = HookEventName.MESSAGE_RECEIVED, HookEventName.SESSION_START


def lifecycle(*events: HookEventName) -> Lifecycle:
    """One with a hook for each of ``events``."""
    registry, ids = Registry(), count(1)
    for event in events:
        registry.add_hook(event, lambda: None)
    return Lifecycle(registry, lambda: f"new{next(ids)}", idle_seconds=30.0)


def fired(commands: Iterable[DriverCommand]) -> list[dict[str, Any]]:
    return [command.fields for command in commands if isinstance(command, FireHooks)]


def injected(commands: Iterable[DriverCommand]) -> list[str]:
    return [command.text for command in commands if isinstance(command, InjectText)]


def noted(commands: Iterable[DriverCommand]) -> list[str]:
    return [command.text for command in commands if isinstance(command, PersonNote)]


def test_what_hooks_say_is_injected_and_what_they_do_wrong_is_noted() -> None:
    life = lifecycle(START)
    assert list(life.fire(START, {"source": "startup"})) == [
        FireHooks(START, {"source": "startup"})
    ]
    assert not life.quiet
    said = Aggregated(
        inject=["one", "two"],
        context="three",
        errors=[Failure("hook", "guard: it crashed")],
        conflicts=["two hooks disagree"],
        system_message="for the person",
    )
    assert list(life.fired(HooksFired(START, said), 0.0)) == [
        PersonNote("guard: it crashed"),
        PersonNote("two hooks disagree"),
        PersonNote("for the person"),
        InjectText("new1", "one"),
        InjectText("new2", "two"),
        InjectText("new3", "three"),
    ]
    assert life.quiet


def test_nothing_fires_that_nobody_hears_and_a_quiet_word_is_not_noted() -> None:
    life = lifecycle(START)
    assert list(life.fire(HookEventName.BEFORE_AGENT, {})) == [] and life.quiet
    list(life.fire(START, {}))
    said = Aggregated(system_message="quiet", suppress_output=True)
    assert list(life.fired(HooksFired(START, said), 0.0)) == []


def test_lines_go_to_on_output_together_one_call_at_a_time() -> None:
    life = lifecycle(OUTPUT)
    for number in range(50):
        assert list(life.output([f"line {number}"], 1.0)) == []
    assert life.deadline() == pytest.approx(1.05)
    (fields,) = fired(life.tick(1.05))
    assert fields["output"].splitlines() == [f"line {number}" for number in range(50)]
    list(life.output(["more"], 2.0))
    assert life.deadline() is None  # the first ones are being heard
    list(life.fired(HooksFired(OUTPUT, Aggregated()), 3.0))
    assert fired(life.tick(3.06)) == [{"output": "more"}]


def test_a_slow_on_output_loses_the_oldest_and_says_so() -> None:
    life = lifecycle(OUTPUT)
    notes = []
    for _ in range(100):
        notes += noted(life.output(["x" * 1000], 0.0))
    assert "too slow" in notes[0]
    (fields,) = fired(life.tick(1.0))
    assert len(fields["output"]) <= module.OUTPUT_WAITING_MAX < 100 * 1000


def test_what_an_earlier_session_has_fired_is_not_fired_again() -> None:
    first = lifecycle(MESSAGE, IDLE, END)
    first.begin(0.0)
    assert fired(first.message("M1", "Bob", "hi")) == [{"sender": "Bob", "body": "hi"}]
    list(first.message("M2", "Bob", "ho"))
    first.settled("M2")
    list(first.tick(30.0))
    list(first.end("hangup", 1.0))
    state = first.state()
    assert state["announced"] == ["M1"]
    second = lifecycle(MESSAGE, IDLE, END)
    second.restore(state)
    second.begin(40.0)
    assert list(second.message("M1", "Bob", "hi")) == []
    assert second.deadline() is None and list(second.end("exit", 1.0)) == []


def test_an_on_output_that_answers_its_own_texts_is_stopped_until_the_person_speaks() -> None:
    life = lifecycle(OUTPUT)
    said = HooksFired(OUTPUT, Aggregated(inject=["fix the ERROR"]))

    def echo(number: int) -> list[DriverCommand]:
        life.active(float(number))
        list(life.output(["ERROR"], float(number)))
        list(life.tick(number + 0.5))
        return list(life.fired(said, number + 0.5))

    answers = [echo(number) for number in range(module.ANSWERS_MAX + 5)]
    assert sum(len(injected(answer)) for answer in answers) == module.ANSWERS_MAX
    (note,) = [text for answer in answers for text in noted(answer)]
    assert "its own texts" in note
    life.person()
    assert len(injected(echo(20))) == 1


def test_what_a_hook_of_an_agents_own_event_prints_is_not_noted() -> None:
    life = lifecycle(HookEventName.AFTER_AGENT)
    list(life.observe(HookEventName.AFTER_AGENT, {}))
    said = Aggregated(system_message="done", inject=["go on"])
    commands = life.fired(HooksFired(HookEventName.AFTER_AGENT, said), 0.0)
    assert list(commands) == [InjectText("new1", "go on")]


def test_without_hooks_the_broker_is_told_of_silence_once_and_of_output_only_when_it_asks() -> None:
    life = lifecycle()
    life.active(1.0)
    assert list(life.output(["unasked"], 1.0)) == []
    assert list(life.tick(31.0)) == [ReportEvent("idle", "", {"idle_seconds": 30.0})]
    assert list(life.tick(99.0)) == []
    life.tell_of(frozenset({"output"}))
    assert list(life.output(["one"], 100.0)) == [] == list(life.output(["two"], 100.0))
    assert list(life.tick(100.0 + OUTPUT_TOGETHER)) == [ReportEvent("output", "one\ntwo")]
    assert list(life.output(["three"], 101.0)) == []  # nothing waits for hooks that are not there
    assert list(life.tick(102.0)) == [ReportEvent("output", "three")]


def begun() -> HangupTimer:
    """One of 30 seconds whose hooks run, for an agent that tells its state."""
    hangup = HangupTimer(30.0)
    hangup.agent_state(AgentState.IDLE, 0.0, tells=True)
    hangup.begin(0.0)
    return hangup


def test_it_is_over_when_the_agent_has_done_what_it_was_told() -> None:
    hangup = begun()
    assert list(hangup.told({"A", "B"}, 1.0)) == []
    hangup.delivery("A", State.SEEN, 2.0)
    hangup.delivery("B", State.DELIVERING, 2.0)
    assert list(hangup.tick(10.0)) == []  # it has not seen B
    hangup.agent_state(AgentState.BUSY, 11.0, tells=True)
    hangup.delivery("B", State.SEEN, 12.0)
    assert list(hangup.tick(20.0)) == []  # it is at work on it
    hangup.agent_state(AgentState.IDLE, 21.0, tells=True)
    hangup.output(22.0)
    assert hangup.deadline() == 22.0 + QUIET
    assert list(hangup.tick(23.0)) == [KeepTerminal(0)] and not hangup.running
    assert list(hangup.tick(24.0)) == []


def test_the_agents_end_is_the_end_of_it() -> None:
    hangup = HangupTimer(30.0)
    assert list(hangup.agent_gone()) == []  # it has not begun
    hangup = begun()
    assert list(hangup.agent_gone()) == [] and hangup.running  # its hooks run still
    list(hangup.told({"never"}, 1.0))
    assert list(hangup.agent_gone()) == [PersonNote(AGENT_LATE), KeepTerminal(0)]


@pytest.mark.parametrize("hooks_end", [True, False])
def test_it_has_its_time_and_that_is_said(hooks_end: bool) -> None:
    hangup = begun()
    if hooks_end:
        list(hangup.told({"never"}, 1.0))
        assert hangup.deadline() == 30.0
        assert list(hangup.tick(30.0)) == [PersonNote(AGENT_LATE), KeepTerminal(0)]
    else:
        assert list(hangup.told(None, 30.0)) == [PersonNote(HOOKS_LATE), KeepTerminal(0)]
