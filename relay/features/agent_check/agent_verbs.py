"""``relay agent check``: what relay can do with a program."""

from __future__ import annotations

from relay.broker.client import check_person
from relay.cli import output, table
from relay.cli.exports import cleared_up
from relay.cli.parser import BadValue, Parser
from relay.cli.verbs import verb
from relay.core.agent_names import valid_name
from relay.core.errors import EXIT_FAILED, UsageError
from relay.core.paths import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.features.agent_check.agent_check import Report
    from relay.features.agent_check.standard_conversation import Verdict

_CHECK = (
    "Start a program under relay, hold a conversation of about 15 short messages with it, and "
    "say what works. It runs here with its own settings and account: a real model costs "
    "tokens. It is asked to run one harmless command, so that it may ask for permission."
)
_MARKS = {True: "yes", False: "no", None: "-"}
_PATIENCE = 60.0


def add(verbs: Parser) -> None:
    group = verb(
        verbs,
        "agent",
        "relay agent check aider\n  relay agent check mine -- ./my-agent --model small",
    )
    own = group.add_subparsers()
    own.gone(
        "learn",
        "relay agent check says what fails; docs/profiles.md shows how to write a profile",
    )
    check = own.add_parser(
        "check", help="hold a conversation with a program, and say what works", description=_CHECK
    )
    check.add_argument("name", metavar="PROGRAM", help="the program, or a name for COMMAND")
    check.add_argument("command", nargs="*", metavar="COMMAND", help="what starts it (after --)")
    check.add_argument("--yes", action="store_true", help="do not ask before it begins")
    check.add_argument(
        "--patience", type=_seconds, default=_PATIENCE, metavar="S", help="for one answer (60)"
    )
    check.add_argument(
        "--size", type=_size, default=(100, 30), metavar="COLSxROWS", help="its terminal (100x30)"
    )
    check.add_argument(
        "--dialog", type=_keys, default="", metavar="KEYS", help=r"what opens a dialog: '/model\r'"
    )
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=check_verb)


def check_verb(options: Any) -> int:
    """``relay agent check``: 0 when everything holds that could be tried."""
    from relay.features.agent_check.agent_check import check

    check_person(Home.from_env(), "check a program")
    if not valid_name(options.name):
        raise UsageError(
            f"{options.name!r} cannot be an agent's name",
            hint="relay agent check NAME -- COMMAND gives the command any name",
        )
    command = options.command or [options.name]
    if not options.yes and not _agreed(command):
        return EXIT_FAILED
    with cleared_up():
        report = check(
            options.name,
            command,
            lambda what: output.note(f"{what} …"),
            patience=options.patience,
            size=options.size,
            dialog=options.dialog,
        )
    if options.json:
        output.as_json(_fields(report))
    else:
        _table(report)
    return 0 if report.holds else EXIT_FAILED


def _agreed(command: list[str]) -> bool:
    output.note(
        f"{' '.join(command)} is started here, and its model answers some 15 short messages (about"
        " 10,000 tokens beside its own). It is asked to run a harmless command."
    )
    return output.agreed("Begin?")


def _table(report: Report) -> None:
    rows = [(row.side, row.what, _mark(row), row.reason) for row in report.rows]
    width = table.columns()
    if width is None:
        table.table(("AS", "WHAT", "HOLDS", "WHY"), rows)
        return
    remarks = [reason or None for *_, reason in rows]
    table.table(("AS", "WHAT", "HOLDS"), [row[:3] for row in rows], width=width, remarks=remarks)


def _mark(row: Verdict) -> str:
    return "as told" if row.holds and row.as_told else _MARKS[row.holds]


def _fields(report: Report) -> output.Json:
    return {
        "holds": report.holds,
        "kind": report.kind,
        "source": report.source,
        "rows": [
            {"as": row.side, "what": row.what, "holds": row.holds, "reason": row.reason}
            | {"as_told": row.as_told}
            for row in report.rows
        ],
        "messages": report.messages,
        "heard": report.heard,
        "screen": report.screen,
    }


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise BadValue(f"{text!r} is not a number of seconds up to 3600")
    return seconds


def _size(text: str) -> tuple[int, int]:
    cols, x, rows = text.partition("x")
    if not (x and cols.isdecimal() and rows.isdecimal() and int(cols) > 19 and int(rows) > 4):
        raise BadValue(f"{text!r} is not a size such as 100x30")
    return min(int(cols), 500), min(int(rows), 200)


def _keys(text: str) -> str:
    return text.replace("\\r", "\r").replace("\\n", "\n").replace("\\e", "\x1b")
