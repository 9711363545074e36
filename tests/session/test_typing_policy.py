"""When nothing may be typed."""

from __future__ import annotations

import pytest

from relay.core.message import AgentState
from relay.core.source_events import StateChange
from relay.protocol import frames
from relay.session.typing_policy import (
    DRAFT,
    KEY_REST,
    OUTPUT_REST,
    PAGER,
    RETRY,
    TRIAL,
    UNCHANGED_REST,
    Guards,
    PagerWatch,
)
from tests.session.playbook import why


def test_a_draft_is_left_alone_until_it_is_submitted_or_cleared() -> None:
    guards = Guards()
    guards.activity(1, frames.TYPED, 10.0)
    assert "draft" in why(guards.person(10.0 + 60))
    guards.activity(2, frames.ENTERED, 80.0)
    assert guards.person(80.0 + KEY_REST) is None
    guards.activity(3, frames.TYPED, 90.0)
    guards.activity(4, frames.CLEARED, 91.0)
    assert guards.person(91.0 + KEY_REST) is None
    assert guards.sequence == 4


def test_keys_in_a_pager_are_no_draft_and_nothing_is_typed_into_it() -> None:
    in_front = [True]
    pager = PagerWatch(lambda pid: in_front[0])
    guards = Guards(pager=pager)
    guards.activity(1, frames.TYPED, 10.0)
    assert why(guards.person(20.0)) == PAGER
    in_front[0] = False
    guards.activity(2, frames.TYPED, 20.1)  # the key that has ended it comes a little late
    assert guards.person(22.0) is None
    guards.activity(3, frames.TYPED, 23.0)
    in_front[0] = True
    assert pager.output(23.5)
    guards.activity(4, frames.ENTERED, 24.0)
    in_front[0] = False
    assert why(guards.person(26.0)) == DRAFT  # the one from before it


def test_the_key_that_ends_a_pager_is_its_own_however_late_it_is_read() -> None:
    """A session on a busy machine finds the pager gone before it reads the key."""
    in_front = [True]
    pager = PagerWatch(lambda pid: in_front[0])
    guards = Guards(pager=pager)
    assert pager.output(10.0)
    in_front[0] = False
    assert guards.person(12.0) is None
    guards.activity(1, frames.TYPED, 15.0)
    assert guards.person(20.0) is None
    assert not pager.output(20.0)  # the program that has called the pager goes on
    guards.activity(2, frames.TYPED, 21.0)
    assert why(guards.person(25.0)) == DRAFT


def test_the_line_that_starts_a_pager_is_no_draft_though_its_end_is_read_late() -> None:
    in_front = [False]
    pager = PagerWatch(lambda pid: in_front[0])
    guards = Guards(pager=pager)
    guards.activity(1, frames.TYPED, 10.0)
    in_front[0] = True
    guards.activity(2, frames.ENTERED, 15.0)
    assert pager.output(15.0)
    guards.activity(3, frames.TYPED, 15.0)
    in_front[0] = False
    assert not pager.output(20.0)
    assert guards.person(20.0) is None


def test_nothing_is_typed_beside_a_person_who_types() -> None:
    guards = Guards()
    guards.activity(1, frames.ENTERED, 10.0)
    held = guards.person(10.25)
    assert held is not None and held.reason == "the person is typing"
    assert held.again == pytest.approx(KEY_REST - 0.25)


def test_the_screen_outranks_the_memory_of_keys() -> None:
    guards = Guards()
    guards.activity(1, frames.TYPED, 10.0)
    assert guards.person(20.0, composer="empty") is None
    fresh = Guards()
    assert "draft" in why(fresh.person(20.0, composer="draft"))


@pytest.mark.parametrize("composer", ["dialog", "empty"])
def test_a_dialog_is_never_typed_into(composer: str) -> None:
    guards = Guards()
    guards.state = AgentState.BLOCKED if composer == "empty" else AgentState.IDLE
    assert "dialog" in why(guards.person(5.0, composer=composer))


def test_a_stopped_agent_gets_nothing_until_it_goes_on() -> None:
    guards = Guards()
    guards.job(True)
    assert "stopped" in why(guards.person(5.0))
    guards.job(False)
    assert guards.person(5.0) is None


def test_a_full_screen_program_is_left_to_finish_its_frame() -> None:
    guards = Guards()
    guards.output(10.0)
    assert why(guards.drawing(10.1, 10.0)) == "the agent is busy"
    assert guards.drawing(10.0 + OUTPUT_REST, 10.0) is None


def test_a_cursor_that_blinks_keeps_nothing_waiting() -> None:
    guards = Guards()
    guards.output(20.0)
    assert guards.drawing(20.0, 20.1 - UNCHANGED_REST) is not None
    assert guards.drawing(20.0, 20.0 - UNCHANGED_REST) is None


def test_after_a_limit_one_message_tries_for_all() -> None:
    guards = Guards()
    guards.changed(StateChange(AgentState.LIMITED, "a usage limit", retry=300.0), 0.0)
    assert guards.limited(300.0) is None
    guards.tried(300.0)
    assert guards.limited(300.0) is not None  # the state follows a moment later
    guards.changed(StateChange(AgentState.BUSY), 300.2)
    assert guards.limited(301.0) is not None
    guards.changed(StateChange(AgentState.LIMITED, "a usage limit", retry=300.0), 302.0)
    assert guards.limited(601.0) is not None and guards.limited(602.0) is None
    guards.tried(602.0)
    guards.changed(StateChange(AgentState.BUSY), 602.2)
    guards.changed(StateChange(AgentState.IDLE), 610.0)
    assert guards.limited(610.0) is None
    guards.changed(StateChange(AgentState.BUSY), 611.0)
    guards.tried(611.0)
    assert guards.limited(611.0) is None


def test_a_trial_of_which_nothing_is_heard_holds_nothing_for_ever() -> None:
    guards = Guards()
    guards.changed(StateChange(AgentState.LIMITED, retry=0.0), 0.0)
    guards.tried(0.0)
    assert guards.limited(RETRY) is None
    guards.changed(StateChange(AgentState.BUSY), RETRY)
    assert guards.limited(RETRY + TRIAL) is None


def test_a_limit_of_the_account_holds_until_it_is_over() -> None:
    guards = Guards()
    guards.account_limited("a usage limit is reached", 100.0)
    held = guards.limited(90.0)
    assert held is not None and held.reason == "a usage limit is reached"
    assert held.again is not None and held.again <= 5.0  # it may end at any moment
    assert guards.limited(100.0) is None
    guards.account_limited("a usage limit is reached", 200.0)
    guards.account_limited("", 0.0)
    assert guards.limited(150.0) is None
