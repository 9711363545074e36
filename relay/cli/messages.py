"""The verbs about messages that are there: inbox, sent, cancel, show, history."""

from __future__ import annotations

import sys

from relay.broker.client import BrokerClient, connect, request
from relay.cli import output, table
from relay.cli.output import Json
from relay.cli.parser import Parser, count, moment
from relay.cli.verbs import verb
from relay.core import signals
from relay.core.errors import BrokerUnavailable
from relay.core.paths import Home
from relay.core.processes import wrapped
from relay.protocol.item_ops import ITEMS, waiting_words
from relay.protocol.message_ops import (
    CANCEL,
    HISTORY,
    INBOX,
    READ,
    SENT,
    SHOW,
    Inbox,
    InboxRows,
    MessageRow,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_UNDELIVERED = ("failed", "cancelled")
_DELIVERY = (
    *("to", "state", "reason", "proof", "decided", "attempts"),
    *("delivering_at", "submitted_at", "updated_at"),
)
#: Seconds between two questions of ``inbox --follow`` when the broker pushes nothing.
_FOLLOW_CHECK = 30.0


def add(verbs: Parser) -> None:
    inbox = verb(
        verbs,
        "inbox",
        "relay inbox\n  relay inbox --follow\n  relay inbox Bob       (what waits for Bob)",
    )
    inbox.add_argument("name", nargs="?", metavar="NAME", offers="names", help="someone else's")
    inbox.add_argument("--follow", action="store_true", help="keep printing messages as they come")
    inbox.add_argument("--all", action="store_true", help="also messages that were seen before")
    inbox.add_argument("--peek", action="store_true", help="mark nothing as seen")
    _limit_and_json(inbox)
    inbox.set_defaults(run=inbox_verb)

    sent = verb(verbs, "sent", "relay sent\n  relay sent --limit 5 --json")
    sent.add_argument("name", nargs="?", metavar="NAME", offers="names", help="someone else's")
    _limit_and_json(sent)
    sent.set_defaults(run=sent_verb)

    cancel = verb(verbs, "cancel", "relay cancel 4QXK")
    cancel.add_argument("id", metavar="ID", help="the id, or a unique beginning or end of it")
    cancel.add_argument("--json", action="store_true", help="print JSON")
    cancel.set_defaults(run=cancel_verb)

    show = verb(verbs, "show", "relay show 01J8ZD\n  relay show 4QXK --thread")
    show.add_argument("id", metavar="ID", help="the id, or a unique beginning or end of it")
    show.add_argument(
        "--thread", action="store_true", help="the whole conversation that it is part of"
    )
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=show_verb)

    history = verb(
        verbs,
        "history",
        "relay history Bob --since 2h\n  relay history --grep deploy --json",
    )
    history.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        offers="names",
        help="only messages from or to this agent or person",
    )
    history.add_argument("--thread", metavar="T", help="only messages in this thread")
    history.add_argument("--channel", metavar="C", help="only messages to this #channel")
    history.add_argument("--tag", metavar="TAG", help="only messages with this tag of yours")
    history.add_argument(
        "--since", type=moment, metavar="WHEN", help="90s, 10m, 2h, 3d, or an ISO 8601 time"
    )
    history.add_argument(
        "--grep", metavar="TEXT", help="only messages that contain this, in any case"
    )
    _limit_and_json(history)
    history.set_defaults(run=history_verb)


def _limit_and_json(parser: Parser) -> None:
    parser.add_argument("--limit", type=count, metavar="N", help="at most this many")
    parser.add_argument("--json", action="store_true", help="print JSON")


# -- cancel


def cancel_verb(options: Any) -> int:
    """``relay cancel``: 0 when nobody gets the message any more, 1 when somebody has it."""
    answer = request(CANCEL, id=options.id, **output.speaker())
    rows = [output.shaped(row, _DELIVERY[:3]) for row in answer["deliveries"]]
    if options.json:
        output.as_json({"id": answer["id"], "deliveries": rows})
    else:
        for row in rows:
            late = "" if row["state"] in _UNDELIVERED else " (too late to cancel)"
            output.data(f"{row['to']}: {output.state_text(row)}{late}")
    return 0 if all(row["state"] in _UNDELIVERED for row in rows) else 1


# -- inbox


def inbox_verb(options: Any) -> int:
    with connect(Home.from_env()) as client:
        if options.follow:
            return _follow(client, options)
        answer = client.request(INBOX, **_inbox_fields(options))
        rows = answer["rows"]
        if options.json:
            output.as_json([table.message(row) for row in rows])
        else:
            _print_inbox(rows, answer["name"])
            if client.is_person and not options.name and not wrapped():
                _print_items(client)
        _mark(client, options, answer, rows)
        if answer["more"]:
            output.note("there is more: ask again, or give --limit")
    return 0


def _inbox_fields(options: Any) -> Inbox:
    return {
        "name": options.name,
        "all": options.all,
        "limit": options.limit,
        "auth": output.speaker().get("auth"),
    }


def _print_inbox(rows: list[MessageRow], name: str) -> None:
    for row in rows:
        id_ = row["id"] if table.columns() is None else row["id"][-8:]
        head = f"{table.when(row['created_ms'])}  {row['from']} -> {row['to']}"
        output.data(f"{head}  {output.state_text(row)}  {id_}")
        output.lines("\n".join(f"  {line}" for line in row["body"].split("\n")) + "\n")
    if not rows:
        output.note(f"nothing new for {name}")


