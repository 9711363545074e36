"""``relay automation``: functions that are run for events: registered, switched, shown."""

from __future__ import annotations

import os
import sys
import time
from typing import cast

from relay.broker.client import BrokerClient, connect
from relay.cli import output, table
from relay.cli.parser import Parser, count
from relay.cli.verbs import verb
from relay.core.errors import EXIT_FAILED, UsageError
from relay.core.files import read_file
from relay.core.paths import Home
from relay.features.automations.ops import (
    AUTOMATION_DELETE,
    AUTOMATION_DISABLE,
    AUTOMATION_ENABLE,
    AUTOMATION_INFO,
    AUTOMATION_REGISTER,
    AUTOMATION_RUNS,
    AUTOMATION_TEST,
    AUTOMATION_UPDATE,
    AUTOMATIONS,
    AutomationAnswer,
    AutomationDetails,
    AutomationRunRow,
    AutomationTestAnswer,
    RunCounts,
    ShownAutomation,
)
from relay.protocol.broker import Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Bytes of one file, as relay.features.automations.definition has it.
_SOURCE_MAX = 256 * 1024
#: Versions that info shows, the newest first; in JSON there are more.
_VERSIONS = 5
_STATUS = ("active", "paused", "disabled", "deleted")
_HEAD = ("NAME", "STATUS", "VERSION", "LAST FIRED", "BY", "RUNS FOR")
#: Bytes of one event's JSON.
_EVENT_MAX = 7 * 1024 * 1024
#: Characters of a run's log below its row: the end of it.
_LOG_SHOWN = 300
_RUNS_HEAD = ("TIME", "EVENT", "KIND", "FROM", "RESULT", "MS", "LLM")
_EXAMPLE = '{"channel": "sms", "sender": "+15559876543", "content": "hello"}'
_EDITED = "the file was edited"
_TOOL_CALLS = (
    "agents that start from now on report their tool calls to it; start again those that run,"
    " unless a relay.config.py has them report already"
)


def add(verbs: Parser) -> None:
    """Declare the verbs."""
    group = verb(
        verbs,
        "automation",
        "relay automation check .relay/automations/heartbeat.py\n"
        "  relay automation register .relay/automations/heartbeat.py\n"
        "  relay automation list\n"
        '  relay automation test heartbeat --event \'{"channel": "sms", "content": "hello"}\'\n'
        "  relay automation runs heartbeat --errors-only",
    ).add_subparsers(alone="list")
    check = group.add_parser(
        "check",
        help="check a file's syntax and keys without running it",
        description="Check a file's syntax, the keys of its automation and its handler. Nothing of "
        "the file is run or registered. relay automation register checks the same first.",
    )
    check.add_argument("file", metavar="FILE", help="a Python file that has an automation")
    check.set_defaults(run=check_verb)
    register = group.add_parser("register", help="register a file's present text as an automation")
    register.add_argument("file", metavar="FILE", help="a Python file that has an automation")
    register.set_defaults(run=register_verb)
    update = group.add_parser("update", help="take an edited file as the next version")
    update.add_argument(
        "which",
        nargs="?",
        metavar="AUTOMATION|FILE",
        offers="automations",
        help="default: all that were edited",
    )
    update.add_argument("--yes", action="store_true", help="do not ask")
    update.set_defaults(run=update_verb)
    listed = group.add_parser("list", help="list the automations by name")
    listed.add_argument("--status", choices=_STATUS, metavar="S", help=", ".join(_STATUS))
    listed.add_argument(
        "--by", metavar="WHO", help="only those that this agent or person registered"
    )
    listed.set_defaults(run=list_verb)
    info = group.add_parser("info", help="show one of them, with its health and versions")
    info.add_argument("name", metavar="AUTOMATION", offers="automations", help="its name")
    info.add_argument("--source", action="store_true", help="print only the text that runs")
    info.set_defaults(run=info_verb)
    enable = group.add_parser("enable", help="let it run; shows first what an agent registered")
    enable.add_argument("name", metavar="AUTOMATION", offers="automations", help="its name")
    enable.add_argument("--yes", action="store_true", help="do not ask")
    enable.set_defaults(run=enable_verb)
    disable = group.add_parser("disable", help="stop running it until it is enabled again")
    disable.add_argument("name", metavar="AUTOMATION", offers="automations", help="its name")
    disable.add_argument("--reason", metavar="TEXT", help="why, for the list")
    disable.set_defaults(run=disable_verb)
    delete = group.add_parser("delete", help="stop running it for good; its runs stay on record")
    delete.add_argument("name", metavar="AUTOMATION", offers="automations", help="its name")
    delete.set_defaults(run=delete_verb)
    _add_trials(group)
    for parser in group.verbs.values():
        parser.add_argument("--json", action="store_true", help="print JSON")


