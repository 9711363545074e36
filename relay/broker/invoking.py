"""The ops ``hooks_ran`` and ``hook_log``: what sessions tell of their hooks, and what is asked."""

from __future__ import annotations

import math
from typing import Any

from relay.broker.batch import Batch, ClientRequest
from relay.broker.directory import Directory
from relay.broker.ops_query import fitting
from relay.core.errors import RelayError, UsageError
from relay.ledger import queries
from relay.ledger.schema import INVOCATION_COLUMNS
from relay.ledger.store import Ledger
from relay.protocol.broker import Json

#: Records in one request, and characters of one text in them.
RECORDS_MAX = 200
TEXT_MAX = 8000
ROWS_MAX = 1000
_TEXTS = ("event", "hook", "kind", "source", "correlation_id", "decision")
_LONG_TEXTS = ("stdout", "stderr", "error")


class Invoking:
    """Stores and finds the runs of hooks."""

    def __init__(
        self,
        ledger: Ledger,
        directory: Directory,
    ) -> None:
        self._ledger = ledger
        self._directory = directory

    def hooks_ran(self, request: ClientRequest, batch: Batch) -> Json:
        """A session tells of hooks that it has run: ``records`` of relay.hooks.hook_log."""
        member = self._directory.speaker(request)
        if member is None:
            raise RelayError("only an agent's session tells of its hooks", code="forbidden")
        records = request.fields.get("records")
        if not isinstance(records, list) or len(records) > RECORDS_MAX:
            raise UsageError(f"records is a list of at most {RECORDS_MAX}")
        run = member.record.run or ""
        rows = [_row(record, run, member.name, batch.now_ms) for record in records]
        if rows:
            self._ledger.begin()
            self._ledger.add_invocations(rows)
        return {"stored": len(rows)}

    def hook_log(self, request: ClientRequest, batch: Batch) -> Json:
        """The newest runs of hooks that match, newest first."""
        limit = request.fields.get("limit", 50)
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= ROWS_MAX:
            raise UsageError(f"the limit must be 1 to {ROWS_MAX}, not {limit!r}")
        before = request.fields.get("before")
        wanted = queries.Invocations(
            agent=_optional(request.fields, "agent"),
            event=_optional(request.fields, "event"),
            hook=_optional(request.fields, "hook"),
            failed=bool(request.fields.get("failed")),
            before=before if isinstance(before, int) else None,
        )
        found = queries.invocations(self._ledger, wanted, limit + 1)
        rows, cut = fitting(found[:limit])
        return {"rows": rows, "more": cut or len(found) > limit}


def _row(record: object, run: str, agent: str, now_ms: int) -> tuple[Any, ...]:
    if not isinstance(record, dict):
        raise UsageError("a record is an object")
    duration = record.get("duration")
    seconds = float(duration) if isinstance(duration, int | float) else 0.0
    status = record.get("exit_status")
    values: dict[str, Any] = {
        "created_ms": now_ms,
        "run": run,
        "agent": agent,
        "success": int(bool(record.get("success"))),
        "duration": seconds if math.isfinite(seconds) else 0.0,
        "exit_status": status if isinstance(status, int) else None,
    }
    for name in _TEXTS:
        values[name] = str(record.get(name) or "")[:500]
    for name in _LONG_TEXTS:
        values[name] = str(record.get(name) or "")[:TEXT_MAX]
    return tuple(values[name] for name in INVOCATION_COLUMNS[1:])


def _optional(request: Json, name: str) -> str | None:
    value = request.get(name)
    return value if isinstance(value, str) and value else None
