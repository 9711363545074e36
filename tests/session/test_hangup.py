"""The time that an agent has once its terminal has gone."""

from __future__ import annotations

import pytest

from relay.core.message import AgentState, State
from relay.session.hangup import AGENT_LATE, HOOKS_LATE, QUIET, QUIET_UNKNOWN, HangupTimer
from relay.session.session_commands import KeepTerminal, PersonNote


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


def test_one_that_tells_nothing_is_done_when_it_is_silent() -> None:
    hangup = HangupTimer(30.0)
    hangup.begin(0.0)
    list(hangup.told({"A"}, 1.0))
    hangup.delivery("A", State.FAILED, 2.0)
    assert hangup.deadline() == 2.0 + QUIET_UNKNOWN
    assert list(hangup.tick(6.0)) == [KeepTerminal(0)]


def test_who_was_told_nothing_is_not_waited_for() -> None:
    hangup = begun()
    hangup.agent_state(AgentState.BUSY, 0.0, tells=True)
    assert list(hangup.told(set(), 1.0)) == [KeepTerminal(0)]


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
