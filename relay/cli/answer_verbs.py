"""The verbs for looking at an agent from elsewhere, and for answering what it asks."""

from __future__ import annotations

import sys
import time

from relay.broker.client import request, request_at
from relay.cli import output, table
from relay.cli.parser import Options, Parser, count
from relay.cli.verbs import verb
from relay.core.errors import EXIT_NOT_FOUND, RelayError, UsageError
from relay.core.paths import Home
from relay.core.processes import wrapped
from relay.core.visible import cells, cut, visible, without_gaps
from relay.protocol.agent_ops import AGENTS, ASK, AgentRow
from relay.protocol.item_ops import ITEM_ANSWER, ITEMS, Item, is_yes_or_no, left_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.cli.output import Json

#: Seconds that an agent's session may take to answer.
_PATIENCE = 10.0
#: Seconds that an answer may take until it is typed.
_TYPING = 50.0
#: Seconds that a session may take to be back, and between two looks: that has no event.
_BACK, _LOOK = 20.0, 0.1
#: What each line of an agent's own words begins with, so that none looks like a line of relay's.
_QUOTED = "  | "
#: Columns that a line of them keeps, however narrow the terminal is.
_LEAST = 20


def add(verbs: Parser) -> None:
    peek = verb(verbs, "peek", "relay peek Bob\n  relay peek Bob --color")
    peek.add_argument("name", metavar="NAME", offers="names", help="the agent")
    peek.add_argument("--color", action="store_true", help="with the colours that the agent uses")
    peek.add_argument("--json", action="store_true", help="print JSON")
    peek.set_defaults(run=peek_verb)

    transcript = verb(verbs, "transcript", "relay transcript Bob\n  relay transcript Bob -n 1")
    transcript.add_argument("name", metavar="NAME", offers="names", help="the agent")
    transcript.add_argument(
        "--limit", "-n", dest="turns", type=count, default=5, metavar="N", help="how many turns (5)"
    )
    transcript.add_argument("--json", action="store_true", help="print JSON")
    transcript.set_defaults(run=transcript_verb)

    items = verb(verbs, "items", "relay items\n  relay items Bob --json\n  relay items @server")
    items.add_argument(
        "names", nargs="*", metavar="NAME", offers="names", help="only of these agents"
    )
    items.add_argument("--json", action="store_true", help="print JSON")
    items.set_defaults(run=items_verb)

    answer = verb(
        verbs,
        "answer",
        "relay answer Bob 2\n  relay answer 4QXK 7Z2M yes\n"
        '  relay answer 4QXK no --note "not on a Friday"\n  relay answer --all no',
        description="Answer a question, an approval or a held message. The answer to a question is"
        " typed at the agent only while it still asks the very same thing.",
    )
    answer.add_argument(
        "which",
        nargs="*",
        metavar="ID|NAME",
        offers="names",
        help="the ends of the items' ids, or the agent",
    )
    answer.add_argument("choice", metavar="CHOICE", help="its number, yes, no, or its words")
    answer.add_argument(
        "--all",
        action="store_true",
        help="all approvals and held messages (not questions on screens: their choices are the"
        " agents'); with names, those of these agents",
    )
    answer.add_argument(
        "--held",
        action="store_true",
        help="all held messages; with names, those from or to these agents",
    )
    answer.add_argument("--note", metavar="TEXT", help="a remark, which the agent is told")
    answer.add_argument("--json", action="store_true", help="print JSON")
    answer.set_defaults(run=answer_verb)

    reload = verb(verbs, "reload", "relay reload Bob Carol\n  relay reload --all")
    reload.add_argument("names", nargs="*", metavar="NAME", offers="names", help="the agents")
    reload.add_argument("--all", action="store_true", help="all agents that run")
    reload.set_defaults(run=reload_verb)
    interrupt = verb(verbs, "interrupt", "relay interrupt Bob")
    interrupt.add_argument("names", nargs="+", metavar="NAME", offers="names", help="the agents")
    interrupt.add_argument("--json", action="store_true", help="print JSON")
    interrupt.set_defaults(run=interrupt_verb)