def _print_items(client: BrokerClient) -> None:
    if waiting := client.request(ITEMS)["rows"]:
        output.data(f"{waiting_words(waiting)}: relay items")


def _mark(client: BrokerClient, options: Any, answer: InboxRows, rows: list[MessageRow]) -> None:
    """What is for a person, or for the shell in which this is printed, is seen now; what is for an
    agent is not ours to mark."""
    sys.stdout.flush()
    new = [row["id"] for row in rows if row["state"] not in ("seen", *_UNDELIVERED)]
    reads = answer["kind"] == "shell" or (answer["kind"] == "person" and not wrapped())
    if new and reads and not options.peek:
        client.request(READ, name=answer["name"], ids=new)


def _follow(client: BrokerClient, options: Any) -> int:
    # Python would hear of a Ctrl-C that comes just before it waits only after it has waited.
    signals.plain_interrupt()
    after = 0
    everything = options.all
    first = True
    while True:
        try:
            fields = _inbox_fields(options)
            fields["follow"], fields["after"] = True, after
            fields["all"] = everything or not first
            answer = client.request(INBOX, **fields)
        except BrokerUnavailable:
            # It may be killed at any moment; the next one knows as much.
            client.close()
            client = connect(Home.from_env())
            continue
        rows = answer["rows"]
        for row in rows:
            after = max(after, row["delivery"])
            if options.json:
                output.as_json_line(table.message(row))
            else:
                _print_inbox([row], answer["name"])
        _mark(client, options, answer, rows)
        first = first and not rows
        # After rows once more: to mark them may have needed a connection that follows nothing.
        if not answer["more"] and not rows:
            _next_news(client)


def _next_news(client: BrokerClient) -> None:
    """Return when there may be something new."""
    try:
        client.next_push(_FOLLOW_CHECK)
    except BrokerUnavailable:
        return


# -- sent, show, history


def sent_verb(options: Any) -> int:
    answer = request(SENT, name=options.name, limit=options.limit, **output.speaker())
    table.messages(answer, options.json, f"{answer['name']} has sent nothing")
    return 0


def history_verb(options: Any) -> int:
    answer = request(
        HISTORY,
        agent=options.name,
        thread=options.thread,
        channel=options.channel,
        tag=options.tag,
        since_ms=options.since,
        grep=options.grep,
        limit=options.limit,
        answers=True,
        deadline=300.0,
        **output.speaker(),
    )
    table.messages(answer, options.json, "no messages", found=options.grep)
    if answer.get("only") and not options.json:
        output.note(f"turns were not searched: {answer['only']}")
    return 0


def show_verb(options: Any) -> int:
    if options.thread:
        found = request(HISTORY, about=options.id, answers=True, **output.speaker())
        table.conversation(found, options.json, "")
        return 0
    row = request(SHOW, id=options.id, **output.speaker())["message"]
    plain = ("id", "from", "from_kind", "body", "mode", "thread", "cause", "via", "noted")
    shown: Json = {name: row.get(name) for name in plain}
    shown |= {
        "to": [one["to"] for one in row["deliveries"]],
        "attributes": row.get("attributes", {}),
        "created_at": output.iso(row["created_ms"]),
        "deliveries": [output.shaped(one, _DELIVERY) for one in row["deliveries"]],
        "dispatches": row.get("dispatches", []),
        "evaluations": row.get("evaluations", []),
        "answers": row.get("answers", []),
    }
    shown |= {name: one for name, one in row.items() if name in ("turn", "session")}
    outside = row.get("outside")
    if outside is not None:
        shown |= {**outside, "occurred_at": output.iso(outside["occurred_ms"])}
        del shown["occurred_ms"]
    if options.json:
        output.as_json(shown)
        return 0
    names = ("id", "from", "via", "cause", "mode", "thread", "session", "turn")
    of_channel = ("channel", "source_id", "sender_type", "account", "peer", "content_type")
    lines = [(name, shown.get(name)) for name in names]
    lines.append(("created_at", table.when(row["created_ms"])))
    for one in shown["deliveries"]:
        proof = f", proof: {one['proof']}" if one["proof"] else ""
        tries = f", tries: {one['attempts']}" if one["attempts"] else ""
        decided = f", {one['decided']}" if one["decided"] else ""
        lines.append(("to", f"{one['to']}  {output.state_text(one)}{proof}{tries}{decided}"))
    if outside is not None:
        lines += [(name, shown[name]) for name in of_channel]
        for one in shown["files"]:
            lines.append(("file", f"{one['path']}  {one['name']}, {one['size']} bytes"))
    from relay.cli import door  # which imports much

    for _, event_lines in door.given("event_lines"):
        lines += event_lines(shown)
    lines += [("answer", f"{one['from']}  {output.state_text(one)}") for one in shown["answers"]]
    table.fields(lines)
    output.data("")
    output.lines(shown["body"] or "")
    for one in shown["answers"]:
        output.data("")
        output.data(f"{one['from']} answered:")
        output.lines("\n".join(f"  {line}" for line in one["text"].split("\n")))
    output.note_of_backslash(
        "\n".join([shown["body"] or "", *(one["text"] for one in shown["answers"])])
    )
    return 0
