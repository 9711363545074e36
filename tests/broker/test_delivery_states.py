"""The states of a delivery: every sequence of reports, legal or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.broker.delivery_states import advance
from relay.core.errors import UsageError
from relay.core.message import State
from relay.ledger.schema import Delivery

reports = st.lists(
    st.tuples(
        st.sampled_from(State),
        st.sampled_from([None, "because"]),
        st.one_of(st.none(), st.integers(0, 5)),
    ),
    max_size=30,
)


@given(reports)
def test_whatever_is_reported(steps: list[tuple[State, str | None, int | None]]) -> None:
    delivery = Delivery()
    tries = 0
    for now, (state, reason, attempt) in enumerate(steps, start=1):
        before = delivery
        try:
            delivery = advance(before, state, now, reason=reason, attempt=attempt)
        except UsageError:
            assert delivery is before
            continue
        # What is final stays as it is, whatever comes.
        if before.state.final:
            assert delivery is before
            continue
        # Whatever does not go on says why; what takes long may, and what came otherwise.
        if delivery.state in (State.HELD, State.WAITING, State.FAILED, State.CANCELLED):
            assert delivery.reason
        # Attempts only grow, one at a time, and only by a try that begins.
        assert delivery.attempts - before.attempts in (0, 1)
        if delivery.attempts > before.attempts:
            assert state is State.DELIVERING
            tries += 1
        assert delivery.attempts == tries
        # Nothing is submitted that was not delivered first.
        if delivery.state is State.SUBMITTED:
            assert before.state in (State.DELIVERING, State.SUBMITTED)
        # The same report again changes nothing.
        again = advance(delivery, state, now + 1, reason=reason, attempt=delivery.attempts or None)
        assert again is delivery


def test_the_usual_life() -> None:
    delivery = advance(Delivery(), State.DELIVERING, 10)
    delivery = advance(delivery, State.SUBMITTED, 20)
    delivery = advance(delivery, State.SEEN, 30, proof="hook")
    assert (delivery.delivering_ms, delivery.submitted_ms, delivery.updated_ms) == (10, 20, 30)
    assert (delivery.state, delivery.attempts, delivery.proof) == (State.SEEN, 1, "hook")


@pytest.mark.parametrize("state", [State.HELD, State.WAITING, State.FAILED, State.CANCELLED])
def test_a_reason_is_required(state: State) -> None:
    with pytest.raises(UsageError, match="reason"):
        advance(Delivery(), state, 1)


def test_a_late_failure_cannot_undo_seen() -> None:
    seen = advance(Delivery(), State.SEEN, 1)
    with pytest.raises(UsageError, match="from seen to failed"):
        advance(seen, State.FAILED, 2, reason="timeout")


def test_reports_whose_answers_were_lost_may_be_repeated_in_order() -> None:
    delivery = advance(Delivery(), State.DELIVERING, 1, attempt=1)
    delivery = advance(delivery, State.SUBMITTED, 2)
    assert advance(delivery, State.DELIVERING, 3, attempt=1) is delivery
    seen = advance(delivery, State.SEEN, 4)
    assert advance(seen, State.DELIVERING, 5, attempt=1) is seen
    assert advance(seen, State.SUBMITTED, 6) is seen
    assert advance(seen, State.SEEN, 7) is seen


def test_why_a_try_takes_long_is_told_and_is_no_other_try() -> None:
    delivery = advance(Delivery(), State.DELIVERING, 1)
    delivery = advance(delivery, State.DELIVERING, 2, reason="a dialog")
    assert (delivery.reason, delivery.attempts, delivery.delivering_ms) == ("a dialog", 1, 1)
    assert advance(delivery, State.SUBMITTED, 3).reason is None


def test_an_attempt_cannot_be_skipped() -> None:
    with pytest.raises(UsageError, match="attempt 3 cannot follow"):
        advance(Delivery(), State.DELIVERING, 1, attempt=3)
