"""What personas add to the kernel's verbs: see relay.cli.door."""

from __future__ import annotations

from collections.abc import Iterator

from relay.features.personas.verbs import noted
from relay.protocol.broker import Json


def event_lines(event: Json) -> Iterator[tuple[str, str | None]]:
    """What the person noted of it, who evaluated it, and what was dispatched."""
    if event["noted"]:
        yield "noted", noted(event["noted"]) or None
    for one in event["evaluations"]:
        error = f": {one['error']}" if one["error"] else ""
        yield "evaluation", f"{one['hook']}  {one['state']}{error}"
    for one in event["dispatches"]:
        why = f" ({one['reason']})" if one["reason"] else ""
        answer = f", answer {one['answer']}" if one["answer"] else ""
        answer += f" ({one['answer_reason']})" if one["answer_reason"] else ""
        to = f"{one['persona']} {one['session']}  {one['state']}{why}{answer}"
        yield "dispatch", f"{to}, by {one['hook']}"
