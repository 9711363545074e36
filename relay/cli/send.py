"""The verbs send and ask: write to an agent or a person, and wait until it is seen or answered."""

from __future__ import annotations

import sys
import time

from relay.broker.client import BrokerClient, connect
from relay.cli import output
from relay.cli.parser import WAIT as SECONDS
from relay.cli.parser import Parser, wait_seconds
from relay.cli.verbs import verb
from relay.core.errors import EXIT_NOT_DELIVERED, EXIT_TIMEOUT, UsageError
from relay.core.paths import Home
from relay.core.processes import wrapped
from relay.protocol.agent_ops import AGENTS
from relay.protocol.message_ops import INBOX, READ, SEND, WAIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from relay.cli.output import Json
    from relay.protocol.message_ops import (
        DeliveryState,
        MessageAnswer,
        MessageSent,
        Send,
        WaitResult,
    )

#: What the broker takes; ``QueueMode`` of relay.core.message imports ``enum`` and ``dataclasses``.
MODES = ("followup", "steer", "collect", "interrupt")
_UNDELIVERED = ("failed", "cancelled")
#: How long an answer is waited for, if nothing else is said. Seconds.
_ANSWER = "600"
#: States of an agent that keep it from an answer, until somebody does something or time passes.
_HINDERED = ("blocked", "limited", "stopped")
#: Seconds between two looks at what hinders those who owe an answer.
_LOOK = 1.0


def add(verbs: Parser) -> None:
    _add_ask(verbs)
    parser = verb(
        verbs,
        "send",
        'relay send Bob "please run the tests"\n'
        "  git diff | relay send Bob,Carol -\n"
        '  relay send "*" --wait=30 "who is there?"',
    )
    parser.add_argument(
        "to", metavar="TO", offers="names", help="a name, names with commas, or * for everyone"
    )
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the text; - reads it from stdin")
    parser.add_argument("--from", dest="sender", metavar="NAME", help="your name (not an agent's)")
    parser.add_argument(
        "--mode",
        choices=MODES,
        metavar="MODE",
        help="when TO is busy: followup (default) waits, steer joins the turn, collect waits and"
        " goes with others, interrupt stops the turn",
    )
    parser.add_argument("--thread", metavar="T", help="the thread it belongs to")
    parser.add_argument(
        "--reply", metavar="ID", help="the message it answers; it is in the thread of that one"
    )
    parser.add_argument(
        "--wait",
        type=wait_seconds,
        bare="",
        metavar="S",
        help=f"wait until it is seen, at most S seconds ({SECONDS:.0f}); write --wait or --wait=S",
    )
    parser.add_argument(
        "--answer",
        type=wait_seconds,
        bare=_ANSWER,
        metavar="S",
        help=f"wait for the answer and print it, at most S seconds ({_ANSWER})",
    )
    parser.add_argument(
        "--offline", action="store_true", help="keep it for a name that nobody has used yet"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=send_verb)


