"""Agents that only answer each other stop; a person who takes part does not notice."""

from __future__ import annotations

from relay.broker.loop_guard import HOPS_MAX, PAIRS_MAX, RATE_MAX, RATE_WINDOW_MS, LoopGuard
from relay.core.message import HeldFor


def test_a_chain_may_have_so_many_hops() -> None:
    guard = LoopGuard()
    assert guard.check("Al", "Bo", HOPS_MAX, 0) is None
    reason = guard.check("Al", "Bo", HOPS_MAX + 1, 0)
    assert reason is not None and reason[0] is HeldFor.HOPS
    assert "without a person" in reason[1]
    assert guard.check("Bo", "Al", 1, 0) is None  # another chain between the same two


def test_two_may_exchange_so_many_a_minute_in_both_directions() -> None:
    guard = LoopGuard()
    for number in range(RATE_MAX):
        pair = ("Al", "Bo") if number % 2 else ("bo", "AL")
        assert guard.check(*pair, 1, number) is None
    assert guard.check("Al", "Cy", 1, RATE_MAX) is None
    reason = guard.check("Al", "Bo", 1, RATE_WINDOW_MS - 1)
    assert reason is not None and reason[0] is HeldFor.RATE
    assert "more than 60 messages a minute" in reason[1]
    # From then on nothing passes, however slowly it comes, before the person says so.
    assert guard.check("Bo", "Al", 1, 100 * RATE_WINDOW_MS) == reason
    guard.reopen("bo", "al")
    assert guard.check("Bo", "Al", 1, 100 * RATE_WINDOW_MS) is None


def test_slower_messages_go_on_for_ever() -> None:
    guard = LoopGuard()
    for number in range(10 * RATE_MAX):
        assert guard.check("Al", "Bo", 1, number * (RATE_WINDOW_MS // RATE_MAX)) is None


def test_a_clock_that_is_put_back_holds_nobody_until_it_is_there_again() -> None:
    guard = LoopGuard()
    for number in range(RATE_MAX):
        assert guard.check("Al", "Bo", 1, 100 * RATE_WINDOW_MS + number) is None
    for number in range(RATE_MAX):
        assert guard.check("Al", "Bo", 1, number) is None
    assert guard.check("Al", "Bo", 1, RATE_MAX) is not None


def test_limits_can_be_turned_off() -> None:
    guard = LoopGuard(0, 0)
    for number in range(1000):
        assert guard.check("Al", "Bo", number, 0) is None


def test_what_is_counted_is_bounded() -> None:
    guard = LoopGuard()
    for _ in range(RATE_MAX - 1):
        guard.check("Al", "Bo", 1, 0)
    for number in range(PAIRS_MAX):
        guard.check("Al", f"B{number}", 1, 0)
    for _ in range(RATE_MAX):  # the first pair was forgotten
        assert guard.check("Al", "Bo", 1, 0) is None
