"""The verb ``intent``: what is to be done in a project, who works on what, and the trace."""

from __future__ import annotations

import os
from collections import deque
from contextlib import closing

from relay.broker.client import check_person, connect
from relay.cli import output, table
from relay.cli.parser import Options, Parser, count
from relay.cli.verbs import verb
from relay.core.agent_names import owner_name
from relay.core.errors import BrokerUnavailable, NotFound, RelayError, StorageError, UsageError
from relay.core.paths import Home, is_within, working_folder
from relay.core.processes import own_place, wrapped
from relay.features.governance.governed_paths import (
    FOLDER,
    folds_case,
    governed_root,
    protected,
    real_places,
)
from relay.features.governance.intents import (
    INTENTS_FILE,
    Intent,
    IntentsError,
    Status,
    TraceKind,
    check_id,
)
from relay.features.governance.orchestration import IntentsFile
from relay.features.governance.scope import IntentScope
from relay.protocol.agent_ops import AGENTS, ASK
from relay.protocol.broker import Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.features.governance.trace_records import TraceLine

#: Characters of a scope in the list.
_SCOPE_SHOWN = 500
_STATUSES = tuple(str(one) for one in Status)


def add(verbs: Parser) -> None:
    """Declare the verbs."""
    group = verb(
        verbs,
        "intent",
        "relay intent list\n"
        "  relay intent check src/app.py\n"
        "  relay intent select INT-001\n"
        "  relay intent select INT-001 --agent Bob\n"
        "  relay intent status INT-001 COMPLETE",
    )
    own = group.add_subparsers(dest="intent_verb", alone="list")
    _sub(own, "list", "the intents of this project, and who works on which", list_verb)
    check = _sub(own, "check", "check the file, or which intents allow PATHs", _check)
    check.add_argument("paths", nargs="*", metavar="PATH", help="files, there or not")
    text = "say what an agent works on from now on; in an agent's shell: that agent"
    select = _sub(own, "select", text, select_verb)
    select.add_argument(
        "id", metavar="INTENT", offers="intents", help="the intent's id, see: relay intent list"
    )
    select.add_argument("--agent", metavar="NAME", help="for which agent; for you alone")
    status = _sub(own, "status", "set an intent's status, in the file", status_verb)
    status.add_argument(
        "id", metavar="INTENT", offers="intents", help="the intent's id, see: relay intent list"
    )
    status.add_argument("status", choices=_STATUSES, metavar="STATUS", help=", ".join(_STATUSES))
    add_log(own)


def _sub(verbs: Parser, name: str, text: str, run: Any) -> Parser:
    parser = verbs.add_parser(name, help=text)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


# -- list, check


def list_verb(options: Options) -> int:
    """``relay intent list``."""
    root = governed_project()
    document = _read(root)
    workers = _workers(root)
    if options.json:
        output.as_json([_shown(intent, workers) for intent in document.values()])
        return 0
    found = document.values()
    rows = [
        (intent.id, intent.status, ", ".join(workers.get(intent.id, ())) or "-", intent.name)
        for intent in found
    ]
    scopes = [" ".join(intent.owned_scope)[:_SCOPE_SHOWN] or "no file at all" for intent in found]
    if rows:
        head = ("ID", "STATUS", "AGENTS", "NAME")
        table.table(head, rows, width=table.columns(), remarks=scopes)
    else:
        output.note(f"there are no intents, so no agent writes; add one to {_file(root)}")
    return 0


def _check(options: Options) -> int:
    """``relay intent check``: 1 where an intent in progress allows not all of the paths."""
    root = governed_project()
    intents = _read(root)
    if not options.paths:
        if options.json:
            output.as_json({"path": _file(root), "ok": True, "intents": list(intents)})
        else:
            output.data(f"{_file(root)}: no mistake found (intents: {len(intents)})")
        return 0
    folds = folds_case(root)
    scopes = [(one, IntentScope(one.owned_scope, ignore_case=folds)) for one in intents.values()]
    found = {path: _allowing(path, root, scopes) for path in options.paths}
    if options.json:
        output.as_json(
            [
                {"path": path, "intents": [one.id for one in allowing], "why": why}
                for path, (allowing, why) in found.items()
            ]
        )
    else:
        rows = [
            (path, ", ".join(f"{one.id} ({one.status})" for one in allowing) or f"none: {why}")
            for path, (allowing, why) in found.items()
        ]
        table.table(("PATH", "INTENTS"), rows, width=table.columns())
    open_now = [any(one.status is Status.IN_PROGRESS for one in found[path][0]) for path in found]
    return 0 if all(open_now) else 1


