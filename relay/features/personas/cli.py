"""What personas add to the kernel's verbs: see relay.cli.door."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from relay.broker.client import connect, request
from relay.cli import output, table
from relay.cli.parser import Parser
from relay.core.errors import UsageError
from relay.core.paths import Home
from relay.features.personas.ops import (
    DISPATCH,
    DISPATCHES,
    HOOK_SWITCH,
    REDISPATCH,
    ROUTES,
    DispatchShown,
    RouteRow,
)
from relay.features.personas.verbs import noted
from relay.protocol.broker import Json

#: Dispatches that are listed.
_LIMIT = 1000
_ROUTES_HEAD = ("ROUTE FUNCTION", "KINDS", "CHANNELS", "PRIORITY", "STATE")


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


def add_parts(name: str, group: Parser) -> None:
    """``relay broker queue|dead|retry|drop|dispatch`` and ``relay hooks enable|disable``."""
    if name == "broker":
        _add_to_broker(group)
    elif name == "hooks":
        _add_to_hooks(group)


# -- relay broker: dispatches


def _add_to_broker(group: Parser) -> None:
    queue = group.add_parser("queue", help="what personas are doing, and what waits for them")
    dead = group.add_parser("dead", help="what was given up, and why")
    for parser, is_dead in ((queue, False), (dead, True)):
        parser.add_argument(
            "which", nargs="?", metavar="ID|PERSONA", help="only this one, or this persona's"
        )
        parser.set_defaults(run=_list, dead=is_dead)
    retry = group.add_parser("retry", help="try again what was given up")
    drop = group.add_parser("drop", help="forget what was given up; the ledger keeps it")
    for parser, dropped in ((retry, False), (drop, True)):
        parser.add_argument("which", nargs="*", metavar="ID|PERSONA", help="as dead lists them")
        parser.add_argument("--all", action="store_true", help="everything that was given up")
        parser.set_defaults(run=_again, drop=dropped)
    made = group.add_parser("dispatch", help="ask a persona something yourself")
    made.add_argument("persona", metavar="PERSONA", help="whom to ask")
    made.add_argument("text", metavar="TEXT", help="the question; - reads it from stdin")
    made.add_argument("--session", metavar="S", help="the persona's session (main)")
    made.add_argument("--mode", metavar="MODE", help="followup, steer, collect or interrupt")
    made.add_argument("--priority", metavar="N", help="above 0: before others (0)")
    made.set_defaults(run=_dispatch)
    for parser in (queue, dead, retry, drop, made):
        parser.add_argument("--json", action="store_true", help="print JSON")


def _list(options: Any) -> int:
    rows = request(
        DISPATCHES, dead=options.dead, which=options.which, limit=_LIMIT, **output.speaker()
    )["rows"]
    if options.json:
        output.as_json([_shown(row) for row in rows])
        return 0
    if not rows:
        output.note("nothing is dead" if options.dead else "nothing waits for a persona")
        return 0
    width = table.columns()
    table.table(
        ("SINCE", "ID", "PERSONA", "SESSION", "STATE", "FROM", "TEXT"),
        [
            (
                table.when(row["created_ms"]),
                row["id"] if width is None else row["id"][-8:],
                *(row["persona"], row["session"], _state(row), row["from"]),
                output.summary(row["body"]),
            )
            for row in rows
        ],
        width=width,
        remarks=[row["reason"] for row in rows],
    )
    if options.dead:
        output.note("relay broker retry ID tries one again, relay broker drop ID forgets it")
    return 0


def _state(row: DispatchShown) -> str:
    tried = f", try {row['tries'] + 1}" if row["tries"] and row["state"] != "dead" else ""
    return f"{row['state']}{tried}{' answer' if row['what'] == 'answer' else ''}"


def _shown(row: DispatchShown) -> Json:
    return output.shaped(row, [name.replace("_ms", "_at") for name in row])


def _again(options: Any) -> int:
    if bool(options.which) == options.all:
        raise UsageError("name dispatches or personas, or give --all", hint="relay broker dead")
    which = None if options.all else options.which
    rows = request(REDISPATCH, which=which, drop=options.drop, **output.speaker())["rows"]
    if options.json:
        output.as_json([_shown(row) for row in rows])
        return 0
    for row in rows:
        whom = f"channel {row['channel']}" if row["what"] == "answer" else row["persona"]
        done = "dropped" if options.drop else f"waits for {whom} again"
        output.data(f"{row['id'][-8:]}  {output.summary(row['body'])}: {done}")
    if not rows:
        output.note("nothing is dead")
    return 0


def _dispatch(options: Any) -> int:
    import sys

    text = sys.stdin.read() if options.text == "-" else options.text
    try:
        priority = int(options.priority or 0)
    except ValueError as error:
        raise UsageError(f"a priority is a whole number, not {options.priority}") from error
    made = request(
        DISPATCH,
        persona=options.persona,
        body=text,
        session=options.session,
        mode=options.mode,
        priority=priority,
        **output.speaker(),
    )
    if options.json:
        output.as_json({"id": made["id"], "event": made["event"], "waits": made["waits"]})
        return 0
    output.data(made["id"])
    if made["waits"]:
        output.note(f"it waits: {made['waits']}")
    return 0


# -- relay hooks: route functions


def _add_to_hooks(group: Parser) -> None:
    for name, text in (
        ("enable", "switch a route function, or a hook of the broker's events, on again"),
        ("disable", "switch a route function, or a hook of the broker's events, off"),
    ):
        switch = group.add_parser(name, help=text)
        switch.add_argument(
            "hook", metavar="ID", help="as relay hooks list shows it; a name will do"
        )
        switch.add_argument("--json", action="store_true", help="print JSON")
        switch.set_defaults(run=_switch, on=name == "enable")


def _switch(options: Any) -> int:
    answer = request(HOOK_SWITCH, hook=options.hook, on=options.on, **output.speaker())
    if options.json:
        output.as_json({"hook": answer["hook"], "on": answer["on"]})
    else:
        output.data(f"{answer['hook']} is {'on' if answer['on'] else 'off'}")
    return 0


def hooks_elsewhere(home: Home, cwd: str) -> tuple[list[Json], Sequence[str], list[Any]]:
    """The route functions that evaluate the events of an agent in ``cwd``. The person is told
    which configurations evaluate nothing."""
    from relay.broker.trusted_configs import TrustedConfigs

    configs = TrustedConfigs(home).applying(cwd)
    manifests = [one.manifest for one in configs]
    if not any(
        one is None or one.settings["routes"] or one.settings["observers"] for one in manifests
    ):
        return [], (), []
    with connect(home) as client:
        answer = client.request(ROUTES, cwd=cwd)
    for path, error in answer["problems"].items():
        output.note(f"{path} evaluates no event: {error}")
    for hook, off in answer["off"].items():
        output.note(f"{hook} is off: {off['reason']}")
    rows = answer["rows"]
    return [_as_hook(row) for row in rows], _ROUTES_HEAD, [_cells(row) for row in rows]


def _as_hook(row: RouteRow) -> Json:
    """A route function as ``relay hooks list --json`` shows it among hooks."""
    return {
        "event": "route",
        "name": row["hook"],
        "kind": "route",
        "kinds": row["kinds"],
        "channels": row["channels"],
        "priority": row["priority"],
        "disabled": row["disabled"],
        "source": row["path"],
    }


def _cells(row: RouteRow) -> tuple[object, ...]:
    return (
        row["hook"],
        " ".join(row["kinds"] or ()) or "*",
        " ".join(row["channels"] or ()) or "*",
        row["priority"],
        f"off: {row['disabled']['reason']}" if row["disabled"] else "on",
    )
