"""Reads when a usage limit ends from what an agent says of it. Pure.

Each agent words it differently, and says it on its screen, in its error or in both.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

#: A limit that is said to last longer than this is taken for a misreading. Seconds.
LONGEST = 8 * 86400.0

_EPOCH = re.compile(r"limit reached\|(\d{10})\b")
_SPAN = re.compile(
    r"(?:resets?|try again|retry|available again|wait)\s+(?:again\s+)?(?:in|after|for)\s+"
    r"((?:\d+(?:\.\d+)?\s*(?:d(?:ays?)?|h(?:ours?|rs?)?|m(?:in(?:ute)?s?)?|s(?:ec(?:ond)?s?)?)(?=[\d\W]|$)"
    r"[\s,]*(?:and\s+)?)+)",
    re.IGNORECASE,
)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([dhms])", re.IGNORECASE)
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_CLOCK = re.compile(
    r"(?:resets?|try again|available again)(?:\s+(?:at|on|by))?\s+"
    rf"(?:({'|'.join(_MONTHS)})[a-z]*\.?\s+(\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s+\d{{4}})?"
    r"(?:,|\s+at)?\s+)?"
    r"(\d{1,2})(?::(\d{2}))?\s*([ap])?\.?m?\.?(?:\s*\(([A-Za-z]+(?:/[A-Za-z_]+)*)\))?",
    re.IGNORECASE,
)


def seconds_to_reset(text: str, now_ms: int) -> float | None:
    """Seconds until the limit ends of which ``text`` tells; None where it does not say."""
    found: list[float] = []
    for one in _EPOCH.finditer(text):
        found.append(int(one[1]) - now_ms / 1000)
    for one in _SPAN.finditer(text):
        parts = _PART.findall(one[1])
        found.append(sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts))
    if not found:
        found = [rest for one in _CLOCK.finditer(text) if (rest := _until(one, now_ms)) is not None]
    return next((rest for rest in reversed(found) if 0 < rest <= LONGEST), None)


def _until(one: re.Match[str], now_ms: int) -> float | None:
    month, day, hour, minute, half, zone = one.groups()
    if not (half or minute):
        return None  # a bare number is no time of the day
    try:
        zoned = ZoneInfo(zone) if zone else None
        now = datetime.fromtimestamp(now_ms / 1000, zoned).astimezone(zoned)
        hours = int(hour) % 12 + 12 * (half.lower() == "p") if half else int(hour)
        then = now.replace(hour=hours, minute=int(minute or 0), second=0, microsecond=0)
        if month:
            then = then.replace(month=_MONTHS.index(month.lower()) + 1, day=int(day))
            if then < now:
                then = then.replace(year=now.year + 1)
        elif then <= now:
            then += timedelta(days=1)
    except (ValueError, KeyError, OSError):
        return None
    return (then - now).total_seconds()
