"""``relay automation test``: what an automation does with an event, without anything coming of it.

A file of its own, apart from the verbs that change something.
"""

from __future__ import annotations

import os
import sys

from relay.broker.client import connect
from relay.cli import output
from relay.cli.parser import Parser
from relay.core.errors import EXIT_FAILED, UsageError
from relay.core.files import read_file
from relay.core.paths import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.cli.output import Json

#: Bytes of one event's JSON.
_EVENT_MAX = 7 * 1024 * 1024
_EXAMPLE = '{"channel": "sms", "sender": "+15559876543", "content": "hello"}'


def add(group: Parser) -> None:
    """Declare the verb."""
    test = group.add_parser(
        "test",
        help="run it for an event, and show what would follow",
        description="Run it for an event, and show what would follow. Nothing is dispatched or "
        "stored; what the handler does by itself, it does.",
    )
    test.add_argument("name", metavar="AUTOMATION", help="its name")
    test.add_argument(
        "--event",
        metavar="EVENT",
        help="JSON, a file that holds it, - for stdin, or an event's id (default: its own tick)",
    )
    test.set_defaults(run=test_verb)


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
        output.note("it would not be run for this event: its triggers or its folder do not match")
    line("took", f"{answer['latency_us'] / 1000:.1f} ms")
    line("error", answer["error"])
    line("result", answer["result"])
    for name, value in (answer["dispatch"] or {}).items():
        line(name.replace("_", " "), value)
    line("state", answer["state"])
    for text in (answer["log"] or "").splitlines():
        line("log", text)
