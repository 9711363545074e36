"""``relay ledger query|export|ingest|reindex|compact``: the two ledgers as a whole."""

from __future__ import annotations

import json
import math
from typing import Any

from relay.broker.client import BrokerClient, check_person, connect
from relay.cli import door, output, progress, table
from relay.cli.parser import Parser, count, moment, wait_seconds
from relay.cli.verbs import verb
from relay.core.errors import UsageError
from relay.core.paths import Home
from relay.protocol.broker_ops import COMPACT, REINDEX, Compacted

#: Seconds that one step of making the index may take.
_STEP_WITHIN = 300.0
#: Rows of a query unless --limit says otherwise.
_ROWS = 1000
#: What ``relay ledger`` by itself shows.
_KINDS = "SELECT kind, count(*) AS events FROM events GROUP BY kind ORDER BY events DESC"


_EXAMPLES = """\
relay ledger query
  relay ledger query "SELECT name, kind, cwd FROM agents" --json"""


def add(verbs: Parser) -> None:
    group = verb(
        verbs,
        "ledger",
        'relay ledger query "SELECT kind, count(*) FROM events GROUP BY kind"\n'
        "  relay ledger export all.jsonl\n"
        "  relay ledger compact --before 90d",
    )
    own = group.add_subparsers(dest="ledger_verb", alone="query")
    asked = _sub(own, "query", "run a SELECT; nothing can be written", query_verb, _EXAMPLES)
    text = "one SELECT; docs/ledger.md lists the tables (default: count events by kind)"
    asked.add_argument("sql", metavar="SQL", nargs="?", default=_KINDS, help=text)
    asked.add_argument("--limit", type=count, metavar="N", help=f"at most N rows ({_ROWS})")
    asked.add_argument(
        "--timeout", type=wait_seconds, metavar="S", help="seconds that it may take (10)"
    )
    asked.add_argument("--json", action="store_true", help="print JSON")
    export = _sub(own, "export", "write both ledgers as JSON lines, one per row", export_verb)
    export.add_argument("file", nargs="?", metavar="FILE", help="the file (default, and -: stdout)")
    export.add_argument("--force", action="store_true", help="replace an existing file")
    _sub(own, "reindex", "rebuild the index of --grep", reindex_verb)
    compact = _sub(
        own, "compact", "shorten what was said in old turns; the turns stay", compact_verb
    )
    compact.add_argument(
        "--before", type=moment, metavar="WHEN", help="turns that ended before (90d, 2026-01-31)"
    )
    compact.add_argument("--yes", action="store_true", help="do not ask")
    for _, add_parts in door.given("add_parts"):
        add_parts("ledger", own)


def _sub(verbs: Parser, name: str, text: str, run: Any, examples: str = "") -> Parser:
    parser = verbs.add_parser(name, help=text, examples=examples)
    parser.set_defaults(run=run)
    return parser


# -- query, export: they read the file themselves, so that no query keeps the broker from its work


def _readable() -> Home:
    """The home whose whole ledger may be read: what SQL finds cannot be limited to one's own."""
    home = Home.from_env()
    hint = "relay history and relay show read an agent's own messages and turns"
    check_person(home, "read the whole ledger", hint)
    return home


def query_verb(options: Any) -> int:
    from relay.ledger.reading import PATIENCE, query

    home = _readable()
    seconds = PATIENCE if options.timeout is None else options.timeout
    found = query(home.ledger, options.sql, options.limit or _ROWS, seconds)
    if options.json:
        names = _distinct(found.columns)
        output.as_json([dict(zip(names, map(_plain, row), strict=True)) for row in found.rows])
    elif not found.rows:
        output.note("nothing is stored yet" if options.sql == _KINDS else "no rows")
    else:
        rows = [[None if one is None else _plain(one) for one in row] for row in found.rows]
        table.table(found.columns, rows, width=table.columns())
    if found.more:
        output.note("there are more rows: --limit N shows more, or narrow it down")
    return 0


def _plain(value: object) -> object:
    """As JSON has it: no bytes, and no number that is none."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return f"x'{value.hex()}'" if isinstance(value, bytes) else value


def _distinct(names: tuple[str, ...]) -> list[str]:
    """The columns' names, those that came before with a number."""
    seen: dict[str, int] = {}
    out = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return out


def export_verb(options: Any) -> int:
    from contextlib import closing

    from relay.cli.exports import export_target
    from relay.ledger.reading import export

    home = _readable()
    done = 0
    file = None if options.file == "-" else options.file
    with (
        closing(export(home.ledger)) as rows,
        export_target(file, replace=options.force) as target,
    ):
        for name, row in rows:
            target.write(json.dumps({"table": name, **row}, default=_plain) + "\n")
            done += 1
    if file is not None:
        output.note(f"{done} rows are in {file}")
    return 0


# -- reindex, compact: the broker's


def reindex_verb(options: Any) -> int:
    number, begin, more = 0, True, True
    with connect(Home.from_env()) as client, progress.on_stderr() as bar:
        while more:
            step = client.request(REINDEX, begin=begin, deadline=_STEP_WITHIN)
            begin, more = False, step["more"]
            number += step["indexed"]
            bar.show(f"{number} texts")
    output.data(f"{number} texts are indexed")
    return 0


def compact_verb(options: Any) -> int:
    """``relay ledger compact``: asks first, as what is shortened is gone."""
    if options.before is None:
        raise UsageError("--before is missing", hint="relay ledger compact --before 90d")
    with connect(Home.from_env()) as client:
        would = _compact(client, options, really=False)
        if would["turns"] and not _agreed(options, would):
            return 1
        done = _compact(client, options, really=True) if would["turns"] else would
    output.data(f"{done['turns']} turns are compacted, by {done['characters']:,} characters")
    return 0


def _agreed(options: Any, would: Compacted) -> bool:
    if not options.yes:
        output.note(
            f"Of {would['turns']} turns the beginning of what was said and the names of tool calls"
            f" stay: {would['characters']:,} characters are deleted for good. Events do not change."
        )
    return output.agreed("Compact them?", yes=options.yes)


def _compact(client: BrokerClient, options: Any, *, really: bool) -> Compacted:
    turns = characters = 0
    after: int | None = 0
    while after is not None:
        step = client.request(COMPACT, before_ms=options.before, after=after, really=really)
        after = step["after"]
        turns += step["turns"]
        characters += step["characters"]
    return {"turns": turns, "characters": characters, "after": None}
