"""``relay automation test`` and ``runs``: what an automation would do with an event, and has done.

A file of its own, apart from the verbs that change something.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from relay.broker.client import connect
from relay.cli import output, table
from relay.cli.parser import Parser, count
from relay.core.errors import EXIT_FAILED, UsageError
from relay.core.paths import Home
from relay.protocol.broker import Json

#: Characters of a run's log below its row: the end of it.
_LOG_SHOWN = 300
_RUNS_HEAD = ("TIME", "EVENT", "KIND", "FROM", "RESULT", "MS", "LLM")
_EXAMPLE = '{"channel": "sms", "sender": "+15559876543", "content": "hello"}'


def add(group: Parser) -> None:
    """Declare both verbs."""
    test = group.add_parser(
        "test",
        help="run it for an event, and show what would follow",
        description="Run it for an event, and show what would follow. Nothing is dispatched or "
        "stored, but what the handler does by itself really happens.",
    )
    test.add_argument("name", metavar="AUTOMATION", help="its name")
    test.add_argument(
        "--event",
        metavar="EVENT",
        help="JSON, a file that holds it, - for stdin, or an event's id (default: its own tick)",
    )
    test.set_defaults(run=test_verb)
    runs = group.add_parser("runs", help="show its runs, the newest last")
    runs.add_argument("name", metavar="AUTOMATION", help="its name")
    runs.add_argument("--last", type=count, default=20, metavar="N", help="this many (20)")
    runs.add_argument("--errors-only", action="store_true", help="only those that failed")
    runs.set_defaults(run=runs_verb)


def test_verb(options: Any) -> int:
    """``relay automation test``: 0 when the handler did not fail."""
    event = _event(options.event)
    with connect(Home.from_env()) as client:
        answer = client.request("automation_test", name=options.name, **event, **output.speaker())
    if options.json:
        answer = {name: value for name, value in answer.items() if name not in ("n", "ok")}
        output.as_json(answer | {"automation": options.name})
    else:
        _print_test(answer)
    return EXIT_FAILED if answer["error"] else 0


def _event(given: str | None) -> Json:
    """The event that is meant, as the broker is asked for it. Raises UsageError."""
    if given is None:
        return {}
    text = given
    if given == "-":
        text = sys.stdin.read()
    elif not given.lstrip().startswith("{"):
        try:
            with open(given, encoding="utf-8", errors="surrogateescape") as file:
                text = file.read()
        except OSError as error:
            if os.sep in given or given.endswith(".json"):
                raise UsageError(f"{given} cannot be read: {error.strerror}") from error
            return {"id": given}
    from relay.core import json_text

    try:
        event = json_text.loads(text)
    except ValueError as error:
        raise UsageError(f"the event is no JSON: {error}", hint=f"for example {_EXAMPLE}") from None
    return {"event": event}


def _print_test(answer: Json) -> None:
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
    fields = {"limit": options.last, "errors_only": options.errors_only}
    with connect(Home.from_env()) as client:
        answer = client.request("automation_runs", name=options.name, **fields, **output.speaker())
    rows = answer["rows"][::-1]
    if options.json:
        for row in rows:
            row["started_at"] = output.iso(row.pop("started_ms"))
        output.as_json(rows)
    elif not rows and options.errors_only:
        output.note(f"{options.name} has not failed")
    elif not rows:
        output.note("it has not run, or its first run has not ended")
        output.note(f"  relay automation info {options.name} shows what it runs for")
        output.note(f"  relay automation test {options.name} --event ID tries it with an event")
    else:
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
        output.note("older ones are left out: --last N shows more")
    return 0


def _said(row: Json) -> str:
    """Its error, and the end of its log, which has the traceback."""
    log = " ".join((row["log"] or "").split())[-_LOG_SHOWN:]
    return "; ".join(filter(None, ((row["error"] or "").partition("\n")[0], log)))


def _result(row: Json) -> str:
    result = row["result"] or {}
    said = "failed" if row["error"] else "fired" if row["fired"] else "nothing"
    if said == "nothing" and result.get("enrich"):
        said = "enriched"
    more = [", disabled itself"] if result.get("disable") else []
    return "".join([said, *more, *([", again"] if row["retry"] else [])])
