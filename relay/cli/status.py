"""The verbs ``agents`` and ``status``: who is there, and how they and the broker do."""

from __future__ import annotations

import os
import time

from relay.broker.client import connect, request
from relay.broker.start import NONE_RUNS, failure_since, is_full
from relay.cli import output, table
from relay.cli.parser import Parser
from relay.cli.verbs import verb
from relay.config.names import has_lost_terminal, spawned_folder
from relay.config.trust import CONFIG_NAME, TRUSTED, candidates, found_at, trusted_paths
from relay.core.build import build, is_older
from relay.core.errors import BrokerUnavailable
from relay.core.paths import Home, working_folder
from relay.core.visible import age, tone
from relay.protocol.agent_ops import AGENTS, AgentElsewhere, AgentRow
from relay.protocol.broker_ops import STATUS
from relay.protocol.item_ops import ITEMS, waiting_words

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
    agents = verb(verbs, "agents", "relay agents\n  relay agents --live --json")
    agents.add_argument("--live", action="store_true", help="only those that are running now")
    agents.add_argument("--json", action="store_true", help="print JSON")
    agents.set_defaults(run=agents_verb)
    status = verb(verbs, "status", "relay status\n  relay status --json")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.set_defaults(run=status_verb)


def agents_verb(options: Any) -> int:
    answer = request(AGENTS)
    rows, elsewhere = answer["agents"], answer.get("elsewhere", [])
    if options.live:
        rows = [row for row in rows if row["state"] != "gone"]
        elsewhere = [one for one in elsewhere if one["here"]]
    if options.json:
        output.as_json([_agent(row) for row in rows])
        return 0
    if rows:
        _print_agents(rows)
    else:
        output.note("no agents; relay wrap --name NAME COMMAND starts one")
    _note_lost(_lost(Home.from_env(), rows))
    if elsewhere:
        output.data("")
        now_ms = time.time_ns() // 1_000_000
        table.table(
            ("ELSEWHERE", "MACHINE"),
            [(one["name"], _machine_of(one, now_ms)) for one in elsewhere],
            width=table.columns(),
        )
    return 0


def _lost(home: Home, rows: list[AgentRow]) -> list[str]:
    """Which agents have lost their terminal, as after a reboot."""
    gone = [row["name"] for row in rows if row["state"] == "gone"]
    if not rows and os.path.isdir(spawned_folder(home)):  # no broker runs that could say so
        from relay.config.spawned_agents import spawned  # relay agents does without

        gone = [record["name"] for record in spawned(home)]
    return [name for name in gone if has_lost_terminal(home, name)]


def _note_lost(lost: list[str]) -> None:
    if lost:
        output.note(f"relay resume brings back {', '.join(lost)} (the terminal is gone)")


def _machine_of(one: AgentElsewhere, now_ms: int) -> str:
    """How the machine of an agent elsewhere is."""
    if one["here"]:
        return "connected"
    return "not seen yet" if one["seen_ms"] is None else f"away for {age(now_ms - one['seen_ms'])}"


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
    home = Home.from_env()
    found, rows, waiting = _asked(home)
    live = {str(row["cwd"]) for row in found["agents"] if row["state"] != "gone" and row["cwd"]}
    found["untrusted"] = _untrusted(home, {working_folder(), *live})
    if options.json:
        output.as_json(found)
        return 0
    if not found["problem"]:  # else nobody knows who runs
        lost = _lost(home, rows)
        _print_agents_now(rows, "" if lost else "relay wrap --name Bob -- claude starts one")
        _note_lost(lost)
    if waiting:
        output.toned([(waiting, "need"), (": relay items", "")])
    _print_work(found)
    from relay.core.features import modules  # functools: relay agents does without

    for module in modules("status_lines"):
        lines = getattr(module.module, "status_lines", None)
        for level, text, hint in lines(home, working_folder()) if lines else ():
            output.data(f"{'' if level == 'ok' else '! '}{module.feature.name}: {text}")
            if hint:
                output.note(f"  {hint}")
    for path, problem in found["problems"].items():
        output.data(f"! {path} evaluates no event: {problem}")
    for notice in found["untrusted"]:
        output.data(f"! {notice}")
        if CONFIG_NAME in notice:  # other files hear no events
            output.data("  It will not see the events that arrive before then.")
    print_broker(found)
    if is_full(home):
        output.data(
            f"! no space is left at {home.root}: make room there, or no message can be stored"
        )
    return 0


