"""The rows of dispatches: what waits for a persona, and how far it is. A file of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence

from relay.core.dispatch import BrokerDispatch
from relay.ledger.store import Ledger

#: How a dispatch begins.
QUEUED = "queued"


def add_dispatches(
    ledger: Ledger,
    event: int,
    dispatches: Sequence[BrokerDispatch],
    *,
    config: str,
    hops: int,
    now_ms: int,
) -> list[str]:
    """Append what follows from the event number ``event``, in this order, within the transaction
    that is open. ``config``: the trusted configuration whose personas are meant. Returns the ids
    of those that were not there yet: after a kill an event is evaluated again."""
    fresh = []
    with ledger.guard() as db:
        for one in dispatches:
            context = {
                "system_prompt": one.system_prompt,
                "extracted": one.extracted,
                "include_thread_history": one.include_thread_history,
            }
            added = db.execute(
                "INSERT OR IGNORE INTO dispatches (id, event, hook_id, persona, session, mode,"
                " priority, created_ms, hops, config, permissions_json, context_json,"
                f" delivery_json, open, state, updated_ms) VALUES ({','.join('?' * 16)})",
                (
                    *(one.id, event, one.hook_id, one.persona, one.session, one.queue_mode.value),
                    *(one.priority, now_ms, hops, config),
                    json.dumps(one.permissions.to_json()),
                    json.dumps({k: v for k, v in context.items() if v is not None}),
                    json.dumps(one.delivery_context.to_json()),
                    *(1, QUEUED, now_ms),
                ),
            )
            if added.rowcount:
                fresh.append(one.id)
    return fresh
