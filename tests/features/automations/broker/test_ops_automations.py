"""Automations are registered and updated while events come and brokers die; their rows."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import connect
from relay.config.manifest import Known
from relay.core.errors import NotFound
from relay.core.paths import Home
from relay.features.automations import automation_rows as rows
from relay.features.automations import automation_runs
from relay.features.automations.automation_rows import (
    AutomationRegistry,
    AutomationStatus,
    RegisteredVersion,
)
from relay.features.automations.circuit import ERRORS_MAX, Circuit, CircuitState
from relay.features.automations.ops import (
    AUTOMATION_DISABLE,
    AUTOMATION_ENABLE,
    AUTOMATION_REGISTER,
    AUTOMATION_RUNS,
    AUTOMATION_UPDATE,
    AUTOMATIONS,
)
from relay.features.automations.ops_automations import folder_of, shown
from relay.features.automations.start import AutomationsStart, hearers_file
from relay.ledger.store import Ledger
from relay.protocol.message_ops import EVENT
from tests.broker.support import broker_thread, kill_broker
from tests.features.automations.broker.test_automations import install
from tests.support import unchecked, wait_until

Json = dict[str, Any]

COUNTING = """
def handler(ctx):
    ctx.state["count"] = ctx.state.get("count", 0) + 1
    return {{"enrich": {{"by": {version}, "count": ctx.state["count"]}}}}

automation = {{"name": "counting", "description": "counts", "handler": handler}}
"""


def test_each_event_is_run_by_one_version_while_others_take_its_place(
    home: Home, tmp_path: Path, served: None
) -> None:
    path, events = str(tmp_path / "counting.py"), 60

    def feed() -> None:
        with connect(home) as client:
            for number in range(events):
                event = {"channel": "sms", "sender": "x", "content": str(number)}
                client.request(EVENT, outside=event)

    with connect(home) as client:

        def runs() -> list[Json]:
            rows: list[Json] = unchecked(client).request(AUTOMATION_RUNS, name="counting")["rows"]
            return rows[::-1]

        client.request(AUTOMATION_REGISTER, path=path, source=COUNTING.format(version=1))
        feeding = threading.Thread(target=feed)
        feeding.start()
        for version in range(2, 6):
            wait_until(lambda: len(runs()) > 10 * (version - 2), what="some runs")  # noqa: B023
            source = COUNTING.format(version=version)
            answer = client.request(AUTOMATION_UPDATE, path=path, source=source)
            assert answer["automation"]["version"] == version
        feeding.join(20)
        everything: Json = {"name": "counting", "limit": 1000}
        wait_until(
            lambda: len(client.request(AUTOMATION_RUNS, **everything)["rows"]) == events,
            what="all runs",
        )
        found = unchecked(client).request(AUTOMATION_RUNS, **everything)["rows"][::-1]
    assert [one["result"]["enrich"]["count"] for one in found] == list(range(1, events + 1))
    versions = [one["version"] for one in found]
    assert versions == sorted(versions) == [one["result"]["enrich"]["by"] for one in found]


def test_who_registers_while_the_broker_is_killed_has_registered(
    home: Home, tmp_path: Path
) -> None:
    loading, goon = tmp_path / "loading", tmp_path / "goon"
    source = f"""
import os, time
open({str(loading)!r}, "w").close()
while not os.path.exists({str(goon)!r}):
    time.sleep(0.01)
automation = {{"name": "slow", "description": "loads slowly", "handler": print}}
"""
    answers: list[Json] = []

    def ask() -> None:
        with connect(home) as client:
            path = str(tmp_path / "slow.py")
            answers.append(dict(client.request(AUTOMATION_REGISTER, path=path, source=source)))

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(loading.exists, what="the file to be loaded")
    kill_broker(home)
    goon.touch()
    asking.join(30)
    assert [one["automation"]["status"] for one in answers] == ["active"]
    with connect(home) as client:
        assert [one["name"] for one in client.request(AUTOMATIONS)["rows"]] == ["slow"]


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/src/shop/.relay/automations/a.py", "/src/shop"),
        ("/.relay/automations/a.py", "/"),
        ("/src/shop/.relay/automations/more/a.py", None),
        ("/src/shop/a.py", None),
        ("/state/.relay/automations/a.py", None),
    ],
    ids=("project", "root", "below", "elsewhere", "home"),
)
def test_where_a_file_lies_says_whose_events_it_sees(path: str, folder: str | None) -> None:
    assert folder_of(path, Home("/state/.relay")) == folder


# -- Which agents get the hooks by which automations learn of tool calls.


def hooks(home: Home, cwd: str, known: Known | None = None) -> tuple[str, ...]:
    """The hooks that an agent gets which starts in this folder."""
    start = AutomationsStart(cwd)
    start.begin(home)
    return start.known(known or Known()).hooks


def test_an_agent_gets_the_hooks_for_automations_that_want_its_tool_calls(home: Home) -> None:
    never = "def handler(ctx): return False"
    calls = {"event": {"types": ["tool_call"]}}
    install(home, "shop", never, folder="/shop", triggers=calls)
    install(home, "mail", never, triggers={"event": {"channels": ["mail"]}})
    install(home, "clock", never, schedule={"every": "1h"})
    with broker_thread(home), connect(home):  # which has answered
        assert hooks(home, "/shop/src") == ("AfterTool",)
        assert hooks(home, "/shop", Known(hooks=("AfterTool", "BeforeTool")))[1:] == ("BeforeTool",)
        assert hooks(home, "/shop-2") == hooks(home, "/") == ()
    install(home, "all", never)
    with broker_thread(home), connect(home) as client:
        assert hooks(home, "/shop-2") == ("AfterTool",)
        for name in ("all", "shop"):
            client.request(AUTOMATION_DISABLE, name=name)
        assert hooks(home, "/shop") == () and not os.path.exists(hearers_file(home))
        client.request(AUTOMATION_ENABLE, name="shop")
    assert hooks(home, "/shop") == ("AfterTool",)  # also while no broker runs


@pytest.mark.parametrize("kind", ["fifo", "folder", "bytes", "relative"])
def test_what_lies_in_the_place_of_the_list_keeps_no_agent_from_starting(
    home: Home, kind: str
) -> None:
    home.create()
    path = Path(hearers_file(home))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"\xff\x00\n" if kind == "bytes" else b"shop\n\n")
    assert hooks(home, "/shop") == ()


# -- What is registered comes back: versions, switches, state and health; and errors in a row rest
# an automation for five minutes, until one run decides.

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


def test_a_clock_that_is_set_back_lets_one_run_try() -> None:
    circuit = Circuit(ERRORS_MAX, 10_000)
    assert circuit.state(0) is CircuitState.HALF_OPEN