def check_verb(options: Any) -> int:
    """``relay automation check``: needs no broker."""
    path = _file(options.file)["path"]
    if options.json:
        output.as_json({"path": path})
    else:
        output.data(f"{path}: no mistakes found (the file was not run)")
    return 0


def register_verb(options: Any) -> int:
    """``relay automation register``."""
    with connect(Home.from_env()) as client:
        answer = client.request(AUTOMATION_REGISTER, **_file(options.file), **output.speaker())
    row = answer["automation"]
    if options.json:
        output.as_json(_json(row))
        return 0
    output.data(_version(answer))
    output.data(f"  runs for: {_runs_for(row)}")
    output.data(f"  file: {row['path']}")
    if row["folder"]:
        output.data(f"  only of agents in {row['folder']}")
    if row["reason"]:
        output.note(row["reason"])
    if "tool_call" in (row["triggers"] or {}).get("event", {}).get("types", ()):
        output.note(_TOOL_CALLS)
    _note_unknown(answer)
    return 0


def update_verb(options: Any) -> int:
    """``relay automation update``: 0 when all of those that are meant are up to date."""
    with connect(Home.from_env()) as client:
        answers = [
            client.request(AUTOMATION_UPDATE, **fields, **output.speaker())
            for fields in _meant(client, options.which, options.yes)
        ]
    if options.json:
        output.as_json([_json(one["automation"]) for one in answers])
        return 0
    for one in answers:
        output.data(_version(one))
        _note_unknown(one)
    return 0


def _note_unknown(answer: AutomationAnswer) -> None:
    for name in answer.get("unknown", ()):
        output.note(
            f"no persona or agent is called {name}: add it to relay.config.py or start it; until"
            " then what is dispatched to it waits"
        )


def _version(answer: AutomationAnswer) -> str:
    row, same = answer["automation"], " (as it was)" if answer.get("unchanged") else ""
    return f"{row['name']}: {row['status']}, version {row['version']}{same}"


def _meant(client: BrokerClient, which: str | None, yes: bool) -> list[Json]:
    """The fields of each update: of a file, of a name, or of all that were edited. Whoever may have
    edited a file: what would change is shown, and asked for."""
    if which is None:
        rows = [one for one in client.request(AUTOMATIONS)["rows"] if one["loaded"]]
        found = [_change(row, row["path"]) for row in rows if _edited(row) == _EDITED]
    elif which.endswith(".py") or os.sep in which:
        path = _file(which)["path"]
        rows = [one for one in client.request(AUTOMATIONS)["rows"] if one["path"] == path]
        found = [_change(row, path) for row in rows] or [_file(which)]
    else:
        row = client.request(AUTOMATION_INFO, name=which)["automation"]
        found = [_change(row, row["path"])]
    if not found:
        output.note("no file was edited")
    asked = [_print_change(client, one) for one in found]
    if any(asked) and not output.agreed("Have them run as they are now?", yes=yes):
        output.note("nothing is taken")
        return []
    return found


def _change(row: ShownAutomation, path: str) -> Json:
    return {**_file(path), "name": row["name"]}


def _print_change(client: BrokerClient, new: Json) -> bool:
    """Show line by line what an update would change. Returns whether it would."""
    import difflib

    before, title = "", "nothing"
    if "name" in new:
        about = client.request(AUTOMATION_INFO, name=new["name"], source=True)["automation"]
        before, title = about["source"], f"{new['name']}, version {about['version']}"
    texts = before.splitlines(), new["source"].splitlines()
    for line in difflib.unified_diff(*texts, title, new["path"], n=2, lineterm=""):
        output.note(line)
    return bool(before != new["source"])


def list_verb(options: Any) -> int:
    """``relay automation list``."""
    with connect(Home.from_env()) as client:
        answer = client.request(AUTOMATIONS, status=options.status, by=options.by)
    rows = answer["rows"]
    if options.json:
        output.as_json([_json(row) for row in rows])
    elif not rows:
        narrowed = options.status is not None or options.by is not None
        output.note(
            "no such automation is registered"
            if narrowed
            else "no automation is registered: see docs/automations.md"
        )
    else:
        cells = [
            (
                row["name"],
                row["status"],
                row["version"],
                None if row["last_fired_ms"] is None else table.when(row["last_fired_ms"]),
                row["registered_by"].partition(",")[0],
                _runs_for(row),
            )
            for row in rows
        ]
        remarks = [
            "; ".join(filter(None, (row["reason"], _circuit(row), _edited_said(row))))
            for row in rows
        ]
        table.table(_HEAD, cells, width=table.columns(), remarks=remarks)
    if answer["more"]:
        output.note("more are left out: --status or --by narrows it down")
    return 0


