"""The time that an agent has once its terminal has gone."""

from __future__ import annotations

import pytest

from relay.core.message import AgentState, State
from relay.session.session_commands import KeepTerminal, PersonNote
from relay.session.shutdown import AGENT_LATE, HOOKS_LATE, QUIET, QUIET_UNKNOWN, HangupTimer


def begun() -> HangupTimer:
    """One of 30 seconds whose hooks run, for an agent that tells its state."""
    grace = HangupTimer(30.0)
    grace.agent_state(AgentState.IDLE, 0.0, tells=True)
    grace.begin(0.0)
    return grace


def test_it_is_over_when_the_agent_has_done_what_it_was_told() -> None:
    grace = begun()
    assert list(grace.told({"A", "B"}, 1.0)) == []
    grace.delivery("A", State.SEEN, 2.0)
    grace.delivery("B", State.DELIVERING, 2.0)
    assert list(grace.tick(10.0)) == []  # it has not seen B
    grace.agent_state(AgentState.BUSY, 11.0, tells=True)
    grace.delivery("B", State.SEEN, 12.0)
    assert list(grace.tick(20.0)) == []  # it is at work on it
    grace.agent_state(AgentState.IDLE, 21.0, tells=True)
    grace.output(22.0)
    assert grace.deadline() == 22.0 + QUIET
    assert list(grace.tick(23.0)) == [KeepTerminal(0)] and not grace.running
    assert list(grace.tick(24.0)) == []


def test_one_that_tells_nothing_is_done_when_it_is_silent() -> None:
    grace = HangupTimer(30.0)
    grace.begin(0.0)
    list(grace.told({"A"}, 1.0))
    grace.delivery("A", State.FAILED, 2.0)
    assert grace.deadline() == 2.0 + QUIET_UNKNOWN
    assert list(grace.tick(6.0)) == [KeepTerminal(0)]


def test_who_was_told_nothing_is_not_waited_for() -> None:
    grace = begun()
    grace.agent_state(AgentState.BUSY, 0.0, tells=True)
    assert list(grace.told(set(), 1.0)) == [KeepTerminal(0)]


def test_the_agents_end_is_the_end_of_it() -> None:
    grace = HangupTimer(30.0)
    assert list(grace.agent_gone()) == []  # it has not begun
    grace = begun()
    assert list(grace.agent_gone()) == [] and grace.running  # its hooks run still
    list(grace.told({"never"}, 1.0))
    assert list(grace.agent_gone()) == [PersonNote(AGENT_LATE), KeepTerminal(0)]


@pytest.mark.parametrize("hooks_end", [True, False])
def test_it_has_its_time_and_that_is_said(hooks_end: bool) -> None:
    grace = begun()
    if hooks_end:
        list(grace.told({"never"}, 1.0))
        assert grace.deadline() == 30.0
        assert list(grace.tick(30.0)) == [PersonNote(AGENT_LATE), KeepTerminal(0)]
    else:
        assert list(grace.told(None, 30.0)) == [PersonNote(HOOKS_LATE), KeepTerminal(0)]
