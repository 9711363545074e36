"""The ledger's tables, and its rows as the broker's protocol shows them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

from relay.core import sqlite
from relay.core.message import State
from relay.ledger.migrations import MIGRATIONS
from relay.protocol.message_ops import HistoryRow

#: The ledger's file. 16 MB of log before it is moved: pages that change often are moved once, with
#: fewer syncs.
SCHEMA = sqlite.Schema(
    title="the ledger {path}",
    noun="a ledger",
    application_id=0x72656C79,  # "rely"
    migrations=MIGRATIONS,
    pragmas=(
        "wal_autocheckpoint=4000",
        "journal_size_limit=67108864",
        "foreign_keys=ON",
        "recursive_triggers=ON",  # INSERT OR REPLACE deletes too
    ),
)
#: ``senders`` holds blocks of ``1 << BLOCK_BITS`` events.
BLOCK_BITS = 12

#: The columns of ``hook_invocations``, in the order of their tuples; the ledger gives the first.
INVOCATION_COLUMNS = (
    *("seq", "created_ms", "run", "agent", "event", "hook", "kind", "source", "correlation_id"),
    *("success", "decision", "duration", "exit_status", "stdout", "stderr", "error"),
)

Row = dict[str, Any]

#: Who an event is from, for a query of ``events e``: of one of another channel with the channel's
#: name before it, so that no stranger passes for somebody here.
SENDER = "iif(e.channel='relay', e.agent, e.channel || ':' || e.agent)"
#: The columns of ``message_row``, for a query that joins ``events e`` and ``deliveries d``.
COLUMNS = (
    f"e.seq, e.id, e.kind, {SENDER}, e.origin, e.mode, e.thread, e.body, e.meta_json, e.created_ms,"
    " d.recipient, d.n, d.state, d.reason, d.proof, d.attempts, d.updated_ms"
)
#: What an event ``e`` says, for who has to get it: with the secrets that are masked elsewhere.
ORIGINAL = "ifnull((SELECT o.body FROM originals o WHERE o.event = e.seq), e.body)"


@dataclass(frozen=True, slots=True)
class Delivery:
    """How far one message is on its way to one recipient. Times in milliseconds."""

    state: State = State.QUEUED
    reason: str | None = None
    proof: str | None = None
    attempts: int = 0
    delivering_ms: int | None = None
    submitted_ms: int | None = None
    updated_ms: int = 0


@dataclass(slots=True)
class AgentRecord:
    """Somebody who can get messages: a wrapped agent, or a person. Times in milliseconds."""

    name: str
    person: bool
    kind: str
    state: str
    since_ms: int
    last_seen_ms: int
    run: str | None = None
    token_hash: str | None = None
    pid: int | None = None
    cwd: str | None = None
    command: str | None = None
    reason: str | None = None
    #: Of what made this run speak. Written by ``Ledger.save_hops`` alone.
    hops: int = 0
    #: What it is for, in lower case, with commas.
    roles: str = ""
    #: Its own id of the conversation that it was in last, to go on with.
    conversation: str = ""


#: The same columns, but for the first, as the protocol names them.
_NAMES = (
    *("id", "kind", "from", "from_kind", "mode", "thread", "body", "meta", "created_ms"),
    *("to", "delivery", "state", "reason", "proof", "attempts", "updated_ms"),
)


def message_row(columns: tuple[Any, ...]) -> HistoryRow:
    """One delivery of one message, from the ``COLUMNS`` of a query."""
    row = dict(zip(_NAMES, columns[1:], strict=True))
    meta = row.pop("meta")
    if row["updated_ms"] is None:  # it was sent to nobody
        row["updated_ms"] = row["created_ms"]
    return cast(HistoryRow, row | json.loads(meta) if meta else row)
