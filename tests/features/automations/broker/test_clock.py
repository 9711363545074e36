"""The broker's clock: what it stores when a schedule strikes, over stops, sleep and changes."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from relay.broker.client import connect
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.features.automations import automation_rows, clock
from relay.features.automations.automation_rows import AutomationStatus, RegisteredVersion
from relay.features.automations.ops import AUTOMATION_REGISTER, AUTOMATION_TEST
from relay.ledger.store import Ledger
from relay.protocol.broker_ops import HELLO
from relay.protocol.message_ops import EVENT, INBOX
from tests.broker.fixtures import Configure
from tests.broker.support import broker_thread
from tests.support import wait_until

MINUTE, HOUR = 60_000, 3_600_000
#: Long ago: nothing of it comes true by itself while a test runs.
START = int(datetime(2026, 2, 5, 10, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")


def add(home: Home, schedule: dict[str, str]) -> None:
    """An active automation ``beat`` of this schedule."""
    home.create()
    told = {"name": "beat", "description": "beats", "schedule": schedule}
    version = RegisteredVersion("/p/beat.py", "a" * 64, "", told, "me")
    with closing(Ledger(home.ledger)) as ledger:
        ledger.begin()
        automation_rows.add(ledger, "A1", "beat", AutomationStatus.ACTIVE, None, version, START)
        ledger.commit()


def ticks(home: Home) -> list[tuple[str, int, int]]:
    """Of what is stored on the channel: who sent it, and when it was due and how many were missed
    (in minutes)."""
    with closing(sqlite3.connect(home.ledger)) as db:
        found = db.execute(
            "SELECT agent, meta_json FROM events WHERE channel='timer' ORDER BY seq"
        ).fetchall()
    told = [(sender, json.loads(meta)["meta"]) for sender, meta in found]
    assert all(sender == meta["schedule"] for sender, meta in told)
    return [(sender, (one["due_ms"] - START) // MINUTE, one["missed"]) for sender, one in told]


def next_tick(home: Home) -> int | None:
    """When the next one is due, in minutes."""
    with closing(sqlite3.connect(home.ledger)) as db:
        [(found,)] = db.execute("SELECT next_tick_ms FROM automations")
    return None if found is None else (found - START) // MINUTE


def served_at(home: Home, minutes: float, due: int | None) -> None:
    """A broker serves at this time, until the next tick is due at ``due``."""
    now_ms = START + int(minutes * MINUTE)
    with broker_thread(home, now_ms=lambda: now_ms):
        wait_until(lambda: next_tick(home) == due, what=f"a tick due at {due}")


def test_a_schedule_strikes_once_for_all_that_was_missed(home: Home) -> None:
    add(home, {"every": "30m"})
    served_at(home, 0, 30)
    served_at(home, 29.9, 30)
    assert ticks(home) == []
    served_at(home, 30, 60)
    served_at(home, 60 + 8 * 60 + 5, 570)  # the machine slept
    assert ticks(home) == [("beat", 30, 0), ("beat", 60, 16)]
    with closing(sqlite3.connect(home.ledger)) as db:
        said = db.execute("SELECT body, kind FROM events ORDER BY seq").fetchall()
    assert said == [
        ("It is Thursday, 5 February 2026, 10:30 UTC: time for beat.", "timer_tick"),
        (
            "It is Thursday, 5 February 2026, 19:05 UTC: time for beat."
            " 16 earlier ticks were missed.",
            "timer_tick",
        ),
    ]


def test_what_is_due_at_one_time_strikes_once_though_the_broker_was_away(home: Home) -> None:
    add(home, {"at": "2026-02-05T12:00"})
    served_at(home, 0, 120)
    served_at(home, 600, None)
    served_at(home, 0, 120)  # the clock is set back: it is due once more,
    served_at(home, 120, None)  # and known
    assert ticks(home) == [("beat", 120, 0)]


def test_a_clock_that_was_wrong_is_forgotten(home: Home) -> None:
    add(home, {"every": "1h"})
    served_at(home, 1_000_000, 1_000_060)  # a machine that begins in a year to come
    served_at(home, 0, 60)
    assert ticks(home) == []


def test_a_broker_stays_for_schedules_and_ends_after_the_last(home: Home) -> None:
    add(home, {"at": "2026-02-05T12:00"})
    now_ms = START
    with broker_thread(home, idle=0.1, now_ms=lambda: now_ms):
        time.sleep(0.5)  # five times as long as it waits for somebody
        with connect(home, start=False) as client:
            client.request(HELLO)
        now_ms = START + 3 * HOUR
    with broker_thread(home, idle=0.1, now_ms=lambda: now_ms):
        log = Path(home.broker_log)
        wait_until(lambda: "nobody needs" in log.read_text(), what="its end")
    assert ticks(home) == [("beat", 120, 0)]


def test_every_minute_has_a_tick_of_its_own_where_somebody_wants_it(
    home: Home, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is started anew in the same minute does not tick again."""
    monkeypatch.setattr(clock, "MINUTE_MS", HOUR)  # no test waits for a minute to end
    configure("@relay.route(kinds=['timer_tick'])\ndef tick(event): return [event.sender_type]")
    now_ms = START + 5 * MINUTE

    def found(db: sqlite3.Connection) -> list[tuple[str]]:
        return db.execute("SELECT error FROM evaluations").fetchall()

    for _ in range(2):
        with (
            broker_thread(home, now_ms=lambda: now_ms),
            closing(sqlite3.connect(home.ledger)) as db,
        ):
            [(said,)] = wait_until(partial(found, db), what="an evaluation")
            assert "system" in said.lower()
    assert ticks(home) == [("minute", 0, 0)]


CLERK = """
import sys
told = sys.stdin.read()
print("Nothing is new." if "Look what is new." in told and "time for beat" in told else told)
"""
BEATS = """
from relay import Automation
def handler(ctx):
    assert ctx.event.metadata["schedule"] == ctx.principal.name == "beat"
    return {"fire": True, "agent": "clerk", "context": {"prompt": "Look what is new."},
            "disable": True}
automation = Automation("beat", "beats", handler, schedule={"every": "1s"})
"""


def test_an_answer_to_a_tick_comes_to_the_owner(
    home: Home, served: None, configure: Configure
) -> None:
    """From a file that is registered, over a tick of its own, to a persona's turn."""
    clerk = {"command": [sys.executable, "-c", CLERK], "mode": "headless", "tools": False}
    configure(f"config = {{'personas': {{'clerk': {clerk!r}}}}}")
    with connect(home) as client:
        client.request(AUTOMATION_REGISTER, path="/p/beat.py", source=BEATS)
        found = wait_until(lambda: client.request(INBOX)["rows"], what="an answer")
        event = {"channel": "timer", "kind": "timer_tick", "sender": "beat"}
        tried = client.request(AUTOMATION_TEST, name="beat", event=event)
    [row] = found
    assert (row["from"], row["body"].strip()) == ("clerk", "Nothing is new.")
    assert ticks(home) and next_tick(home) is None
    assert tried["event"]["sender_type"] == "system", tried


def test_nobody_else_tells_of_ticks(home: Home, served: None) -> None:
    with connect(home) as client:
        for kind in ("timer_tick", "message"):
            with pytest.raises(RelayError, match="relay's own clock"):
                client.request(EVENT, outside={"channel": "timer", "kind": kind, "sender": "x"})
        with pytest.raises(RelayError):
            client.request(EVENT, kind="timer_tick", body="x")
    assert ticks(home) == []