def _print_agents_now(rows: list[AgentRow], hint: str) -> None:
    """A line for each that is here, with what it is about; those that have gone are a number.
    ``hint``: what starts one where none is here."""
    here = [row for row in rows if row["state"] != "gone"]
    now_ms = time.time_ns() // 1_000_000
    for row in here:
        since = f" for {age(now_ms - row['since_ms'])}"
        unread = f", {row['unread']} unread" if row["unread"] else ""
        by = "transcript" if row["source"] == "structured" else row["source"]
        source = f", read from its {by}" if by else ""
        reason = f" ({row['reason']})" if row["reason"] else ""
        output.toned(
            [
                (row["name"], "bold"),
                (": ", ""),
                (row["state"], tone(row["state"])),
                (f"{reason}{since}, {row['kind']}{source}{unread}", ""),
            ]
        )
        for remark in row["notes"]:
            output.data(f"  ! {remark}")
    gone = len(rows) - len(here)
    kept = sum(row["unread"] for row in rows if row["state"] == "gone")
    ended = f"{gone} that ended" if gone else ""
    ended += f", with {kept:,} unread" if kept else ""
    if not here:
        output.data(f"no agent runs{ended and f' ({ended})'}{hint and f': {hint}'}")
    elif gone:
        output.data(f"and {ended}: relay agents")


def _print_work(found: Json) -> None:
    """What is under way beside the agents themselves."""
    queued = sum(number for name, number in found["counts"].items() if name != "events")
    # What is kept for agents that have ended stands with them.
    kept = sum(row["unread"] for row in found["agents"] if row["state"] == "gone")
    inbox = found["inbox"]
    if inbox:
        output.data(f"{inbox:,} message{'' if inbox == 1 else 's'} for you: relay inbox")
    if (queued := queued - found["held"] - kept - inbox) > 0:
        plural = "" if queued == 1 else "s"
        output.data(f"{queued:,} message{plural} on the way: relay history")
    if any(found["dispatches"].values()):
        counted = _counted(found["dispatches"])
        output.data(f"dispatches: {counted} (relay broker queue, relay broker dead)")
    for need in found["needs"]:
        output.data(f"  ! {need}")
    if any(found["evaluations"].values()):
        counted = _counted(found["evaluations"])
        output.data(f"route functions, last 24 hours: {counted} (relay hooks log)")
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


def _counted(numbers: dict[str, int]) -> str:
    """``3 queued, 1 dead``: what there is any of."""
    said = [f"{number} {name.replace('_', ' ')}" for name, number in numbers.items() if number]
    return ", ".join(said)


def broker_status(home: Home) -> Json:
    """The broker's ``status`` in the shape that scripts rely on; ``running`` false without one."""
    return _asked(home)[0]


def _asked(home: Home) -> tuple[Json, list[AgentRow], str]:
    """``broker_status``, the agents as the broker has them, and what waits for the person."""
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
        "inbox": 0,
        "agents": [],
    }
    try:
        with connect(home, start=False, deadline=_ANSWER_WITHIN) as client:
            answer = client.request(STATUS)
            if client.is_person:
                waiting = waiting_words(client.request(ITEMS).get("rows", []))
            else:
                waiting = f"{answer['parked']:,} held" if answer["parked"] else ""
                answer["inbox"] = 0  # it is the person's
    except BrokerUnavailable as error:
        problem = error.line
        if error.code == NONE_RUNS:
            reason = failure_since(home, 0)
            problem = f"did not start: {reason.line}" if reason else ""
        return nothing | {"problem": problem}, [], ""
    agents = [
        {**_agent(row), "source": row["source"], "notes": row["notes"]} for row in answer["agents"]
    ]
    # One of a version before this one does not tell all.
    found = {name: answer.get(name, default) for name, default in nothing.items()}
    found |= {"held": answer["parked"], "agents": agents}
    return found, answer["agents"], waiting


def print_broker(found: Json) -> None:
    """The broker's part of ``status`` for a person."""
    if found["problem"]:
        output.data(f"broker: {found['problem']}")
        return
    if not found["running"]:
        output.data(f"broker: not running (home {found['home']})")
        output.note("the next command that needs it starts it")
        return
    running = age(int(found["uptime_s"] * 1000))
    output.data(f"broker: running for {running}, pid {found['pid']}, version {found['version']}")
    if is_older(found["version"], build()):
        output.data(f"! it is older than this relay, {build()}: relay broker stop")
    output.data(f"home: {found['home']}")


def _agent(row: Mapping[str, Any]) -> Json:
    times = {"since": output.iso(row["since_ms"]), "last_seen": output.iso(row["last_seen_ms"])}
    # A broker of a version before this one knows of no roles.
    shown = {name: times[name] if name in times else row.get(name) for name in _FIELDS}
    return {**shown, "ungoverned": _is_ungoverned(row)}


def _is_ungoverned(row: Mapping[str, Any]) -> bool:
    """Whether it runs in a governed project, and nothing limits what it writes."""
    return row["state"] != "gone" and any(one.startswith("ungoverned") for one in row["notes"])