def _allowing(
    path: str, root: str, scopes: list[tuple[Intent, IntentScope]]
) -> tuple[list[Intent], str]:
    """The intents in whose scope ``path`` is, and why there are none."""
    try:
        places = real_places(path, working_folder())
    except ValueError as error:
        return [], str(error)
    if not all(is_within(place, root) for place in places):
        return [], f"it is not in {root}"
    inside = [os.path.relpath(place, root) for place in places]
    if any(map(protected, inside)):
        return [], "no agent ever writes there"
    allowing = [intent for intent, scope in scopes if all(map(scope.allows, inside))]
    return allowing, "" if allowing else "no scope includes it"


def _read(root: str) -> dict[str, Intent]:
    """The intents. Raises RelayError, after a line for each mistake of a broken file."""
    try:
        return IntentsFile(root).read().intents
    except IntentsError as error:
        if len(error.mistakes) == 1:
            raise
        for mistake in error.mistakes:
            output.note(f"{_file(root)}:{mistake.line}: {mistake.text}")
        raise RelayError(
            f"{_file(root)} has {len(error.mistakes)} mistakes, and no agent writes until they are"
            " fixed",
            code=error.code,
            details=error.details,
        ) from None


def _workers(root: str) -> dict[str, list[str]]:
    """The agents that are there, by the intents that they have selected."""
    home = Home.from_env()
    found: dict[str, list[str]] = {}
    try:
        with connect(home, start=False) as client:
            rows = client.request(AGENTS)["agents"]
        live = {row["run"]: row["name"] for row in rows if row["state"] != "gone"}
        if not live:
            return found
        from relay.features.governance.governance_store import GovernanceStore

        with closing(GovernanceStore.open(home)) as store:
            chosen = store.selections(root)
    except BrokerUnavailable:
        return found  # then nobody is there
    except StorageError as error:
        output.note(f"nobody knows who works on what: {error.message}")
        return found
    for one in chosen:
        if one.run in live:
            found.setdefault(one.intent, []).append(live[one.run])
    return found


def _shown(intent: Intent, workers: dict[str, list[str]]) -> Json:
    """An intent in the shape that scripts rely on."""
    return {
        "id": intent.id,
        "name": intent.name,
        "status": str(intent.status),
        "agents": workers.get(intent.id, []),
        "owned_scope": list(intent.owned_scope),
        "constraints": list(intent.constraints),
        "acceptance_criteria": list(intent.acceptance_criteria),
        "line": intent.line,
    }


def intents_here() -> dict[str, Intent]:
    """The intents of this folder, for a shell's completions: none where something is wrong."""
    try:
        return IntentsFile(governed_project()).read().intents
    except RelayError:
        return {}


def _file(root: str) -> str:
    return os.path.join(root, FOLDER, INTENTS_FILE)


# -- select, status


def select_verb(options: Options) -> int:
    """``relay intent select``: an agent's session does it, and answers with all of the intent."""
    own = _selected_here(options.id) if options.agent is None and wrapped() else None
    found = _asked_for(options) if own is None else own
    if options.json:
        output.as_json(found)
    elif options.agent is not None:
        output.data(f"{options.agent} works on {found['intent']} from now on")
    else:
        output.lines(found["text"])
    return 0


def _asked_for(options: Options) -> Json:
    fields: Json = {"kind": "governance", "request": {"do": "select", "id": options.id}}
    with connect(Home.from_env()) as client:
        if options.agent is not None:
            fields["agent"] = options.agent
        elif client.is_person and not wrapped():
            raise UsageError(
                "you are not an agent: say which one works on it",
                hint=f"relay intent select {options.id} --agent NAME",
            )
        found: Json = client.request(ASK, **fields, **output.speaker())["response"]
        return found


def _selected_here(id: str) -> Json | None:
    """What the run that this belongs to has selected already; None: something else, or nothing.

    No session serves a headless turn: its gate has selected it when it let this very command run.
    """
    from relay.features.governance.governance_store import GovernanceStore
    from relay.features.governance.intents import intent_context
    from relay.features.governance.orchestration import read_lessons

    try:
        with closing(GovernanceStore.open(Home.from_env())) as store:
            chosen = store.selection(os.environ.get("RELAY_RUN", ""))
    except StorageError:
        return None  # a confined agent cannot open it: its session is asked
    if chosen is None or chosen.intent != id:
        return None
    intent = check_id(IntentsFile(chosen.root).read(), id)
    if intent.status is not Status.IN_PROGRESS:
        return None
    return {"text": intent_context(intent, read_lessons(chosen.root)), "intent": id}


def status_verb(options: Options) -> int:
    """``relay intent status``. An agent ends only the intent that it has selected."""
    status = Status(options.status)
    if wrapped():
        request = {"do": "set_status", "id": options.id, "status": options.status}
        with connect(Home.from_env()) as client:
            client.request(ASK, kind="governance", request=request, **output.speaker())
    else:
        home = Home.from_env()
        check_person(home, "open an intent again")
        _set_status(home, governed_project(), options.id, status)
    if options.json:
        output.as_json({"intent": options.id, "status": options.status})
    else:
        output.data(f"{options.id} is {options.status}")
    return 0