def _add_ask(verbs: Parser) -> None:
    parser = verb(
        verbs,
        "ask",
        'relay ask Bob "which tests fail?"\n'
        '  relay ask --to Bob,Carol --json "how far are you?"\n'
        "  git diff | relay ask Bob -",
        "Ask an agent, wait until the turn that answers has ended, and print what it said.\n\n"
        "Exit status: 0 when all have answered, 4 when one will not, 5 when the time is up.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", offers="names", help="whom you ask")
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the text; - reads it from stdin")
    parser.add_argument(
        "--to", metavar="NAMES", help="ask several instead: names with commas, or * for everyone"
    )
    parser.add_argument("--from", dest="sender", metavar="NAME", help="your name (not an agent's)")
    parser.add_argument("--thread", metavar="T", help="the thread it belongs to")
    parser.add_argument(
        "--timeout",
        type=wait_seconds,
        default=float(_ANSWER),
        metavar="S",
        help=f"wait at most S seconds ({_ANSWER})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=ask_verb)


def ask_verb(options: Any) -> int:
    if options.to is None:
        options.to = options.name
    elif options.text is None:
        options.text = options.name  # the only word
    else:
        raise UsageError(f"unexpected argument {options.text!r}: --to already names the agent")
    if options.to is None:
        raise UsageError("NAME and TEXT are missing", hint='relay ask NAME "TEXT"')
    options.mode = options.reply = None
    options.offline, options.answer = False, options.timeout
    return send_verb(options, quiet=True)


def send_verb(options: Any, *, quiet: bool = False) -> int:
    """``relay send``. ``quiet``: of an answer that comes, print nothing but the answer."""
    body = _body(options.text)
    targets = [name.strip() for name in options.to.split(",") if name.strip()]
    fields: Send = {
        "to": targets[0] if len(targets) == 1 else targets,
        "body": body,
        "mode": options.mode,
        "thread": options.thread,
        "re": options.reply,
        "offline": options.offline,
        "auth": output.speaker().get("auth"),
    }
    if options.answer is not None:
        fields["answer"] = True
    if options.sender is not None:
        fields["from"] = options.sender
    with connect(Home.from_env()) as client:
        answer = client.request(SEND, **fields)
        if options.answer is not None:
            return _await_answer(client, answer, options, quiet=quiet)
        if options.wait is not None:
            return _wait(client, answer, options)
    _print_sent(answer, options.json)
    return EXIT_NOT_DELIVERED if _is_undelivered(answer["deliveries"]) else 0


def _is_undelivered(rows: list[DeliveryState]) -> bool:
    return any(row["state"] in _UNDELIVERED for row in rows)


def _wait(client: BrokerClient, answer: MessageSent, options: Any) -> int:
    if not options.json:
        # At once: whoever stops waiting has the id, and knows what it is waiting for.
        _print_sent(answer, in_json=False)
        output.flush()
    seconds: float = options.wait
    found = client.request(
        WAIT, deadline=seconds + 30, id=answer["id"], timeout=seconds, **output.speaker()
    )
    before = {row["to"]: output.state_text(row) for row in answer["deliveries"]}
    if options.json:
        _print_sent({**answer, "deliveries": found["deliveries"], "done": found["done"]}, True)
    else:
        for row in found["deliveries"]:
            if before.get(row["to"]) != output.state_text(row):
                output.note(f"{row['to']}: {output.state_text(row)}")
    if _is_undelivered(found["deliveries"]):
        return EXIT_NOT_DELIVERED
    if not found["done"]:
        if not options.json:
            output.note(f"relay: not seen within {options.wait:g} s; it is not lost")
            output.note(f"  relay show {answer['id']}")
        return EXIT_TIMEOUT
    return 0


def _await_answer(client: BrokerClient, sent: MessageSent, options: Any, *, quiet: bool) -> int:
    """Wait for the answers: they go to stdout, everything else to stderr."""
    if not options.json:
        if not quiet:
            output.note(sent["id"])
        for row in sent["deliveries"]:
            if not quiet or row["reason"]:
                output.note(f"{row['to']}: {output.state_text(row)}")
    found = _wait_for_answers(client, sent, options.answer, quiet=options.json)
    answers, rows = found.get("answers", []), found["deliveries"]
    if options.json:
        _print_sent({**sent, "deliveries": rows, "done": found["done"], "answers": answers}, True)
    else:
        _print_answers(answers, rows, several=len(rows) > 1)
    if answers and not wrapped():
        output.flush()
        _mark(client, sent, [one["text"] for one in answers])
    if not found["done"]:
        if not options.json:
            output.note(f"relay: not answered within {options.answer:g} s; it is not lost")
            output.note(f"  relay show {sent['id']}")
        return EXIT_TIMEOUT
    good = sum(one["state"] == "completed" and bool(one["text"]) for one in answers)
    return 0 if good == len(rows) else EXIT_NOT_DELIVERED


def _mark(client: BrokerClient, sent: MessageSent, texts: list[str]) -> None:
    """What a persona answers that was started for it is in the inbox, too, but printed by now."""
    rows = client.request(INBOX, name=sent["from"], limit=1000, **output.speaker())["rows"]
    ids = [one["id"] for one in rows if one.get("cause") == sent["id"] and one["body"] in texts]
    if ids:
        client.request(READ, name=sent["from"], ids=ids)


def _print_answers(
    answers: list[MessageAnswer], rows: list[DeliveryState], *, several: bool
) -> None:
    for one in answers:
        if several:
            output.data(f"{one['from']}:")
        if one["text"]:
            output.lines(one["text"])
        if one["state"] != "completed":
            output.note(f"{one['from']}: {one['state']} ({one['reason'] or 'no reason is known'})")
        elif not one["text"]:
            output.note(f"{one['from']}: the turn ended without words")
    by = {one["from"].lower() for one in answers}
    for row in rows:
        if row["to"].lower() not in by:
            output.note(f"{row['to']}: {output.state_text(row)}, no answer")


def _wait_for_answers(
    client: BrokerClient, sent: MessageSent, seconds: float, *, quiet: bool
) -> WaitResult:
    """What ``wait`` says once all have answered or never will, or the time is up. Unless ``quiet``
    it is said meanwhile what keeps an agent from it."""
    from relay.ui.watching import Watching

    end = time.monotonic() + seconds
    names = [row["to"] for row in sent["deliveries"]]
    told: dict[str, str] = {}
    with Watching(client.home, kinds=["agent"], agents=names) as watching:
        rows: list[Json] = [
            {**row} for row in client.request(AGENTS)["agents"] if row["name"] in names
        ]
        while True:
            for row in rows:
                stalled = row.get("state") == "busy" and row.get("reason")  # busy has no other
                if not quiet and (stalled or row.get("state") in _HINDERED):
                    if told.get(row["name"]) != (now := output.state_text(row)):
                        output.note(f"{row['name']}: {now}")
                        if row.get("state") == "blocked" and not wrapped():
                            answer = f"relay answer {row['name']} CHOICE answers it"
                            output.note(f"  relay items shows what it asks; {answer}")
                    told[row["name"]] = now
            # Waiting at the broker, so that nobody else is told of an answer that will not come.
            left = max(0.0, end - time.monotonic())
            step = min(left, _LOOK)
            found = client.request(
                WAIT, id=sent["id"], timeout=step, answer=True, **output.speaker()
            )
            if found["done"] or left <= step:
                return found
            rows = watching.next_rows(0.01)  # what has come by now


def _print_sent(answer: Mapping[str, Any], in_json: bool) -> None:
    rows = [output.shaped(row, ("to", "state", "reason")) for row in answer["deliveries"]]
    if in_json:
        shown: Json = {"id": answer["id"], "from": answer["from"], "deliveries": rows}
        shown["duplicate"] = answer["duplicate"]
        for name in ("did_you_mean", "present", "done", "answers"):
            if name in answer:
                shown[name] = answer[name]
        output.as_json(shown)
        return
    output.data(answer["id"])
    for row in rows:
        output.note(f"{row['to']}: {output.state_text(row)}")
    if answer.get("did_you_mean"):
        output.note(f"did you mean {' or '.join(answer['did_you_mean'])}?")


def _body(text: str | None) -> str:
    if text is None and sys.stdin.isatty():
        raise UsageError("a message needs a text", hint='relay send NAME "TEXT", or - for stdin')
    if text is not None and text != "-":
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError("the text is not valid UTF-8") from error
        return text
    from relay.core.message import BODY_MAX

    # One byte more than is possible shows that it is too much, without reading it all.
    raw = sys.stdin.buffer.read(BODY_MAX + 2)
    if len(raw) > BODY_MAX + 1:
        raise UsageError(
            f"the text is more than {BODY_MAX} bytes long",
            hint="put it in a file and send its path",
            code="too_large",
        )
    try:
        return raw.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError("the text on stdin is not valid UTF-8") from error