def info_verb(options: Any) -> int:
    """``relay automation info``."""
    with connect(Home.from_env()) as client:
        answer = client.request(AUTOMATION_INFO, name=options.name, source=options.source)
    row = answer["automation"]
    if options.source and not options.json:
        output.lines(row["source"].rstrip("\n"))
    elif options.json:
        output.as_json(_json(row))
    else:
        _print(row)
    return 0


def enable_verb(options: Any) -> int:
    """``relay automation enable``: what was never loaded is shown before it runs."""
    with connect(Home.from_env()) as client:
        row = client.request(AUTOMATION_INFO, name=options.name)["automation"]
        if not row["loaded"]:
            output.note(f"{row['registered_by']} registered {row['path']}")
            output.note(f"  as version {row['version']}, sha256 {row['sha256']}")
            folder = row["folder"]
            output.note(f"  for events of agents in {folder}" if folder else "  for all events")
            output.note(f"  relay automation info {row['name']} --source shows it")
            if _edited(row):
                output.note(f"  {_edited(row)}: what was registered would run, not the file")
            if not output.agreed("Load it and let it run?", yes=options.yes):
                return 1
        answer = client.request(
            AUTOMATION_ENABLE, name=row["name"], sha256=row["sha256"], **output.speaker()
        )
    return _switched(answer["automation"], options.json)


def disable_verb(options: Any) -> int:
    """``relay automation disable``."""
    about = {"name": options.name, "reason": options.reason}
    with connect(Home.from_env()) as client:
        answer = client.request(AUTOMATION_DISABLE, **about, **output.speaker())
    return _switched(answer["automation"], options.json)


def delete_verb(options: Any) -> int:
    """``relay automation delete``."""
    with connect(Home.from_env()) as client:
        answer = client.request(AUTOMATION_DELETE, name=options.name, **output.speaker())
    return _switched(answer["automation"], options.json)


def _switched(row: ShownAutomation, in_json: bool) -> int:
    if in_json:
        output.as_json(_json(row))
    else:
        output.data(f"{row['name']} is {row['status']}")
    return 0


# -- files


def _file(path: str) -> Json:
    """A file as the broker is told of it, after a check that does not run it; a bare name may also
    lie where automations are kept. Raises UsageError."""
    from relay.features.automations.source_check import check

    path = os.path.expanduser(path)
    usual = (
        os.path.join(".relay", "automations"),
        os.path.join(Home.from_env().root, "automations"),
    )
    for folder in () if os.sep in path or os.path.exists(path) else usual:
        if os.path.exists(os.path.join(folder, path)):
            path = os.path.join(folder, path)
            break
    path = _place(path)
    try:
        source = read_file(path, _SOURCE_MAX).decode()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8", hint="save the file as UTF-8") from error
    try:
        agents = check(source, path)
    except UsageError as error:
        for line in cast(list[str], error.details.get("mistakes", [])):
            output.note(line)
        raise
    return {"path": path, "source": source} | ({"agents": agents} if agents else {})


def _place(path: str) -> str:
    """The whole path as it was given: which project a file belongs to is said by where it lies, and
    not by where a link leads that lies there."""
    path = os.path.abspath(path)
    folder, name = os.path.split(path)
    kept = os.path.join(os.sep, ".relay", "automations")
    inner = kept if folder.endswith(kept) else ""
    return os.path.join(os.path.realpath(folder.removesuffix(inner) or os.sep) + inner, name)


def _edited(row: ShownAutomation) -> str:
    """What became of the file since it was registered; "" when it is what runs."""
    import hashlib

    try:
        data = read_file(row["path"], _SOURCE_MAX)
    except OSError:
        return "the file is not there"
    return "" if hashlib.sha256(data).hexdigest() == row["sha256"] else _EDITED


def _edited_said(row: ShownAutomation) -> str:
    edited = _edited(row)
    if not edited or not row["loaded"] or row["status"] == "deleted":
        return edited if row["status"] != "deleted" else ""
    update = f"; relay automation update {row['name']} takes the new one"
    return f"{edited}: version {row['version']} runs{update if edited == _EDITED else ''}"


# -- printing


