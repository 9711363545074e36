"""When a usage limit ends, in the words of agents."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from relay.screen.usage_limit import seconds_to_reset

#: Monday, 10:30 in UTC.
NOW = datetime(2026, 11, 23, 10, 30, tzinfo=UTC)
SAID = {
    "epoch": (f"Claude AI usage limit reached|{int(NOW.timestamp()) + 600}", 600),
    "claude": ("You've hit your limit · resets 3pm (UTC)", 4.5 * 3600),
    "next-day": ("5-hour limit reached ∙ resets 9:15am (UTC)", 22.75 * 3600),
    "week": ("weekly limit reached · resets Nov 25, 3pm (UTC)", 52.5 * 3600),
    "codex": ("You've hit your usage limit. Try again in 2 hours 5 minutes.", 7500),
    "days": ("Upgrade, or try again in 1 day 1 hour", 90000),
    "gemini": ("Your quota will reset after 2h4m4s.", 7444),
    "zone": ("limit reached, resets at 13:00 (Europe/Berlin)", 1.5 * 3600),
    "past": ("usage limit reached|1000000000", None),
    "bare": ("try again at 5", None),
    "nonsense": ("resets 99:99pm (Mars/Base)", None),
    "nothing": ("a usage limit is reached", None),
}


@pytest.mark.parametrize(("text", "seconds"), SAID.values(), ids=SAID)
def test_the_time_of_the_reset_is_read(text: str, seconds: float | None) -> None:
    assert seconds_to_reset(text, int(NOW.timestamp() * 1000)) == seconds
