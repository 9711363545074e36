"""Argument types that several verbs share: durations, counts, moments."""

from __future__ import annotations

import argparse
import re
import time
from datetime import UTC, datetime

#: ``--wait`` without a number. Seconds.
WAIT = 60.0

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def wait_seconds(text: str) -> float:
    """Seconds of ``--wait=S``, the default for a bare ``--wait``."""
    return _seconds(text) if text else WAIT


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None or float(match[1]) * _UNITS[match[2] or "s"] > 86400 * 30:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds (30, 1.5, 10m, 2h)")
    return float(match[1]) * _UNITS[match[2] or "s"]


def count(text: str) -> int:
    """A number from 1 to 10000."""
    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 10000")
    return int(text)


def moment(text: str) -> int:
    """Milliseconds since the epoch of a time, or of so long ago."""
    match = re.fullmatch(r"(\d{1,6})([smhdw])", text)
    if match is not None:
        return int((time.time() - int(match[1]) * _UNITS[match[2]]) * 1000)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time (10m, 2h, 3d, 2026-01-31, 2026-01-31T12:00:00Z)"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)