def _json(row: ShownAutomation | AutomationDetails) -> Json:
    """A row with times as scripts get them, and whether its file is what was registered."""
    file = {"": "same", _EDITED: "edited"}.get(_edited(row), "gone")
    given: Json = {**row}
    shown = {name: value for name, value in given.items() if not name.endswith("_ms")}
    times = ("created", "updated", "opened", "last_fired", "next_tick")
    shown |= {f"{name}_at": output.iso(given[f"{name}_ms"]) for name in times}
    if "health" in given:
        health = dict(given["health"])
        for name in ("last_run", "last_error"):
            health[f"{name}_at"] = output.iso(health.pop(f"{name}_ms"))
        shown["health"] = health
        shown["versions"] = [
            {**one, "created_at": output.iso(one["created_ms"])} for one in given["versions"]
        ]
        for one in shown["versions"]:
            del one["created_ms"]
    return shown | {"file": file}


def _circuit(row: ShownAutomation) -> str:
    """Why an active automation is not run now, though nobody has disabled it; "" where it is."""
    if row["status"] != "active" or row["circuit"] == "closed":
        return ""
    if row["circuit"] == "half-open":
        return "circuit half-open: the next run decides"
    from relay.features.automations.circuit import OPEN_MS  # dataclasses

    until = table.when((row["opened_ms"] or 0) + OPEN_MS)
    return f"circuit open until {until}, after {row['errors']} errors in a row"


def _runs_for(row: ShownAutomation) -> str:
    """Its schedule and triggers in words."""
    if not row["loaded"]:
        return "(known when it is loaded)"
    parts = [f"{key} {value}" for key, value in (row["schedule"] or {}).items()]
    parts += ["which is over"] if row["over"] else []
    for about in (row["triggers"] or {}).values():
        parts += [f"{name} {','.join(values)}" for name, values in about.items()]
    if not row["triggers"] and not row["schedule"]:
        parts = ["every event"]
    return "; ".join(parts) + (f"; blocking, priority {row['priority']}" if row["blocking"] else "")


def _print(row: AutomationDetails) -> None:
    health, now_ms = row["health"], time.time_ns() // 1_000_000

    def line(name: str, value: object) -> None:
        if value is not None and value != "":
            output.data(f"{name + ':' if name else '':<13}{value}")

    line("name", row["name"])
    line("description", row["description"])
    line("status", row["status"] + (f" ({row['reason']})" if row["reason"] else ""))
    line("", _circuit(row))
    line("runs for", _runs_for(row))
    line("folder", row["folder"])
    line("file", row["path"])
    line("", _edited_said(row))
    line("sha256", row["sha256"])
    line("created", f"{table.when(row['created_ms'])} by {row['registered_by']}")
    for number, one in enumerate(row["versions"][:_VERSIONS]):
        since = f"{one['version']}, {table.when(one['created_ms'])} by {one['registered_by']}"
        line("" if number else "version", since)
    if row["next_tick_ms"] is not None:
        line("next tick", output.clock(row["next_tick_ms"], now_ms))
    if row["last_fired_ms"] is not None:
        line("last fired", table.when(row["last_fired_ms"]))
    line("skipped", row["skipped"] or None)
    for name, part in (("last day", health["day"]), ("last 100", health["window"])):
        line(name, _counts(part))
    if health["last_error"]:
        error = health["last_error"].partition("\n")[0]
        line("last error", f"{table.when(health['last_error_ms'] or 0)} {error}")


def _counts(part: RunCounts) -> str:
    if not part["runs"]:
        return "no runs"
    took = f"{part['avg_ms']:.1f} ms on average, p95 {part['p95_ms']:.1f} ms"
    runs = "1 run" if part["runs"] == 1 else f"{part['runs']} runs"
    return f"{runs}, {part['fires']} fired, {part['errors']} failed; {took}"


def _add_trials(group: Parser) -> None:
    """Declare both verbs."""
    test = group.add_parser(
        "test",
        help="run it for an event, and show what would follow",
        description="Run it for an event, and show what would follow. Nothing is dispatched or "
        "stored, but what the handler does by itself really happens.",
    )
    test.add_argument("name", metavar="AUTOMATION", offers="automations", help="its name")
    test.add_argument(
        "--event",
        metavar="EVENT",
        help="JSON, a file that holds it, - for stdin, or an event's id (default: its own tick)",
    )
    test.set_defaults(run=test_verb)
    runs = group.add_parser("runs", help="show its runs, the newest last")
    runs.add_argument("name", metavar="AUTOMATION", offers="automations", help="its name")
    runs.add_argument("--limit", type=count, default=20, metavar="N", help="this many (20)")
    runs.add_argument("--errors-only", action="store_true", help="only those that failed")
    runs.set_defaults(run=runs_verb)


