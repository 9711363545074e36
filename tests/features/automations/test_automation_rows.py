"""What is registered comes back: versions, switches, state and health; and errors in a row rest an
automation for five minutes, until one run decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from relay.core.errors import NotFound
from relay.features.automations import automation_rows as rows
from relay.features.automations import automation_runs
from relay.features.automations.automation_rows import (
    AutomationRegistry,
    AutomationStatus,
    RegisteredVersion,
)
from relay.features.automations.circuit import ERRORS_MAX, OPEN_MS, Circuit, CircuitState
from relay.features.automations.ops_automations import shown
from relay.ledger.store import Ledger

DEFINITION = {"name": "beat", "description": "says so", "triggers": {"event": {"types": ["idle"]}}}
VERSION = RegisteredVersion("/p/beat.py", "a" * 64, "automation = 1", DEFINITION, "ann, tty")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(str(tmp_path / "ledger.db"))
    ledger.begin()
    rows.add(ledger, "A1", "beat", AutomationStatus.ACTIVE, "/p", VERSION, 5)
    yield ledger
    ledger.rollback()
    ledger.close()


def add_runs(ledger: Ledger, count: int, *, failed: int = 0, at: int = 0) -> None:
    """Runs of 1, 2, … ms, of which the last ``failed`` failed."""
    with ledger.guard() as db:
        for number in range(1, count + 1):
            seq = ledger.next_seq()
            ledger.add([(seq, f"E{seq}", "idle", "Al", "agent", None, None, "", None, at)], [])
            error = "broke" if number > count - failed else None
            row = ("A1", 1, seq, at, number * 1000, int(error is None), 0, 0, None, error, None)
            db.execute(
                "INSERT INTO automation_runs (automation, version, event, started_ms, latency_us,"
                " fired, retry, llm_calls, result_json, error, log) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
                row,
            )


def test_the_registry_has_what_is_active_and_was_loaded(ledger: Ledger) -> None:
    registry = AutomationRegistry(ledger)
    [one] = registry.active.values()
    assert one.definition.wants("idle", "relay", "sent")
    assert registry.source(one) == "automation = 1"
    unseen = replace(VERSION, definition=None)
    rows.add(ledger, "A2", "unseen", AutomationStatus.PAUSED, None, unseen, 5)
    rows.set_status(ledger, "A1", AutomationStatus.DISABLED, "it disabled itself", 6)
    for id_ in ("A1", "A2"):
        registry.refresh(id_)
    assert not registry.active and rows.count_unseen(ledger) == 1


def test_what_cannot_be_read_any_more_is_not_run_and_says_why(ledger: Ledger) -> None:
    gone = {**DEFINITION, "schedule": {"at": "2030-01-01", "timezone": "Mars/Olympus"}}
    rows.add_version(ledger, rows.find(ledger, "beat"), replace(VERSION, definition=gone), 6)
    registry = AutomationRegistry(ledger)
    assert not registry.active and "it is not run: " in registry.problems["A1"]
    assert rows.counts(ledger, registry.problems)["unusable"] == 1
    rows.set_status(ledger, "A1", AutomationStatus.DISABLED, None, 7)
    registry.refresh("A1")
    assert not registry.problems
    assert shown(rows.find(ledger, "beat"), 7)["over"] is False


def test_one_whose_text_is_lost_is_shown_and_can_be_deleted(ledger: Ledger) -> None:
    with ledger.guard() as db:
        db.execute("DELETE FROM automation_versions")
    assert not AutomationRegistry(ledger).active
    assert shown(rows.find(ledger, "beat"), 7)["loaded"] is False
    with pytest.raises(NotFound, match="not in the ledger any more"):
        rows.source(ledger, "A1", 1)


def test_a_new_version_runs_with_a_closed_circuit_and_the_old_one_is_kept(ledger: Ledger) -> None:
    with ledger.guard() as db:
        db.execute("UPDATE automations SET errors=5, opened_ms=7, next_tick_ms=9")
    registry = AutomationRegistry(ledger)
    assert registry.active["A1"].circuit.state(8) is CircuitState.OPEN
    row = rows.find(ledger, "BEAT")
    rows.add_version(ledger, row, replace(VERSION, source="new", registered_by="bo"), 8)
    registry.refresh("A1")
    one = registry.active["A1"]
    assert (one.circuit.state(8), one.row.next_tick_ms) == (CircuitState.CLOSED, None)
    assert (one.row.version, one.row.folder, registry.source(one)) == (2, "/p", "new")
    assert [v["registered_by"] for v in rows.versions(ledger, "A1", 9)] == ["bo", "ann, tty"]
    assert rows.source(ledger, "A1", 1) == "automation = 1"


def test_the_name_of_a_deleted_one_is_free(ledger: Ledger) -> None:
    with pytest.raises(NotFound, match="no automation bea") as error:
        rows.find(ledger, "bea")
    assert error.value.hint == "did you mean 'beat'?"
    rows.set_status(ledger, "A1", AutomationStatus.DELETED, None, 6)
    rows.add(ledger, "A3", "beat", AutomationStatus.ACTIVE, None, VERSION, 7)
    assert rows.find(ledger, "beat").id == "A3"


def test_state_is_replaced_key_by_key(ledger: Ledger) -> None:
    rows.save_state(ledger, "A1", {"a": [1], "b": "x", "c": 0}, 1)
    rows.save_state(ledger, "A1", {"a": None, "b": {"y": 1}}, 2)
    assert rows.state(ledger, "A1") == {"b": {"y": 1}, "c": 0}


def test_health_is_of_the_last_hundred_runs_and_of_the_last_day(ledger: Ledger) -> None:
    day = 86_400_000
    add_runs(ledger, 150, failed=150)
    add_runs(ledger, 90, failed=3, at=day)
    found = rows.health(ledger, "A1", day + 1)
    assert found["window"] == {
        **{"runs": 100, "errors": 13, "fires": 87},
        **{"avg_ms": 55.5, "p95_ms": 145.0},
    }
    assert (found["day"]["runs"], found["day"]["errors"], found["day"]["p95_ms"]) == (90, 3, 86.0)
    assert (found["last_error"], found["last_error_ms"]) == ("broke", day)
    failed = [run for run, _ in rows.runs(ledger, "A1", 2, errors_only=True)]
    assert [one["latency_us"] for one in failed] == [90_000, 89_000]
    assert (failed[0]["kind"], failed[0]["sender"], failed[0]["fired"]) == ("idle", "Al", False)


def test_what_is_asked_of_very_many_rows_has_an_index_in_its_order(ledger: Ledger) -> None:
    asked: list[str] = []
    with ledger.guard() as db:
        db.set_trace_callback(asked.append)
        rows.runs(ledger, "A1", 5, errors_only=True)
        automation_runs.persona_of(ledger, "main")
        db.set_trace_callback(None)
        plans = [
            " ".join(step[3] for step in db.execute(f"EXPLAIN QUERY PLAN {one}")) for one in asked
        ]
    assert "automation_runs_failed" in plans[0] and "agent_sessions_used" in plans[1]
    assert "TEMP B-TREE" not in "".join(plans)


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
