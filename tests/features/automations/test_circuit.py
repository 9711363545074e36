"""Five errors in a row rest an automation for five minutes; then one run decides."""

from __future__ import annotations

from relay.features.automations.circuit import ERRORS_MAX, OPEN_MS, Circuit, CircuitState


def failed(circuit: Circuit, times: int, now_ms: int) -> Circuit:
    for _ in range(times):
        circuit = circuit.after(False, now_ms)
    return circuit


def test_a_success_in_between_begins_the_count_anew() -> None:
    circuit = failed(Circuit(), ERRORS_MAX - 1, 0).after(True, 1)
    assert failed(circuit, ERRORS_MAX - 1, 2).state(3) is CircuitState.CLOSED


def test_errors_in_a_row_open_it_until_one_run_may_try() -> None:
    circuit = failed(Circuit(), ERRORS_MAX, 1000)
    assert circuit.state(1000 + OPEN_MS - 1) is CircuitState.OPEN
    assert circuit.state(1000 + OPEN_MS) is CircuitState.HALF_OPEN


def test_a_try_that_fails_opens_it_anew_and_one_that_succeeds_closes_it() -> None:
    circuit = failed(Circuit(), ERRORS_MAX, 0)
    tried = circuit.after(False, OPEN_MS)
    assert tried.state(2 * OPEN_MS - 1) is CircuitState.OPEN
    assert tried.state(2 * OPEN_MS) is CircuitState.HALF_OPEN
    assert circuit.after(True, OPEN_MS) == Circuit()


def test_a_clock_that_is_set_back_lets_one_run_try() -> None:
    assert failed(Circuit(), ERRORS_MAX, 10_000).state(0) is CircuitState.HALF_OPEN
