"""The broker's clock: stores a tick when the schedule of an automation strikes, and every minute.

A tick is an event of the channel ``timer``, sent by the schedule's name (``minute``: every minute,
where somebody wants it), and is evaluated as all others are. When the next one is due is a column
of its automation, written with the tick: after a kill, a sleep or hours without a broker one tick
comes, which says how many were missed. The channel's own id of it keeps it from coming twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from functools import partial
from zoneinfo import ZoneInfo

from relay.broker.batch import Accepted, Batch
from relay.broker.kernel import Kernel
from relay.core.dispatch import MINUTE, TICK_KIND, TIMER_CHANNEL, PeerKind, PersonType
from relay.core.ids import new_ulid
from relay.features.automations import automation_rows
from relay.features.automations.automation_rows import ActiveAutomation, AutomationRegistry
from relay.features.automations.definition import Schedule
from relay.features.personas.evaluation import Evaluations
from relay.ledger.event_rows import OUTSIDE, OutsideEvent

#: Milliseconds between two ticks of ``minute``; a sleep is noticed after so long at most.
MINUTE_MS = 60_000
#: Ticks in one commit: others want their turn.
TICKS_MAX = 64
#: Seconds after a commit that failed.
AGAIN_AFTER = 1.0


class Clock:
    """It strikes for what is active in ``registry``. Belongs to the broker's loop."""

    def __init__(
        self,
        kernel: Kernel,
        registry: AutomationRegistry,
        evaluations: Evaluations,
    ) -> None:
        self._ledger = kernel.ledger
        self._committer = kernel.committer
        self._registry = registry
        self._evaluations = evaluations
        self._windows = kernel.windows
        self._now_ms = kernel.now_ms
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        #: When it looked last; None: whatever was due is worked out anew.
        self._looked_ms: int | None = None
        self._minute = -1
        #: Automations, with their versions, for which it never strikes again.
        self._over: set[tuple[str, int]] = set()
        self._asked = self._closed = False

    def look(self) -> None:
        """Strike if it is time, else wait: at the start, and when an automation has changed."""
        if self._closed or self._asked:
            return
        now_ms = self._now_ms()
        minute, wanted = now_ms // MINUTE_MS, False
        if minute != self._minute:
            self._minute, wanted = minute, self._evaluations.wants_ticks()
        back = self._looked_ms is None or now_ms < self._looked_ms
        self._looked_ms = now_ms
        if back:
            self._over.clear()
        if wanted or any(back or due_ms <= now_ms for _, due_ms in self._waiting()):
            self._asked = True
            self._committer.submit_job(partial(self._strike, wanted, back))
        else:
            next_ms = min([due_ms for _, due_ms in self._waiting()] + [(minute + 1) * MINUTE_MS])
            self._wait((next_ms - now_ms) / 1000)

    def close(self) -> None:
        """It strikes no more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    @property
    def busy(self) -> bool:
        """Whether somebody waits for a tick."""
        return bool(self._waiting()) or self._evaluations.wants_ticks()

    def _waiting(self) -> list[tuple[ActiveAutomation, int]]:
        """Those for which it will strike, and when; 0: that is to be worked out."""
        return [
            (one, one.row.next_tick_ms or 0)
            for one in self._registry.active.values()
            if one.definition.schedule and (one.id, one.row.version) not in self._over
        ]

    def _wait(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.look)

    # -- the ticks

    def _strike(self, minute: bool, back: bool, batch: Batch) -> None:
        """Store the ticks that are due; ``back``: what lies ahead is worked out anew, too."""

        def again() -> None:
            self._asked, self._looked_ms, self._minute = False, None, -1
            self._wait(AGAIN_AFTER)

        batch.on_failure.append(again)
        now_ms, local = batch.now_ms, local_zone()
        if minute:
            at_ms = now_ms - now_ms % MINUTE_MS
            self._tick(MINUTE, MINUTE, at_ms, 0, local, batch)
        waiting = self._waiting()
        moved = [one for one, due_ms in waiting if due_ms <= now_ms][:TICKS_MAX]
        moved += [one for one, due_ms in waiting if back and due_ms > now_ms]
        for one in moved:
            self._move_on(one, local, batch)
        batch.after.append(partial(self._struck, [one.id for one in moved]))

    def _struck(self, ids: list[str]) -> None:
        for id_ in ids:
            self._registry.refresh(id_)
        self._asked = False
        self.look()

    def _move_on(self, one: ActiveAutomation, local: tzinfo, batch: Batch) -> None:
        row = automation_rows.by_id(self._ledger, one.id)
        if row is None or (row.version, row.status) != (one.row.version, one.row.status):
            return  # it was changed in this batch; who did it has the clock look again
        now_ms, before = batch.now_ms, row.next_tick_ms
        schedule = Schedule.of(one.definition.schedule)
        if before is not None and before <= now_ms:
            after, missed = schedule.after_tick(before, now_ms, local)
            self._tick(one.id, row.name, before, missed, schedule.zone or local, batch)
        else:
            after = schedule.next_after(now_ms, local)
            if before is not None:  # never later than from now on: the clock may be set back
                after = before if after is None else min(before, after)
        if after is None:
            self._over.add((one.id, row.version))
        if after != before:
            self._ledger.begin()
            automation_rows.set_next_tick(self._ledger, one.id, after)

    def _tick(
        self, key: str, name: str, due_ms: int, missed: int, zone: tzinfo, batch: Batch
    ) -> None:
        now = datetime.fromtimestamp(batch.now_ms / 1000, UTC).astimezone(zone)
        text = f"It is {now:%A}, {now.day} {now:%B %Y, %H:%M %Z}: time for {name}."
        if missed:
            text += f" {missed} earlier {'tick was' if missed == 1 else 'ticks were'} missed."
        about = {"schedule": name, "due_ms": due_ms, "missed": missed}
        event = Accepted(
            request=None,
            id=new_ulid(batch.now_ms),
            given=False,
            kind=TICK_KIND,
            sender=name,
            origin=OUTSIDE,
            body=text,
            meta=json.dumps({"meta": about}),
            handled=True,
            outside=OutsideEvent(
                channel=TIMER_CHANNEL,
                source_id=f"{key}:{due_ms}",
                account=None,
                peer_kind=PeerKind.DM,
                peer=None,
                reply_to=None,
                content_type="text",
                occurred_ms=batch.now_ms,
                sender_type=PersonType.SYSTEM,
            ),
        )
        self._windows.collect(event, batch)


def local_zone() -> tzinfo:
    """This machine's time zone, with its changes between summer and winter."""
    with suppress(OSError, ValueError, KeyError):
        name = os.environ.get("TZ", "").lstrip(":")
        if name:
            return ZoneInfo(name)
        with open("/etc/localtime", "rb") as file:
            return ZoneInfo.from_file(file)
    return datetime.fromtimestamp(time.time(), UTC).astimezone().tzinfo or UTC
