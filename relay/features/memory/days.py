"""A time as the words in which people ask for it. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

_MONTHS = "January February March April May June July August September October November December"


def day(ms: int) -> str:
    """The day (UTC) in words, as questions name it."""
    try:
        date = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{date.day} {_MONTHS.split()[date.month - 1]} {date.year}"
