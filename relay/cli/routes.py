"""Route functions in ``relay hooks``: listed, switched, and what they said. A file of its own."""

from __future__ import annotations

from typing import Any

from relay.broker.client import BrokerClient, connect
from relay.broker.trusted_configs import TrustedConfigs
from relay.cli import output, table
from relay.cli.parser import Options
from relay.core.paths import Home
from relay.hooks.events import HookEventName, RegistrationError, event_name

Json = dict[str, Any]

_HEAD = ("ROUTE FUNCTION", "KINDS", "CHANNELS", "PRIORITY", "STATE")


def applying(home: Home, cwd: str) -> list[Json]:
    """The route functions that evaluate the events of an agent in ``cwd``, as the op ``routes``
    shows them. The person is told which configurations evaluate nothing."""
    configs = TrustedConfigs(home).applying(cwd)
    if not any(one.manifest is None or one.manifest.routes for one in configs):
        return []
    with connect(home) as client:
        answer = client.request("routes", cwd=cwd)
    for path, problem in answer["problems"].items():
        output.note(f"{path} evaluates no event: {problem}")
    rows: list[Json] = answer["rows"]
    return rows


def as_hook(row: Json) -> Json:
    """A route function as ``relay hooks list --json`` shows it among hooks."""
    names = ("kinds", "channels", "priority", "disabled")
    shown = {name: row[name] for name in names}
    return {"event": "route", "name": row["hook"], "kind": "route", **shown, "source": row["path"]}


def print_list(rows: list[Json]) -> None:
    """The table of ``relay hooks list``."""
    cells = [
        (
            row["hook"],
            " ".join(row["kinds"] or ()) or "*",
            " ".join(row["channels"] or ()) or "*",
            row["priority"],
            f"off: {row['disabled']['reason']}" if row["disabled"] else "on",
        )
        for row in rows
    ]
    table.table(_HEAD, cells, width=table.columns())


def run_switch(options: Options) -> int:
    """``relay hooks enable|disable``."""
    with connect(Home.from_env()) as client:
        answer = client.request("hook_switch", hook=options.hook, on=options.on, **output.speaker())
    if options.json:
        output.as_json({name: answer[name] for name in ("hook", "on")})
    else:
        output.data(f"{answer['hook']} is {'on' if answer['on'] else 'off'}")
    return 0


def kind_or_event(given: str | None) -> HookEventName | str | None:
    """What ``relay hooks log --event`` names: an event of hooks, or a kind of events."""
    if not given:
        return None
    try:
        return event_name(given)
    except RegistrationError:
        return given


def evaluations(client: BrokerClient, event: HookEventName | str | None, options: Options) -> Json:
    """What route functions said, as rows of ``relay hooks log``."""
    fields: Json = {"limit": options.limit, "failed": options.failed, "quiet": options.quiet}
    if event is not None:
        fields["kind"] = options.event
    if options.agent:
        fields["sender"] = options.agent
    if options.hook:
        fields["hook"] = options.hook
    answer = client.request("evaluations", **fields)
    return {"rows": [_log_row(row) for row in answer["rows"]], "more": answer["more"]}


def _log_row(row: Json) -> Json:
    return {
        "created_ms": row["started_ms"],
        "agent": row["sender"],
        "event": row["kind"],
        "hook": row["hook"],
        "kind": "route",
        "source": row["channel"],
        "correlation_id": row["event"],
        "success": row["error"] is None,
        "decision": "" if row["error"] else "fired" if row["fired"] else "not fired",
        "duration": row["latency_us"] / 1e6,
        "exit_status": None,
        "stdout": "",
        "stderr": "",
        "error": row["error"] or "",
        "result": row["result"],
    }
