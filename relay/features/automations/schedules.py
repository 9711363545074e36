"""When an automation's own clock strikes: ``every`` so often, by ``cron``, once ``at`` a time.

Times are milliseconds since the epoch. ``local`` is this machine's time zone, for a schedule that
names none. A time that a change of the clocks leaves out comes right after it; of one that comes
twice the first counts. Cron expressions are those of cronsim, which is imported for one. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from relay.core.errors import UsageError

#: What ``every`` may be, in milliseconds.
EVERY_MIN, EVERY_MAX = 1000, 366 * 86_400_000
#: Characters of a cron expression.
CRON_MAX = 200
#: Ticks that were missed are counted up to so many.
MISSED_MAX = 100
_KINDS = ("every", "cron", "at")
_PARTS = re.compile(r"(?:\d+[smhdw])+")
_PART = re.compile(r"(\d+)([smhdw])")
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


@dataclass(frozen=True, slots=True)
class Schedule:
    """One of ``every`` (milliseconds), ``cron`` and ``at``; ``zone``: None for the local one."""

    every: int | None = None
    cron: str | None = None
    at: datetime | None = None
    zone: ZoneInfo | None = None

    @classmethod
    def of(cls, value: object) -> Schedule:
        """Read what a file says. Raises UsageError, which says what is wrong with it."""
        if not isinstance(value, Mapping):
            raise UsageError(f"schedule must be a table, not {value!r}")
        for key in value:
            if key not in (*_KINDS, "timezone"):
                raise UsageError(
                    f"schedule has no {key!r}", hint=f"it has {', '.join(_KINDS)}, timezone"
                )
        given = {key: one for key, one in value.items() if one is not None}
        zone = None if "timezone" not in given else _zone(given.pop("timezone"))
        if len(given) != 1:
            raise UsageError("a schedule has one of every, cron and at")
        [(kind, text)] = given.items()
        if not isinstance(text, str):
            raise UsageError(f"schedule.{kind} must be a text, not {text!r}")
        if kind == "every":
            return cls(every=_every(text), zone=zone)
        if kind == "at":
            return cls(at=_at(text), zone=zone)
        _check_cron(text)
        return cls(cron=text, zone=zone)

    def next_after(self, now_ms: int, local: tzinfo) -> int | None:
        """When it strikes next, counted from now on; None: never again."""
        if self.every is not None:
            return now_ms + self.every
        zone = self.zone or local
        if self.at is not None:
            at = self.at if self.at.tzinfo else self.at.replace(tzinfo=zone)
            at_ms = _ms(at)
            return at_ms if at_ms > now_ms else None
        return next(self._cron_after(now_ms, zone), None)

    def after_tick(self, due_ms: int, now_ms: int, local: tzinfo) -> tuple[int | None, int]:
        """When it strikes next after the one of ``due_ms`` that strikes now, and how many others
        were due meanwhile: those are missed."""
        if self.every is not None:
            missed = (now_ms - due_ms) // self.every
            return due_ms + (missed + 1) * self.every, min(missed, MISSED_MAX)
        missed = 0
        strikes = iter(()) if self.cron is None else self._cron_after(due_ms, self.zone or local)
        for found in strikes:
            if found > now_ms:
                return found, missed
            if missed == MISSED_MAX:
                return self.next_after(now_ms, local), missed
            missed += 1
        return None, missed

    def _cron_after(self, after_ms: int, zone: tzinfo) -> Iterator[int]:
        from cronsim import CronSim  # on use: most have none

        start = datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(zone)
        with suppress(OverflowError):  # beyond the year 9999
            for at in CronSim(self.cron or "", start):
                if (found := _ms(at)) > after_ms:
                    yield found


@lru_cache(4096)  # it takes up to 2 ms, and what is stored is read again and again
def _check_cron(text: str) -> None:
    """Raises UsageError for what is no cron expression, or never comes."""
    from cronsim import CronSim, CronSimError

    hint = "minute hour day-of-month month day-of-week, such as: 0 9 * * 1-5"
    if len(text) > CRON_MAX:
        raise UsageError(f"schedule.cron has more than {CRON_MAX} characters", hint=hint)
    try:
        CronSim(text, datetime(2026, 1, 1))
    except (CronSimError, ValueError, AssertionError) as error:
        raise UsageError(f"schedule.cron cannot be {text!r}: {error}", hint=hint) from error
    if Schedule(cron=text).next_after(0, UTC) is None:
        raise UsageError(f"schedule.cron {text!r} never comes", hint=hint)


def _every(text: str) -> int:
    whole = text[:41].replace(" ", "")
    found = sum(int(n) * _UNITS[unit] for n, unit in _PART.findall(whole))
    if not _PARTS.fullmatch(whole) or len(text) > 40:
        raise UsageError(
            f"schedule.every cannot be {text[:40]!r}", hint="such as 30s, 15m, 1h30m, 2d, 1w"
        )
    if not EVERY_MIN <= found <= EVERY_MAX:
        raise UsageError("schedule.every is from 1s to 366d")
    return found


def _at(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        _ms(found.replace(tzinfo=found.tzinfo or UTC))
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"schedule.at cannot be {text[:40]!r}",
            hint='such as "2026-02-05T10:00", or with an offset "2026-02-05T10:00+01:00"',
        ) from error
    return found


def _zone(name: object) -> ZoneInfo:
    try:
        return ZoneInfo(name)  # type: ignore[arg-type]
    except (ValueError, TypeError, OSError, KeyError, AttributeError) as error:
        raise UsageError(
            f"schedule.timezone cannot be {str(name)[:40]!r}",
            hint='a name of the time zone database, such as "Europe/Berlin"',
        ) from error


def _ms(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
