"""The verbs ``agents`` and ``status``: who is there, and how they and the broker do."""

from __future__ import annotations

from relay.broker.client import connect, request
from relay.broker.start import NONE_RUNS
from relay.cli import output, table
from relay.cli.parser import Parser
from relay.cli.verbs import verb
from relay.config.trust import TRUSTED, candidates, found_at, trusted_paths
from relay.core.build import build, is_older
from relay.core.errors import BrokerUnavailable
from relay.core.paths import Home, working_folder
from relay.protocol.agent_ops import AGENTS, AgentRow
from relay.protocol.broker_ops import STATUS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from relay.cli.output import Json

#: How long the broker may take to say hello. Seconds.
_ANSWER_WITHIN = 5.0
#: What ``agents --json`` shows of each. Scripts rely on the first seven.
_FIELDS = (
    *("name", "state", "kind", "pid", "cwd", "unread", "since"),
    *("command", "last_seen", "reason", "roles", "channels"),
)


def add(verbs: Parser) -> None:
    """Declare the verbs."""
    agents = verb(verbs, "agents", "relay agents\n  relay agents --live --json")
    agents.add_argument("--live", action="store_true", help="only those that are running now")
    agents.add_argument("--json", action="store_true", help="print JSON")
    agents.set_defaults(run=agents_verb)
    status = verb(verbs, "status", "relay status\n  relay status --json")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.set_defaults(run=status_verb)


def agents_verb(options: Any) -> int:
    """``relay agents``."""
    rows = request(AGENTS)["agents"]
    if options.live:
        rows = [row for row in rows if row["state"] != "gone"]
    if options.json:
        output.as_json([_agent(row) for row in rows])
    elif rows:
        _print_agents(rows)
    else:
        output.note("no agents; relay wrap --name NAME COMMAND starts one")
    return 0


def _print_agents(rows: list[AgentRow]) -> None:
    width = table.columns()
    roles = any(row.get("roles") for row in rows)
    for row in rows:
        why = "ungoverned" if _is_ungoverned(row) else ""
        row["reason"] = ", ".join(filter(None, (row["reason"], why)))
    table.table(
        ("NAME", "STATE", *(("ROLES",) if roles else ()), "KIND", "PID", "UNREAD", "SINCE", "CWD"),
        [
            (row["name"], output.state_text(row) if width is None else row["state"])
            + ((",".join(row["roles"]) or "-",) if roles else ())
            + tuple(row[key] for key in ("kind", "pid", "unread"))
            + (table.since(row["since_ms"]), row["cwd"] or "-")
            for row in rows
        ],
        width=width,
        remarks=[table.because(row) for row in rows] if width is not None else (),
    )


def _untrusted(home: Home, cwds: set[str]) -> list[str]:
    """Of each configuration that would evaluate events and may not run, why, and what to do."""
    files = [one for path in trusted_paths(home) if (one := found_at(home, path)) is not None]
    for cwd in cwds:
        files += candidates(home, cwd)
    return sorted({one.notice for one in files if one.state != TRUSTED})


