"""``relay intent log`` and ``relay intent verify``: what the trace of a governed project tells."""

from __future__ import annotations

from collections import deque
from contextlib import closing
from datetime import datetime

from relay.cli import output, table
from relay.cli.parser import BadValue, Parser
from relay.core.errors import NotFound
from relay.core.paths import Home, working_folder
from relay.features.governance.governance_store import GovernanceStore
from relay.features.governance.governed_paths import governed_root
from relay.features.governance.trace import Trace
from relay.features.governance.trace_records import TraceKind
from relay.features.governance.trace_view import TraceLine, trace_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.cli.output import Json

_KINDS = tuple(str(kind) for kind in TraceKind)
#: Records that are shown, and at most.
_LAST, _LAST_MAX = 20, 5000


def add_log(own: Parser) -> None:
    """Declare the two verbs in the group ``relay intent``."""
    text = "what was done, refused and decided here, the newest last"
    log = own.add_parser("log", help=text, description=f"{text[0].upper()}{text[1:]}.")
    log.add_argument("--intent", metavar="ID", help="only what belongs to this intent")
    log.add_argument("--agent", metavar="NAME", help="only what this agent did")
    log.add_argument("--kind", choices=_KINDS, metavar="KIND", help=f"only {', '.join(_KINDS)}")
    log.add_argument("--last", type=_count, metavar="N", help=f"only the last N ({_LAST})")
    log.gone("--html", "relay web shows the trace under Intents; --json prints all of each record")
    log.add_argument("--json", action="store_true", help="print the records as JSON")
    log.set_defaults(run=_log)
    text = "whether the trace is as it was written: nothing changed, nothing taken out"
    verify = own.add_parser("verify", help=text, description=f"{text[0].upper()}{text[1:]}.")
    verify.add_argument("--json", action="store_true", help="print JSON")
    verify.set_defaults(run=_verify)


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= _LAST_MAX:
        raise BadValue(f"give a number from 1 to {_LAST_MAX}")
    return int(text)


def governed_project() -> str:
    """The governed folder that this one is in. Raises NotFound."""
    root = governed_root(working_folder())
    if not root:
        raise NotFound(
            "this folder is in no governed project",
            hint="relay init --governed makes its project one",
        )
    return root


def _log(options: Any) -> int:
    root = governed_project()
    kept: deque[Json] = deque(maxlen=options.last or _LAST)
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
        output.note(f"{left_out} older ones are left out: --last N shows more")
    return 0


def _wanted(options: Any, row: Json) -> bool:
    return (
        options.intent in (None, row["intent_id"])
        and options.agent in (None, row["agent"])
        and options.kind in (None, row["kind"])
    )


def _print(rows: list[TraceLine]) -> None:
    if not rows:
        output.note("nothing of that is in the trace")
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
    try:
        return table.when(int(datetime.fromisoformat(time_).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        return time_


def _verify(options: Any) -> int:
    """0 where the trace is whole, else 1."""
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