def peek_verb(options: Options) -> int:
    """``relay peek``: the rows of the agent's screen, without what is blank below."""
    shown = ask(options.name, "screen", {"styled": options.color})
    if options.json:
        output.as_json(shown)
    elif options.color:
        rows = _without_end(shown["spans"])
        output.styled([[(cells(text), style) for text, style in row] for row in rows])
    else:
        rows = [cells(row).rstrip() for row in _without_end(shown["lines"])]
        output.lines("\n".join(_for_terminal(rows)))
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
            at = table.when(started)
            output.data(f"{at}  {state}  {turn.get('model') or ''}".rstrip())
        if turn["prompt"]:
            output.lines("\n".join(f"> {line}" for line in turn["prompt"].split("\n")))
        output.lines(turn["text"] + "\n")
    if not turns:
        output.note(
            f"{options.name} has said nothing since it was started; relay search finds more"
        )
    return 0


def items_verb(options: Options) -> int:
    """``relay items``: 3 where it is asked for agents that ask nothing."""
    rows: list[Item] = []
    more = False
    by_machine = _by_machine(options.names or [""])
    for machine, names in by_machine.items():
        answer = request_at(machine, ITEMS, **output.speaker())
        wanted = {name.lower() for name in names if name}
        some = (one for one in answer["rows"] if not wanted or one["agent"].lower() in wanted)
        rows += [_elsewhere(one, machine) for one in some]
        more |= answer["more"]
    if options.json:
        output.as_json(rows)
    elif rows:
        show_items(rows)
        where = next((f"@{machine}" for machine in by_machine if machine), "")
        output.note(f"answer with: relay answer NAME{where} CHOICE, or its ID instead of NAME")
    else:
        of = f" of {', '.join(options.names)}" if options.names else ""
        output.note(f"nothing{of} waits for you")
    if more:
        output.note("more wait; they are listed once you have answered some of these")
    return EXIT_NOT_FOUND if options.names and not rows else 0


def show_items(rows: list[Item]) -> None:
    """What waits, each whole and with its choices: nobody says yes to what they have not seen."""
    now_ms, width = time.time_ns() // 1_000_000, table.columns()
    for n, item in enumerate(rows):
        if n:
            output.data("")
        left = item["until_ms"] and max(0, item["until_ms"] - now_ms) // 1000
        until = "" if left is None else f"  ({left} s left)"
        output.data(f"{item['agent']}  {item['kind']}  {item['id'][-8:]}{until}")
        for line in item.get("about") or ():  # a broker of an older relay has none
            _print_whole("  ", line, width)
        for line in str(item["what"]).split("\n"):
            _print_whole(_QUOTED, line, width)
        for at, one in enumerate(item["choices"]):
            mark = ">" if at == item["chosen"] else " "
            _print_whole(f"  {mark} ", f"{one['key']}: {one['label']}", width, "    ")


def show_questions(names: list[str]) -> bool:
    """Show what these agents ask now; whether they ask anything. On a terminal the person answers
    it there, or later; elsewhere it is said how. Nothing is shown where an agent asks for it."""
    if wrapped():
        return False
    lower = {name.lower() for name in names}
    asked = set[str]()
    here = sys.stdin.isatty() and sys.stdout.isatty()
    while rows := [
        item
        for item in request(ITEMS)["rows"]
        if item["agent"].lower() in lower and item["id"] not in asked
    ]:
        item = rows[0]  # an answer may be followed by another question
        asked.add(item["id"])
        show_items([item])
        keys = " or ".join(one["key"] for one in item["choices"]) or "CHOICE"
        if not (here and _answered_here(item, keys)):
            output.note(f"{item['agent']} asks: relay answer {item['agent']} {keys}")
    return bool(asked)