def _set_status(home: Home, root: str, id: str, status: Status) -> None:
    """Change the file, and write into the trace that the person did."""
    file = IntentsFile(root)
    before = check_id(file.read(), id).status
    file.set_status(id, status)
    if before is status:
        return
    from relay.features.governance.governance_store import GovernanceStore
    from relay.features.governance.trace import Trace
    from relay.features.governance.trace_records import TraceEntry

    by = ", ".join(filter(None, (owner_name(), own_place())))
    said = {"event": "status", "intent": id, "from": before, "to": status, "by": by}
    try:
        home.create()
        with closing(GovernanceStore.open(home)) as store:
            Trace(root, store).append(TraceEntry(TraceKind.GOVERNANCE, intent_id=id, metadata=said))
    except StorageError as error:
        output.note(f"the trace does not say so: {error.line}")


_KINDS = tuple(str(kind) for kind in TraceKind)
#: Records that are shown.
_LAST = 20


def add_log(own: Parser) -> None:
    """Declare the two verbs in the group ``relay intent``."""
    text = "what was done, refused and decided here, the newest last"
    log = own.add_parser("log", help=text)
    log.add_argument("--intent", metavar="ID", help="only what belongs to this intent")
    log.add_argument("--agent", metavar="NAME", help="only what this agent did")
    log.add_argument("--kind", choices=_KINDS, metavar="KIND", help=f"only {', '.join(_KINDS)}")
    log.add_argument("--limit", type=count, metavar="N", help=f"only the last N ({_LAST})")
    log.gone("--html", "relay web shows the trace under Intents; --json prints all of each record")
    log.add_argument("--json", action="store_true", help="print the records as JSON")
    log.set_defaults(run=_log)
    text = "check that nothing in the trace was changed or removed"
    verify = own.add_parser("verify", help=text)
    verify.add_argument("--json", action="store_true", help="print JSON")
    verify.set_defaults(run=_verify)


def governed_project() -> str:
    """The governed folder that this one is in. Raises NotFound."""
    root = governed_root(working_folder())
    if not root:
        raise NotFound(
            "this folder is not in a governed project",
            hint="relay init --governed makes its project a governed one",
        )
    return root


def _log(options: Any) -> int:
    from relay.features.governance.governance_store import GovernanceStore
    from relay.features.governance.trace import Trace
    from relay.features.governance.trace_records import trace_line

    root = governed_project()
    kept: deque[Json] = deque(maxlen=options.limit or _LAST)
    matching = 0
    with closing(GovernanceStore.open(Home.from_env())) as store:
        for _, record in Trace(root, store).records():
            if _wanted(options, record):
                matching += 1
                kept.append(record)
    if options.json:
        output.as_json(list(kept))
        return 0
    _print(list(map(trace_line, kept)))
    if left_out := matching - len(kept):
        output.note(f"{left_out} older ones are left out: --limit N shows more")
    return 0


def _wanted(options: Any, row: Json) -> bool:
    return (
        options.intent in (None, row["intent_id"])
        and options.agent in (None, row["agent"])
        and options.kind in (None, row["kind"])
    )


def _print(rows: list[TraceLine]) -> None:
    if not rows:
        output.note("the trace has nothing like that")
        return
    width = table.columns()
    table.table(
        ("TIME", "KIND", "INTENT", "AGENT", "WHAT"),
        [
            (
                *(_when(row.time), row.kind, row.intent or "-", row.agent),
                row.what if width is not None else f"{row.what} {row.words}".strip(),
            )
            for row in rows
        ],
        width=width,
        remarks=[] if width is None else [row.words for row in rows],
    )


def _when(time_: str) -> str | None:
    """A record's time as the other verbs show theirs; as it stands there if it is none."""
    from datetime import datetime

    try:
        return table.when(int(datetime.fromisoformat(time_).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        return time_


def _verify(options: Any) -> int:
    """0 where the trace is whole, else 1."""
    from relay.features.governance.governance_store import GovernanceStore
    from relay.features.governance.trace import Trace

    root = governed_project()
    with closing(GovernanceStore.open(Home.from_env())) as store:
        trace = Trace(root, store)
        verified = trace.verify()
    if options.json:
        faults = [{"line": one.line, "text": one.told} for one in verified.faults]
        output.as_json(
            {
                "path": trace.path,
                "records": verified.records,
                "whole": not faults,
                "faults": faults,
                "more": verified.more,
                "foreign": verified.foreign,
            }
        )
    elif not verified.faults:
        output.data(f"{trace.path}: {verified.told} (records: {verified.records})")
    else:
        output.data(f"{trace.path} was changed:")
        for fault in verified.faults:
            output.data(f"  {fault.told}")
        if verified.more:
            output.data("  … and more")
        output.note("so you cannot rely on it; compare it with a copy if you have one")
    return 1 if verified.faults else 0