def status_verb(options: Any) -> int:
    """``relay status``. Starts nothing: it says when there is no broker."""
    from relay.cli import door

    home = Home.from_env()
    found = broker_status(home)
    live = {str(row["cwd"]) for row in found["agents"] if row["state"] != "gone" and row["cwd"]}
    found["untrusted"] = _untrusted(home, {working_folder(), *live})
    if options.json:
        output.as_json(found)
        return 0
    print_broker(found)
    waiting = found["dispatches"]
    if any(waiting.values()):
        output.data(f"dispatches: {_counted(waiting)} (relay broker queue, relay broker dead)")
    for need in found["needs"]:
        output.data(f"  ! {need}")
    said = found["evaluations"]
    if any(said.values()):
        output.data(f"route functions, last 24 hours: {_counted(said)} (relay hooks log)")
    if found["held"]:
        plural = " waits" if found["held"] == 1 else "s wait"
        output.data(f"held: {found['held']:,} message{plural} for you (relay items)")
    automations = ", ".join(f"{number} {name}" for name, number in found["automations"].items())
    if automations:
        output.data(f"automations: {automations} (relay automation list)")
    channels = found["channels"]
    if channels["names"]:
        output.data(f"channels: {', '.join(channels['names'])}")
        if channels["problem"]:
            output.data(f"  ! {channels['problem']}")
        for name, one in channels.get("failed", {}).items():
            output.data(f"  ! {name} failed at {table.when(one['at_ms'])}: {one['reason']}")
    for name, status_lines in door.given("status_lines"):
        for level, text, hint in status_lines(home, working_folder()):
            if level != "absent":
                output.data(f"{'' if level == 'ok' else '! '}{name}: {text}")
                if hint:
                    output.note(f"  {hint}")
    for path, problem in found["problems"].items():
        output.data(f"! {path} evaluates no event: {problem}")
    for notice in found["untrusted"]:
        output.data(f"! {notice}")
        output.data("  What happens until then is stored, but it is never evaluated by it.")
    for row in found["agents"]:
        output.data(f"{row['name']}: {output.state_text(row)}, {row['kind']}{_source(row)}")
        for remark in row["notes"]:
            output.data(f"  ! {remark}")
    return 0


def _counted(numbers: dict[str, int]) -> str:
    """``3 queued, 1 dead``: what there is any of."""
    said = [f"{number} {name.replace('_', ' ')}" for name, number in numbers.items() if number]
    return ", ".join(said)


def broker_status(home: Home) -> Json:
    """The broker's ``status`` in the shape that scripts rely on; ``running`` false without one."""
    nothing: Json = {
        "running": False,
        "pid": None,
        "socket": home.broker_socket,
        "home": home.root,
        "version": build(),
        "uptime_s": None,
        "counts": {},
        "dispatches": {},
        "needs": [],
        "evaluations": {},
        "automations": {},
        "channels": {"names": [], "problem": ""},
        "problem": "",
        "problems": {},
        "held": 0,
        "agents": [],
    }
    try:
        with connect(home, start=False, deadline=_ANSWER_WITHIN) as client:
            answer = client.request(STATUS)
    except BrokerUnavailable as error:
        return nothing | {"problem": "" if error.code == NONE_RUNS else error.line}
    agents = [
        {**_agent(row), "source": row["source"], "notes": row["notes"]} for row in answer["agents"]
    ]
    # One of a version before this one does not tell all.
    found = {name: answer.get(name, default) for name, default in nothing.items()}
    return {**found, "held": answer["parked"], "agents": agents}


def print_broker(found: Json) -> None:
    """The broker's part of ``status`` for a person."""
    if found["problem"]:
        output.data(f"broker: {found['problem']}")
        return
    if not found["running"]:
        output.data(f"broker: not running (home {found['home']})")
        output.note("any verb that needs it starts it")
        return
    output.data(
        f"broker: running, pid {found['pid']}, version {found['version']},"
        f" for {found['uptime_s']:.0f} s"
    )
    if is_older(found["version"], build()):
        output.data(f"! it is older than this relay, {build()}: relay broker stop")
    output.data(f"home: {found['home']}")
    events = found["counts"]["events"]
    waiting = sum(number for name, number in found["counts"].items() if name != "events")
    plural = "" if waiting == 1 else "s"
    output.data(f"ledger: {events} events; {waiting} message{plural} not delivered yet")


def _agent(row: Mapping[str, Any]) -> Json:
    times = {"since": output.iso(row["since_ms"]), "last_seen": output.iso(row["last_seen_ms"])}
    # A broker of a version before this one knows of no roles.
    shown = {name: times[name] if name in times else row.get(name) for name in _FIELDS}
    return {**shown, "ungoverned": _is_ungoverned(row)}


def _is_ungoverned(row: Mapping[str, Any]) -> bool:
    """Whether it runs in a governed project, and nothing limits what it writes."""
    return row["state"] != "gone" and any(one.startswith("ungoverned") for one in row["notes"])


def _source(row: Json) -> str:
    source = f", source {row['source']}" if row["source"] else ""
    return f"{source}, {row['unread']} unread" if row["unread"] else source