def _answered_here(item: Item, keys: str) -> bool:
    """Whether the person has answered it at this terminal. Enter alone leaves it for later."""
    while True:
        choice = output.asked(f"{item['agent']} asks: {keys}? (Enter: later)")
        if not choice:
            sys.stderr.write("\n" if choice is None else "")
            return False
        try:
            answer = request(ITEM_ANSWER, deadline=_TYPING, id=item["id"], choice=choice)
        except UsageError as error:  # no such choice
            output.note(f"relay: {error.message}")
            continue
        except RelayError as error:  # it is over, or was not taken
            output.error(error, in_json=False)
            return False
        _tell_answer(answer)
        return True


def _tell_answer(answer: Any, code: str = "") -> None:
    """What was answered, and whether the question has left the screen."""
    agent, label = answer["item"]["agent"], answer["choice"]["label"]
    if answer["item"]["kind"] == "held" and (count := answer["item"]["details"]["count"]) > 1:
        label += f" ({count:,} messages)"
    output.data(f"{code}{agent}: {label}")
    if answer.get("gone"):
        output.note("answered: the question is gone")
    elif answer.get("gone") is False:
        output.note(f"typed, but its screen still shows a question: relay peek {agent}")


def _print_whole(before: str, line: str, width: int | None, again: str = "") -> None:
    """A line, broken where the terminal would break it: what comes then could look like relay's.
    ``again`` stands before the other rows."""
    shown = visible(line)
    room = max(_LEAST, width - len(before)) if width else len(shown) or 1
    while len(shown) > room:
        end = shown.rfind(" ", 0, room) + 1 or room  # between words, where there are any
        output.data(before + shown[:end])
        before, shown = again or before, shown[end:]
    output.data(before + shown)


def answer_verb(options: Options) -> int:
    """``relay answer``: 4 where the question is gone or was not taken."""
    several = options.all or options.held
    by_machine = _by_machine(options.which or [""])
    if len(by_machine) > 1:
        raise UsageError("answer one machine at a time")
    [(machine, parts)] = by_machine.items()
    names = [part for part in parts if part]
    if not (names or several):
        raise UsageError(
            "an answer needs an agent (or an id) and a choice",
            hint="for example: relay answer Bob 1; relay items shows what waits",
        )
    if any(name.lower() in ("yes", "no") for name in names):
        raise UsageError("the choice comes last", hint="use --note TEXT for a remark")
    single = len(names) == 1 and not several
    answers: list[Any] = []
    left: list[Item] = []
    more = True
    while more:  # one answer lists a limited number
        which, more = names, False
        if several:
            listed = request_at(machine, ITEMS, **output.speaker())
            wanted = _of_all(options, names, listed["rows"])
            left = [] if options.held else [one for one in wanted if not is_yes_or_no(one)]
            which = [one["id"] for one in wanted if one not in left]
            more = bool(which and listed["more"])
        if which:
            said = request_at(
                machine,
                ITEM_ANSWER,
                deadline=_TYPING,
                id=which[0] if single else which,
                choice=options.choice,
                note=options.note,
                **output.speaker(),
            )
            answers += [said] if single else said["answers"]
    for one in answers:
        one["item"] = _elsewhere(one["item"], machine)
    if options.json:
        output.as_json(answers[0] if single else answers)
        return 0
    for one in answers:
        _tell_answer(one, "" if single else f"{one['item']['id'][-8:]}  ")
    if why := left_out(_elsewhere(one, machine) for one in left):
        output.note(f"{visible(why)}; answer each by itself: relay items")
    elif not answers:
        output.note("nothing is held" if options.held else "no approval or held message waits")
    return 0


def reload_verb(options: Options) -> int:
    """``relay reload``: 0 once the next sessions are there."""
    home = Home.from_env()
    rows = {row["name"].lower(): row for row in request(AGENTS)["agents"]}
    names = options.names
    if options.all:
        names = [row["name"] for row in rows.values() if row["pid"] is not None]
    elif not names:
        raise UsageError("say which agents to reload", hint="relay reload NAME, or --all")
    worst = 0
    for name in names:
        try:
            _reload(home, name, rows.get(name.lower()))
        except RelayError as error:
            if len(names) == 1:
                raise
            output.note(f"relay: {error.line}")
            worst = error.exit_status
            continue
        output.note(f"{name} keeps running, with the current configuration")
    if not names:
        output.note("no agent runs")
    return worst


