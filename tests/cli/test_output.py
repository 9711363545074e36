"""How the verbs print times and summaries."""

from __future__ import annotations

import time

import pytest

from relay.cli import output


def test_times_are_iso_in_utc() -> None:
    assert output.iso(0) == "1970-01-01T00:00:00.000Z"
    assert output.iso(1_795_304_542_028) == "2026-11-21T23:42:22.028Z"
    assert output.iso(None) is None


def test_a_long_body_is_one_short_line() -> None:
    assert output.summary("a\n  b\tc") == "a b c"
    assert len(output.summary("x" * 500)) == 60


def test_a_persons_time_is_local_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    now_ms = 1_795_304_542_028
    try:
        assert output.clock(now_ms - 1000, now_ms) == "01:42:21"
        assert output.clock(now_ms - 86_400_000, now_ms) == "2026-11-21 01:42"
        assert output.clock(now_ms + 60_000, now_ms) == "2026-11-22 01:43"
    finally:
        monkeypatch.undo()
        time.tzset()
