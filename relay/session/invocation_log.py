"""Sends the records of this session's hooks to the broker's ledger, and to the run's log.

Nobody waits for it. The records that wait for a broker that is away are bounded: beyond it the
oldest are dropped, and that is noted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from relay.core.errors import RelayError
from relay.directive.redact import redact
from relay.hooks import hook_log
from relay.hooks.events import HookEventName
from relay.session.background import Tasks
from relay.session.broker_reports import Broker
from relay.session.session_commands import PersonNote
from relay.session.session_events import EventQueue

#: Records that wait for the broker, and records in one request.
WAITING_MAX = 1000
AT_ONCE = 100
#: Events whose records are made later; beyond it they are made at once.
UNMADE_MAX = 100
#: Characters of one text; a request of AT_ONCE of them stays well below the longest line.
TEXT_MAX = 2000
#: Records that come within so many seconds go in one request.
TOGETHER = 0.25
#: Frequent events: only runs that said or decided something, or failed, are kept.
_CHATTY = frozenset({HookEventName.OUTPUT.value, HookEventName.IDLE.value})
_KEPT = ("event", "hook", "kind", "source", "duration", "success", "exit_status")
_KEPT_MORE = ("correlation_id", "decision")


class SessionHookLog:
    """A :class:`relay.hooks.hook_log.HookLog`. ``verbose``: all records go to the run's log."""

    def __init__(
        self,
        broker: Broker,
        events: EventQueue,
        tasks: Tasks,
        *,
        verbose: bool = False,
    ) -> None:
        self._broker = broker
        self._events = events
        self._tasks = tasks
        self._verbose = verbose
        self._unmade: deque[Iterator[tuple[str, dict[str, Any]]]] = deque()
        self._waiting: deque[dict[str, Any]] = deque()
        self._sending = False
        self._one = asyncio.Lock()  # one request at a time, so that no record is sent twice
        self._left_out = 0
        self._last_kept = ""  # the correlation id of the last record that was kept

    def soon(self, records: Iterator[tuple[str, dict[str, Any]]]) -> None:
        """See relay.hooks.hook_log.HookLog: in the loop's next turn the agent has its answer."""
        self._unmade.append(records)
        if len(self._unmade) >= UNMADE_MAX:
            self._make()
        elif len(self._unmade) == 1:
            asyncio.get_running_loop().call_soon(self._make)

    def _make(self) -> None:
        while self._unmade:
            for kind, record in self._unmade.popleft():
                with contextlib.suppress(OSError):  # the run's log cannot be written to
                    self.log(kind, record)

    def log(self, kind: str, record: dict[str, Any]) -> None:
        """Take a record; see relay.hooks.hook_log."""
        if self._verbose or kind in (hook_log.FAILURE, hook_log.ENGINE_FAILURE):
            text = json.dumps(record, default=str, ensure_ascii=True)
            print(f"{kind} {text}", file=sys.stderr)
        if kind == hook_log.BATCH_SUMMARY:
            # A single hook's own record says the same; nothing is kept of runs that are not kept.
            if record["total"] < 2 or record["correlation_id"] != self._last_kept:
                return
            record = _as_run(record)
        elif kind != hook_log.RESULT or _dull(record):
            return
        self._last_kept = record["correlation_id"]
        self._waiting.append(_stored(record))
        if len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()
            self._left_out += 1
        if not self._sending:
            self._sending = True
            self._tasks.spawn(self._send())

    async def settle(self, seconds: float) -> None:
        """Wait until all of it is stored, at most ``seconds``."""
        self._make()
        try:
            async with asyncio.timeout(seconds):
                while self._waiting:
                    await self._send_some()
        except (TimeoutError, RelayError):
            self._note(f"{len(self._waiting)} runs of hooks are in no ledger: the broker is away")

    async def _send(self) -> None:
        try:
            while self._waiting:
                if len(self._waiting) < AT_ONCE:  # else more would come than is sent
                    await asyncio.sleep(TOGETHER)
                await self._send_some()
        finally:
            self._sending = False
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            self._note(f"{left_out} runs of hooks are in no ledger: they came too fast")

    def _note(self, text: str) -> None:
        self._events.post(PersonNote(text))

    async def _send_some(self) -> None:
        async with self._one:
            some = list(self._waiting)[:AT_ONCE]
            if not some:
                return
            await self._broker.request("hooks_ran", records=some)
            for record in some:
                if self._waiting and self._waiting[0] is record:
                    self._waiting.popleft()


def _dull(record: dict[str, Any]) -> bool:
    return (
        record["event"] in _CHATTY
        and bool(record["success"])
        and not record["decision"]
        and not record.get("said")
        and not record["stdout"]
        and not record["stderr"]
    )


def _as_run(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary of several hooks in the columns of one."""
    failed = summary["failed"]
    said = f"{summary['total']} hooks: {summary['succeeded']} succeeded, {failed} failed"
    return summary | {"hook": said, "kind": hook_log.BATCH, "success": not failed}


def _stored(record: dict[str, Any]) -> dict[str, Any]:
    kept = {name: record.get(name) for name in (*_KEPT, *_KEPT_MORE)}
    for name in ("stdout", "stderr", "error"):
        kept[name] = redact(_text(record.get(name)))
    kept["hook"], kept["source"] = _text(record.get("hook")), _text(record.get("source"))
    return kept


def _text(value: object) -> str:
    """A text that UTF-8 can carry, cut."""
    text = str(value)[:TEXT_MAX] if value else ""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
