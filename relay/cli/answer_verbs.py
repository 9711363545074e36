"""The verbs for looking at an agent from elsewhere, and for answering what it asks."""

from __future__ import annotations

from relay.broker.client import connect, request
from relay.cli import output
from relay.cli.parser import Options, Parser, count
from relay.cli.verbs import verb
from relay.core.errors import EXIT_NOT_FOUND, NotFound, UsageError
from relay.core.paths import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.cli.output import Json

#: Seconds that an agent's session may take to answer.
_PATIENCE = 10.0
#: Seconds that an answer may take until it is typed.
_TYPING = 50.0


def add(verbs: Parser) -> None:
    """Declare the verbs."""
    peek = verb(verbs, "peek", "relay peek Bob\n  relay peek Bob --color")
    peek.add_argument("name", metavar="NAME", help="the agent")
    peek.add_argument("--color", action="store_true", help="with the colours that the agent uses")
    peek.add_argument("--json", action="store_true", help="print JSON")
    peek.set_defaults(run=peek_verb)

    transcript = verb(verbs, "transcript", "relay transcript Bob\n  relay transcript Bob -n 1")
    transcript.add_argument("name", metavar="NAME", help="the agent")
    transcript.add_argument(
        "-n", dest="turns", type=count, default=5, metavar="N", help="how many turns (5)"
    )
    transcript.add_argument("--json", action="store_true", help="print JSON")
    transcript.set_defaults(run=transcript_verb)

    items = verb(verbs, "items", "relay items\n  relay items Bob --json")
    items.add_argument("name", nargs="?", metavar="NAME", help="only of this agent")
    items.add_argument("--json", action="store_true", help="print JSON")
    items.set_defaults(run=items_verb)

    answer = verb(
        verbs,
        "answer",
        'relay answer Bob 2\n  relay answer Bob yes\n  relay answer 4QXK no "not on a Friday"',
        description="Answer a question, an approval or a held message. Of a question the choice is"
        " typed at the agent, if the very same one still stands there.",
    )
    answer.add_argument("which", metavar="NAME", help="the agent, or the end of the item's id")
    answer.add_argument("choice", metavar="CHOICE", help="its number, yes, no, or its words")
    answer.add_argument("note", nargs="?", metavar="WHY", help="a remark, for an approval")
    answer.add_argument("--json", action="store_true", help="print JSON")
    answer.set_defaults(run=answer_verb)

    interrupt = verb(verbs, "interrupt", "relay interrupt Bob")
    interrupt.add_argument("name", metavar="NAME", help="the agent")
    interrupt.add_argument("--json", action="store_true", help="print JSON")
    interrupt.set_defaults(run=interrupt_verb)


def peek_verb(options: Options) -> int:
    """``relay peek``: the rows of the agent's screen, without what is blank below."""
    shown = ask(options.name, "screen", {"styled": options.color})
    if options.json:
        output.as_json(shown)
    elif options.color:
        output.styled(_without_end(shown["spans"]))
    else:
        output.lines("\n".join(_without_end(shown["lines"])))
    return 0


def transcript_verb(options: Options) -> int:
    """``relay transcript``: the oldest first."""
    turns: list[Json] = ask(options.name, "transcript", {"count": options.turns})["turns"]
    if options.json:
        output.as_json(turns)
        return 0
    for turn in turns:
        if started := turn.get("started_ms"):
            state = turn.get("state") or "?"
            output.data(f"{output.iso(started)}  {state}  {turn.get('model') or ''}".rstrip())
        if turn["prompt"]:
            output.lines("\n".join(f"> {line}" for line in turn["prompt"].split("\n")))
        output.lines(turn["text"] + "\n")
    if not turns:
        output.note(f"{options.name} has not said anything yet")
    return 0


def items_verb(options: Options) -> int:
    """``relay items``: 3 where it is asked for an agent that asks nothing."""
    rows = _items(options.name)
    if options.json:
        output.as_json(rows)
    elif rows:
        show_items(rows)
    else:
        output.note("nothing waits for you")
    return EXIT_NOT_FOUND if options.name and not rows else 0


def show_items(rows: list[Json]) -> None:
    """What waits, each with its choices and the command that answers it."""
    for n, item in enumerate(rows):
        if n:
            output.data("")
        output.data(f"{item['agent']}  {item['kind']}  {item['id'][-8:]}")
        for line in str(item["what"]).split("\n"):
            output.data(f"  {line}")
        for at, one in enumerate(item["choices"]):
            mark = ">" if at == item["chosen"] else " "
            output.data(f"  {mark} {one['key']}: {one['label']}")


def answer_verb(options: Options) -> int:
    """``relay answer``: 4 where the question is gone or was not taken."""
    id_ = _item_of(options.which)
    fields: Json = {"id": id_, "choice": options.choice, "note": options.note}
    said = request("item_answer", deadline=_TYPING, **fields)
    if options.json:
        output.as_json({key: one for key, one in said.items() if key not in ("n", "ok")})
    else:
        item, choice = said["item"], said["choice"]
        output.data(f"{item['agent']}: {choice['label']}")
        if said.get("gone") is False:
            output.note(f"typed, but something still stands there: relay peek {item['agent']}")
    return 0


def interrupt_verb(options: Options) -> int:
    """``relay interrupt``: 0 once the turn is over."""
    said = ask(options.name, "interrupt", {}, patience=20.0)
    if options.json:
        output.as_json(said)
    else:
        output.data(f"the turn of {options.name} has ended")
    return 0


def _items(name: str | None) -> list[Json]:
    rows: list[Json] = request("items")["rows"]
    return [one for one in rows if name is None or one["agent"].lower() == name.lower()]


def _item_of(which: str) -> str:
    """The id of what is to be answered. Raises UsageError where several are meant."""
    rows = _items(None)
    theirs = [one for one in rows if one["agent"].lower() == which.lower()]
    if len(theirs) > 1:
        ids = ", ".join(one["id"][-8:] for one in theirs)
        raise UsageError(f"{which} waits for {len(theirs)} answers: {ids}", hint="relay items")
    if theirs:
        return str(theirs[0]["id"])
    if not any(one["id"].upper().endswith(which.upper()) for one in rows):
        raise NotFound(f"{which} asks nothing of you now", hint="what waits: relay items")
    return which


def ask(name: str, kind: str, asked: Json, patience: float = _PATIENCE) -> Json:
    """What the agent's session answers."""
    with connect(Home.from_env()) as client:
        said = client.request(
            "ask",
            deadline=patience + 5,
            agent=name,
            kind=kind,
            request=asked,
            timeout=patience,
            **output.speaker(),
        )
    found: Json = said["response"]
    return found


def _without_end(rows: list[Any]) -> list[Any]:
    """The rows up to the last one with something in it."""
    while rows and not rows[-1]:
        rows = rows[:-1]
    return rows