def _reload(home: Home, name: str, row: AgentRow | None) -> None:
    """Have the next session take over. Raises RelayError, with the session as it was."""
    from relay.config.trust import NEW, TRUSTED, candidates  # most of these verbs do without

    there = row is not None and row["pid"] is not None
    for file in candidates(home, row["cwd"]) if row and row["cwd"] else ():
        if file.state not in (TRUSTED, NEW):  # the next session would have no configuration
            raise RelayError(file.notice, hint=f"until then {name} keeps the configuration it has")
    if there:
        _wait_for_session(name)
    try:
        ask(name, "reload", {})
    except RelayError as error:
        if error.code != "session_gone":
            raise
    _wait_for_session(name)


def _wait_for_session(name: str) -> None:
    end = time.monotonic() + _BACK
    while True:
        try:
            ask(name, "screen", {})
            return
        except RelayError as error:
            if error.code not in ("no_session", "session_gone") or time.monotonic() > end:
                raise
        time.sleep(_LOOK)


def interrupt_verb(options: Options) -> int:
    """``relay interrupt``: 0 once the turns are over."""
    said = []
    for name in options.names:
        said.append(ask(name, "interrupt", {}, patience=20.0))
        if not options.json:
            output.data(f"the turn of {name} has ended")
    if options.json:
        output.as_json(said[0] if len(said) == 1 else said)
    return 0


def _by_machine(names: list[str]) -> dict[str, list[str]]:
    """``Bob@server`` and ``@server`` (all there) by machine; "": this one, where messages of agents
    elsewhere may be held, too."""
    here = set[str]()
    if any("@" in name for name in names):
        here = {item["agent"].lower() for item in request(ITEMS, **output.speaker())["rows"]}
    by_machine: dict[str, list[str]] = {}
    for name in names:
        before, _, machine = (name, "", "") if name.lower() in here else name.partition("@")
        by_machine.setdefault(machine, []).append(before)
    return by_machine


def _elsewhere(item: Item, machine: str) -> Item:
    return {**item, "agent": f"{item['agent']}@{machine}"} if machine else item


def _of_all(options: Options, names: list[str], rows: list[Item]) -> list[Item]:
    """What waits, of these agents or of all; ``--held``: only held messages."""
    lower = {name.lower() for name in names}
    items = []
    for item in rows:
        to = (item.get("details") or {}).get("to") or () if item["kind"] == "held" else ()
        between = {item["agent"].lower(), *(one.lower() for one in to)}
        wanted = item["kind"] == "held" or not options.held
        if wanted and (not lower or lower & between):
            items.append(item)
    return items


def ask(name: str, kind: str, asked: Json, patience: float = _PATIENCE) -> Json:
    """What the agent's session answers."""
    agent, _, machine = name.partition("@")
    said = request_at(
        machine,
        ASK,
        deadline=patience + 5,
        agent=agent,
        kind=kind,
        request=asked,
        timeout=patience,
        **output.speaker(),
    )
    found: Json = said["response"]
    return found


def _for_terminal(rows: list[str]) -> list[str]:
    """On a terminal: rules that are no wider than it is, and one blank row for the gap above an
    input line at the screen's bottom."""
    columns = table.columns()
    if columns is None:
        return rows
    rows = [cut(row, columns, "") if len(set(row.strip())) == 1 else row for row in rows]
    return [rows[n] for n in without_gaps(rows)]


def _without_end(rows: list[Any]) -> list[Any]:
    """The rows up to the last one with something in it."""
    while rows and not rows[-1]:
        rows = rows[:-1]
    return rows
