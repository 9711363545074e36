"""The verbs ``approve`` and ``govern``: what the person alone decides in a governed project."""

from __future__ import annotations

import time

from relay.broker.client import request
from relay.cli import output, table
from relay.cli.parser import Parser
from relay.cli.verbs import verb
from relay.core.errors import UsageError
from relay.core.visible import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.cli.output import Json

#: What ``approve --json`` shows of each call that waits. Scripts rely on them.
_FIELDS = ("id", "agent", "tool", "what", "why", "intent", "root", "cwd", "asked_at", "until_at")
#: What each line of an agent's own words begins with, so that none looks like a line of relay's.
_QUOTED = "  | "
#: Columns that a line of them keeps, however narrow the terminal is.
_LEAST = 20


def add(verbs: Parser) -> None:
    """Declare the verbs."""
    approve = verb(
        verbs, "approve", "relay approve\n  relay approve 4QXK7Z2M\n  relay approve 4QXK7Z2M --no"
    )
    approve.add_argument(
        "which", nargs="*", metavar="ID", help="a call that waits (default: show what waits)"
    )
    approve.add_argument("--no", action="store_true", help="refuse it")
    approve.add_argument("--note", metavar="TEXT", help="tell the agent why")
    approve.add_argument("--json", action="store_true", help="for programs")
    approve.set_defaults(run=approve_verb)


def approve_verb(options: Any) -> int:
    """``relay approve``: what waits, or yes or no to some of it."""
    if not options.which:
        if options.no or options.note:
            raise UsageError("name the calls that you decide on", hint="see: relay approve")
        return _list_waiting(in_json=options.json)
    fields = {"which": options.which, "refuse": options.no, "note": options.note or ""}
    rows = request("approve", **fields, **output.speaker())["rows"]
    if options.json:
        output.as_json([output.shaped(row, _FIELDS) for row in rows])
        return 0
    for row in rows:
        done = "is refused" if options.no else "goes on"
        output.data(f"{row['id'][-8:]}  {row['agent']}: {output.summary(row['what'])}: {done}")
    return 0


def _list_waiting(*, in_json: bool) -> int:
    rows = request("approvals", **output.speaker())["rows"]
    if in_json:
        output.as_json([output.shaped(row, _FIELDS) for row in rows])
    elif not rows:
        output.note("no call of an agent waits for you")
    else:
        now_ms, width = time.time_ns() // 1_000_000, table.columns()
        for row in rows:
            _print_waiting(row, now_ms, width)
        output.note("relay approve ID lets one go on, relay approve ID --no refuses it")
    return 0


def _print_waiting(row: Json, now_ms: int, width: int | None) -> None:
    """One call, whole: nobody says yes to what they have not seen."""
    left = max(0, row["until_ms"] - now_ms) // 1000
    output.data(f"{row['id'][-8:]}  {row['agent']} wants to use {row['tool']} ({left} s left)")
    if row["why"]:
        output.data(f"  because {row['why']}")
    place = row["cwd"] or row["root"]
    output.data(f"  for {row['intent'] or 'no intent'}, in {place}")
    room = max(_LEAST, width - len(_QUOTED)) if width else 0
    for line in row["what"].split("\n"):
        shown = visible(line)
        # A terminal would break a long line itself, and what comes then could look like relay's.
        for at in range(0, len(shown) or 1, room or len(shown) or 1):
            output.data(_QUOTED + (shown[at : at + room] if room else shown))
