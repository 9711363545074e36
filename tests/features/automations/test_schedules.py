"""When an automation's clock strikes: units, cron, one time only, time zones and their changes."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from relay.core.errors import UsageError
from relay.features.automations.definition import MISSED_MAX, Schedule

BERLIN = ZoneInfo("Europe/Berlin")


def ms(text: str, zone: tzinfo = UTC) -> int:
    at = datetime.fromisoformat(text)
    return int((at if at.tzinfo else at.replace(tzinfo=zone)).timestamp() * 1000)


def ticks(schedule: dict[str, str], after: str, count: int, zone: tzinfo = UTC) -> list[str]:
    """The next ``count`` ticks, in ``zone``."""
    found, at_ms = [], ms(after, zone)
    for _ in range(count):
        next_ms = Schedule.of(schedule).next_after(at_ms, zone)
        if next_ms is None:
            break
        at_ms = next_ms
        found.append(datetime.fromtimestamp(at_ms / 1000, zone).strftime("%d %H:%M:%S %z"))
    return found


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("15m", 900), ("1h30m", 5400), ("2d", 172_800), ("1w", 604_800), ("1h 5s", 3605)],
)
def test_every_has_units(text: str, seconds: int) -> None:
    assert Schedule.of({"every": text}).next_after(1000, UTC) == 1000 + seconds * 1000


def test_a_time_zone_is_this_machines_unless_one_is_named() -> None:
    nine = {"cron": "0 9 * * 1-5"}
    assert ticks(nine, "2026-02-06T10:00", 1, BERLIN) == ["09 09:00:00 +0100"]  # a Monday
    assert ticks(nine | {"timezone": "Asia/Tokyo"}, "2026-02-06T10:00", 1) == ["09 00:00:00 +0000"]
    at = Schedule.of({"at": "2026-02-05T10:00", "timezone": "Europe/Berlin"})
    assert at.next_after(0, UTC) == ms("2026-02-05T09:00")
    own = Schedule.of({"at": "2026-02-05T10:00-05:00", "timezone": "Europe/Berlin"})
    assert own.next_after(0, UTC) == ms("2026-02-05T15:00")


def test_a_time_that_the_change_of_the_clocks_leaves_out_comes_once_right_after_it() -> None:
    found = ticks({"cron": "30 2 * * *"}, "2026-03-28T12:00", 2, BERLIN)
    assert found == ["29 03:00:00 +0200", "30 02:30:00 +0200"]
    at = Schedule.of({"at": "2026-03-29T02:30"}).next_after(0, BERLIN)
    assert at == ms("2026-03-29T03:30", BERLIN)


def test_a_time_that_comes_twice_strikes_once_and_short_steps_go_on() -> None:
    found = ticks({"cron": "30 2 * * *"}, "2026-10-24T12:00", 2, BERLIN)
    assert found == ["25 02:30:00 +0200", "26 02:30:00 +0100"]
    steps = ticks({"cron": "*/30 * * * *"}, "2026-10-25T02:10", 4, BERLIN)
    assert steps == [f"25 {one}" for one in (
        "02:30:00 +0200", "02:00:00 +0100", "02:30:00 +0100", "03:00:00 +0100"
    )]  # fmt: skip


def test_at_strikes_once() -> None:
    at = Schedule.of({"at": "2026-02-05T10:00Z"})
    due = ms("2026-02-05T10:00")
    assert at.next_after(due - 1, UTC) == due
    assert at.next_after(due, UTC) is None
    assert at.after_tick(due, due + 86_400_000, UTC) == (None, 0)


@pytest.mark.parametrize(
    ("schedule", "missed", "follows"),
    [
        ({"every": "1h"}, 10, "2026-02-05T19:00"),
        ({"cron": "0 */2 * * *"}, 5, "2026-02-05T20:00"),
        ({"cron": "* * * * * *"}, MISSED_MAX, "2026-02-05T18:30:01"),
    ],
    ids=["every", "cron", "too_many"],
)
def test_what_was_missed_is_counted_and_left_out(
    schedule: dict[str, str], missed: int, follows: str
) -> None:
    due, now = ms("2026-02-05T08:00"), ms("2026-02-05T18:30")
    assert Schedule.of(schedule).after_tick(due, now, UTC) == (ms(follows), missed)


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        ("5m", "must be a dictionary"),
        ({}, "one of every, cron and at"),
        ({"every": "5m", "cron": "* * * * *"}, "one of every, cron and at"),
        ({"daily": "9"}, "has no 'daily'"),
        ({"every": 5}, "must be a text"),
        ({"every": "5 parsecs"}, "such as 30s"),
        ({"every": "0s"}, "from 1s"),
        ({"every": "1" * 5000 + "s"}, "cannot be"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "* * *"}, "Wrong number"),
        ({"cron": "0 0 30 2 *"}, "Bad day-of-month"),
        ({"cron": "* * */20 * 1L"}, "never comes"),
        ({"cron": "0," * 500 + "0 * * * *"}, "more than 200"),
        ({"at": "tomorrow"}, "cannot be 'tomorrow'"),
        ({"every": "5m", "timezone": "Middle/Earth"}, "timezone cannot be"),
        ({"every": "5m", "timezone": "../../etc/passwd"}, "timezone cannot be"),
        ({"every": "5m", "timezone": 7}, "timezone cannot be"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, dict) else "",
)
def test_what_is_no_schedule_is_refused_with_what_one_is(schedule: Any, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        Schedule.of(schedule)
    assert told in refused.value.line