def test_verb(options: Any) -> int:
    """``relay automation test``: 0 when the handler did not fail."""
    event = _event(options.event)
    with connect(Home.from_env()) as client:
        answer = client.request(AUTOMATION_TEST, name=options.name, **event, **output.speaker())
    if options.json:
        output.as_json({**answer, "automation": options.name})
    else:
        _print_test(answer)
    return EXIT_FAILED if answer["error"] else 0


def _event(given: str | None) -> Json:
    """The event that is meant, as the broker is asked for it. Raises UsageError."""
    if given is None:
        return {}
    text = given
    if given == "-":
        text = sys.stdin.read(_EVENT_MAX)
    elif not given.lstrip().startswith("{"):
        try:
            text = read_file(given, _EVENT_MAX).decode(errors="surrogateescape")
        except OSError as error:
            if os.sep in given or given.endswith(".json"):
                raise UsageError(f"{given} cannot be read: {error.strerror}") from error
            return {"id": given}
    from relay.core import json_text

    try:
        event = json_text.loads(text)
    except ValueError as error:
        raise UsageError(
            f"the event is not JSON: {error}", hint=f"for example {_EXAMPLE}"
        ) from None
    return {"event": event}


def _print_test(answer: AutomationTestAnswer) -> None:
    import json

    def line(name: str, value: object) -> None:
        if value not in (None, "", {}):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            text = ("\n" + " " * 13).join(text.splitlines())
            output.lines(f"{name + ':':<13}{text}")

    event, principal = answer["event"], answer["principal"]
    who = f"{principal['name']} ({principal['type']})"
    line("event", f"{event['kind']} on {event['channel']} from {who}")
    if not answer["matches"]:
        folder, unmet = answer["automation"]["folder"], ", ".join(answer["unmet"])
        by_clock = (
            "only its schedule runs it" if folder is None else f"it is of no agent in {folder}"
        )
        why = f"these triggers do not match: {unmet}" if unmet else by_clock
        output.note(f"it would not be run for this event: {why}")
    line("took", f"{answer['latency_us'] / 1000:.1f} ms")
    line("error", answer["error"])
    line("result", answer["result"])
    for name, value in (answer["dispatch"] or {}).items():
        line(name.replace("_", " "), value)
    line("state", answer["state"])
    for text in (answer["log"] or "").splitlines():
        line("log", text)


def runs_verb(options: Any) -> int:
    """``relay automation runs``."""
    fields = {"limit": options.limit, "errors_only": options.errors_only}
    with connect(Home.from_env()) as client:
        answer = client.request(AUTOMATION_RUNS, name=options.name, **fields, **output.speaker())
    rows, running = answer["rows"][::-1], answer["running"]
    if options.json:
        output.as_json(
            [output.shaped(row, [name.replace("_ms", "_at") for name in row]) for row in rows]
        )
    elif not rows and options.errors_only:
        output.note(f"{options.name} has not failed")
    elif not rows and running is None:
        output.note("it has not run")
        output.note(f"  relay automation info {options.name} shows what it runs for")
        output.note(f"  relay automation test {options.name} --event ID tries it with an event")
    elif rows:
        cells = [
            (
                table.when(row["started_ms"]),
                row["event"][-8:],
                row["kind"],
                row["sender"],
                _result(row),
                round(row["latency_us"] / 1000, 1),
                row["llm_calls"],
            )
            for row in rows
        ]
        table.table(_RUNS_HEAD, cells, width=table.columns(), remarks=[_said(row) for row in rows])
    if answer["more"]:
        output.note("older ones are left out: --limit N shows more")
    if running is not None:
        since = table.when(running["started_ms"])
        output.note(f"it has been running for event {running['event'][-8:]} since {since}")
    return 0


def _said(row: AutomationRunRow) -> str:
    """Its error, why its dispatch waits, and the end of its log, which has the traceback."""
    log = " ".join((row["log"] or "").split())[-_LOG_SHOWN:]
    waits = f"{row['waits']} (relay broker queue)" if row["waits"] else ""
    return "; ".join(filter(None, ((row["error"] or "").partition("\n")[0], waits, log)))


def _result(row: AutomationRunRow) -> str:
    result = row["result"] or {}
    said = "failed" if row["error"] else "fired" if row["fired"] else "nothing"
    if said == "nothing" and result.get("enrich"):
        said = "enriched"
    more = [", disabled itself"] if result.get("disable") else []
    return "".join([said, *more, *([", again"] if row["retry"] else [])])
