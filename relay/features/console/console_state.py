"""What the console knows: agents, traffic, items, and what is chosen. Pure: rows of the stream in,
what there is to show out; every text that somebody else wrote is made visible on its way in.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay.cli.verbs import is_verb
from relay.core.errors import RelayError
from relay.core.visible import NEEDY, visible, visible_lines
from relay.ui.row_view import words

Json = dict[str, Any]

#: Lines of traffic that are kept; the oldest go. ``relay history`` and ^F have all of them.
LINES_MAX = 2000
#: Agents and items beyond these are not shown; who is there comes before who has gone.
AGENTS_MAX = 500
ITEMS_MAX = 200
#: How long an agent that has ended is still listed.
GONE_SHOWN_MS = 10 * 60_000
FINAL = ("seen", "failed", "cancelled")
NOT_ON_THE_WAY = (*FINAL, "held")
#: In an error's hint, a remark for the shell; and a command as a shell gets it.
_SHELL_ONLY = re.compile(r" \(relay [^()]*\)")
_SHELL = re.compile(r"(^|; )relay ([a-z-]+)")
#: Characters of one message that the console shows; ``/show ID`` prints all of it.
BODY_SHOWN = 8000


@dataclass(slots=True, eq=False)
class TrafficLine:
    """One thing that happened, and how far its deliveries are. Its texts are made visible."""

    at_ms: int
    kind: str  # message, turn, agent, owed (an answer), gap, note
    text: str
    sender: str = ""
    to: tuple[str, ...] = ()
    id: str = ""
    thread: str | None = None
    said_by: str = ""  # agent, person, relay or channel
    #: By receiver: the state of its delivery, and the reason for it.
    states: dict[str, tuple[str, str]] = field(default_factory=dict)
    n: int = 0  # its place in the traffic
    #: Who has answered it in a turn that has a line.
    answered: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sender = visible(self.sender)
        self.to = tuple(map(visible, self.to))
        if len(self.text) > BODY_SHOWN:
            self.text = f"{self.text[:BODY_SHOWN]} … (/show {self.id[-8:]})"
        self.text = visible_lines(self.text)

    def about(self, name: str) -> bool:
        """Whether ``name`` said it, gets it, or is who it is about."""
        return name == self.sender or name in self.to

    def state(self) -> str:
        """The state of all its deliveries together: of the one that is least far."""
        states = [state for state, _ in self.states.values()]
        for state in ("failed", "held", "waiting", "queued", "delivering", "submitted", "seen"):
            if state in states:
                return state
        return "cancelled" if states else "queued"

    def why(self) -> str:
        """Why deliveries do not go on, or failed; "" where they do."""
        stuck = (
            (name, state, reason)
            for name, (state, reason) in self.states.items()
            if state in ("failed", "held", "waiting") and reason
        )
        return "; ".join(f"{name}: {state} ({reason})" for name, state, reason in stuck)


class ConsoleState:
    """Everything that the console shows. ``me`` is the person's name."""

    def __init__(self, me: str, host: str) -> None:
        self.me = visible(me)
        self.host = visible(host)
        self.connected = True
        self.agents: dict[str, Json] = {}
        self.items: OrderedDict[str, Json] = OrderedDict()
        self.channels: list[str] = []
        #: Agents of other machines: their names, and since when their machine is away; None: here.
        self.elsewhere: list[tuple[str, int | None]] = []
        self.lines: deque[TrafficLine] = deque(maxlen=LINES_MAX)
        self._messages: dict[str, TrafficLine] = {}
        #: How many lines there were.
        self.count = 0
        #: Messages to the person that they have not seen yet: id -> its line.
        self.unread: dict[str, TrafficLine] = {}

        #: The agent that what is typed goes to, "" for nobody.
        self.chosen = ""
        #: The item that what is typed answers, "" for none.
        self.answering = ""
        self.typed = ""
        #: A message that nobody got, with whom it was for, as it can be typed again.
        self.unsent = ""
        #: What is beside the traffic: "", screen (of the chosen agent), help.
        self.beside = ""
        self.screen: list[list[tuple[str, str]]] = []  # rows of (style, text)
        self.screen_of = ""
        self.screen_why = ""  # why there is none
        self.pan = 0  # its columns that are left of the pane
        self.lift = 0  # its rows that are below the pane
        self.can_attach = False  # whether its terminal can be shown here
        #: What the listed agents have in their names, programs, folders and the like, "": all.
        self.wanted = ""
        self.only_chosen = False
        self.whole = False
        #: What was searched for, and what was found; None while nothing is.
        self.searched = ""
        self.found: list[TrafficLine] | None = None
        #: The newest line that is shown, None: of all; and rows of the traffic below the pane.
        self.until: int | None = None
        self.scrolled = 0
        #: Rows of the help or of an item that are above their page.
        self.page = 0
        #: Whether a page of an item goes on to the choice that arrows have chosen.
        self.follows = False
        #: What relay says to the person, one line, and whether it is a failure.
        self.notice = ""
        self.failed = False

    # -- rows in

    def apply(self, rows: Iterable[Json]) -> None:
        for row in rows:
            _TAKEN.get(row["what"], ConsoleState._of_feature)(self, row)

    def start_with(self, agents: list[Json], items: list[Json], history: list[Json]) -> None:
        """What there was before the stream; nothing that is known already comes twice."""
        self.agents.clear()
        self.items.clear()
        self.unread.clear()
        for row in agents:
            self._agent({**row, "agent": True}, news=False)
        for row in items:
            self._item({"item": row, "open": True})
        before = self.count
        for row in history:
            self._past(row)
        if self.count > before:
            # What came meanwhile, or in a gap, stands where it belongs.
            self.lines = deque(sorted(self.lines, key=lambda line: line.at_ms), LINES_MAX)
            first = self.count - len(self.lines) + 1
            for n, line in enumerate(self.lines, first):
                line.n = n
        if not self.chosen:
            self._choose_live()

    def take_elsewhere(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """The agents of other machines. Whether that is news."""
        found = [
            (visible(row["name"]), None if row["here"] else row["seen_ms"] or 0)
            for row in rows[:AGENTS_MAX]
        ]
        before, self.elsewhere = self.elsewhere, found
        return before != found

    def _past(self, row: Json) -> None:
        """A row of ``history``: one delivery of a message, or what a turn that answers one said."""
        if row["kind"] == "turn":
            self._past_turn(row)
            return
        to = [row["to"]] if row["to"] else []
        channel = (row.get("attributes") or {}).get("channel")
        line = self._line_of({**row, "to": to, "at_ms": row["created_ms"], "channel": channel})
        for name in map(visible, to):
            line.states[name] = str(row["state"]), visible(row.get("reason") or "")
            if name == self.me and row["state"] not in FINAL:
                self.unread[line.id] = line
            elif name == self.me:
                self.unread.pop(line.id, None)

    def _message(self, row: Json) -> None:
        if row["id"] in self._messages:
            return
        line = self._line_of(row)
        for name in map(visible, row["to"]):
            line.states[name] = "queued", ""
            if name == self.me:
                self.unread[line.id] = line
            elif name in self.agents:
                self.agents[name]["unread"] += 1

    def _line_of(self, row: Json) -> TrafficLine:
        """The line of a message, a new one or the one that it has."""
        channel = row.get("channel")
        to = (channel,) if channel and channel.startswith("#") else tuple(row["to"])
        known = self._messages.get(row["id"])
        if known is not None:
            known.to += tuple(one for one in map(visible, to) if one not in known.to)
            return known
        line = TrafficLine(
            row.get("at_ms") or row.get("created_ms") or 0,
            "message",
            row.get("body") or "",
            sender=row["from"] or "",
            to=to,
            id=row["id"],
            thread=row.get("thread"),
            said_by=row.get("from_kind") or "agent",
        )
        self._messages[row["id"]] = line
        self._add(line)
        return line

    def _delivery(self, row: Json) -> None:
        line = self._messages.get(row["id"])
        if line is None:
            return
        name, state = visible(row["to"]), str(row["state"])
        before = line.states.get(name, ("", ""))[0]
        line.states[name] = state, visible(row.get("reason") or "")
        if name == self.me:
            if state in FINAL:
                self.unread.pop(line.id, None)
        elif name in self.agents:
            # What is held waits for the person, not for the agent.
            more = (state not in NOT_ON_THE_WAY) - (before not in NOT_ON_THE_WAY)
            self.agents[name]["unread"] = max(0, self.agents[name]["unread"] + more)

    def _agent(self, row: Json, news: bool = True) -> None:
        name = visible(str(row["name"]))
        known = name in self.agents
        if not known and len(self.agents) >= AGENTS_MAX:
            if row["state"] == "gone":
                return
            ended = [one["name"] for one in self.agents.values() if one["state"] == "gone"]
            for one in ended[:1]:
                del self.agents[one]
        reason = visible(row.get("reason") or "")
        before = row.get("was") or (self.agents[name]["state"] if known else None)
        self.agents[name] = {**row, "name": name, "reason": reason, "unread": row.get("unread", 0)}
        joins = before in (None, "gone") or row["state"] == "gone"
        if news and before != row["state"] and (joins or row["state"] in NEEDY):
            self._add_row("agent", {**row, "was": before}, name)
        if news and not self.chosen:
            self._choose_live()
        elif news and name == self.chosen and row["state"] == "gone" and before != "gone":
            self._chosen_ended()

    def _choose_live(self) -> None:
        """Choose an agent that runs, first one that needs somebody; none where none runs."""
        live = (row["name"] for row in self.listed() if row["state"] != "gone")
        self.chosen = next(live, "")

    def _chosen_ended(self) -> None:
        name = self.chosen
        if self.typed or self.answering or self.only_chosen or self.beside == "screen":
            # Nobody else may get what is being typed, and what is looked at stays.
            self.say(f"{name} has ended; a message to {name} waits until it is back")
            return
        self._choose_live()
        self.say(f"{name} has ended" + (f"; now to {self.chosen}" if self.chosen else ""))

    def _item(self, row: Json) -> None:
        item: Json = row["item"]
        if row["open"]:
            self.items[item["id"]] = item
            while len(self.items) > ITEMS_MAX:
                self.items.popitem(last=False)
            return
        # What is being typed for it stays an answer to it: a message it must not become.
        known = self.items.pop(item["id"], None)
        if known is not None and row.get("answer"):
            self._add_row("note", {**row, "by": row.get("by") or self.me}, item["agent"])

    def _connection(self, row: Json) -> None:
        self.connected = bool(row["up"])

    def _turn(self, row: Json) -> None:
        for id_ in row["ids"]:
            if (asked := self._messages.get(id_)) is not None:
                asked.answered.add(row["agent"])
        self._add_row("turn", row, row["agent"])

    def _past_turn(self, row: Json) -> None:
        asked = self._messages.get(row["cause"])
        if asked is None or row["from"] in asked.answered:
            return
        turn, at_ms = row["meta"], row["created_ms"]
        tokens = {"input": turn["tokens_in"], "output": turn["tokens_out"]}
        shown = {"what": "turn", "agent": row["from"], "ids": [row["cause"]], "text": row["body"]}
        shown |= {
            "at_ms": at_ms,
            "ended_ms": at_ms,
            "usage": tokens if any(tokens.values()) else None,
        }
        self._turn({**shown, "state": turn["state"], "started_ms": turn["started_ms"]})

    def _owed(self, row: Json) -> None:
        self._add_row("owed", row, row["to"], (row["from"],))

    def _gap(self, row: Json) -> None:
        self._add_row("gap", row)

    def _of_feature(self, row: Json) -> None:
        self._add_row("note", row, "", tuple(map(str, row.get("names") or ())))

    def _add_row(self, kind: str, row: Json, sender: str = "", to: tuple[str, ...] = ()) -> None:
        """A line that looks as the row does everywhere."""
        self._add(TrafficLine(row.get("at_ms") or 0, kind, words(row), sender=sender, to=to))

    def _add(self, line: TrafficLine) -> None:
        if len(self.lines) == LINES_MAX:
            oldest = self.lines[0]
            self._messages.pop(oldest.id, None)
        self.count += 1
        line.n = self.count
        self.lines.append(line)

    # -- what there is to show

    def listed(self, now_ms: int | None = None) -> list[Json]:
        """The agents in the order in which they are listed: who needs somebody, who is there, who
        has just gone."""
        shown = [
            row
            for row in self._wanted()
            if row["state"] != "gone"
            or row["name"] == self.chosen
            or (now_ms is not None and now_ms - (row.get("since_ms") or 0) < GONE_SHOWN_MS)
        ]
        asked = {item["agent"] for item in self.items.values()}
        return sorted(
            shown or self._wanted(),
            key=lambda row: (
                row["state"] == "gone",
                not (row["state"] in NEEDY or row["name"] in asked),
                # agent-2 before agent-10
                re.sub(r"\d+", lambda number: number[0].zfill(9), row["name"].lower()),
            ),
        )

    def _wanted(self) -> list[Json]:
        """The agents that have each of the words that are ``wanted``."""
        words = self.wanted.lower().split()
        return [row for row in self.agents.values() if all(one in about(row) for one in words)]

    def want(self, words: str) -> None:
        """List only the agents that have these words; one of them is chosen."""
        self.wanted = visible(words.strip())
        names = [row["name"] for row in self.listed()]
        if names and self.chosen not in names:
            self.chosen = names[0]

    def traffic(self) -> Iterable[TrafficLine]:
        """The lines that the pane shows, the newest first."""
        lines = reversed(self.lines if self.found is None else self.found)
        for line in lines:
            if self.until is not None and line.n > self.until:
                continue
            if self.only_chosen and self.chosen and not line.about(self.chosen):
                continue
            yield line

    def receiver(self) -> str:
        """Who gets what is typed, as the prompt names them."""
        ended = self.agents.get(self.chosen, {}).get("state") == "gone"
        return f"{self.chosen} (gone)" if ended else self.chosen

    def newer(self) -> int:
        """How many lines came since the person scrolled up."""
        return 0 if self.until is None else self.count - self.until

    def message(self, end_of_id: str) -> TrafficLine | None:
        """The message with this id, or the newest that ends with it."""
        if end_of_id in self._messages:
            return self._messages[end_of_id]
        ends = (one for one in reversed(self.lines) if one.id.endswith(end_of_id.upper()))
        return next(ends, None) if end_of_id else None

    def last_to_me(self) -> TrafficLine | None:
        """The newest message to the person, but for relay's own."""
        mine = (
            line
            for line in reversed(self.lines)
            if line.kind == "message" and self.me in line.states and line.said_by != "relay"
        )
        return next(mine, None)

    def item_of(self, word: str) -> Json | None:
        """The open item with this id, the end of one, or the oldest of the agent of that name.

        None also where it is both: an agent that has such a name must not get the yes that
        another's item was to get."""
        if word in self.items:
            return self.items[word]
        ends = [item for id_, item in self.items.items() if len(word) >= 4 and id_.endswith(word)]
        for item in self.items.values():
            if visible(item["agent"]).lower() == word.lower():
                return item if all(one["agent"] == item["agent"] for one in ends) else None
        return ends[0] if len(ends) == 1 else None

    # -- what the person does to the view

    def choose(self, step: int, now_ms: int) -> None:
        """The next agent of the list, or the one before; at its ends it stays."""
        names = [row["name"] for row in self.listed(now_ms)]
        if not names:
            return
        at = names.index(self.chosen) + step if self.chosen in names else 0
        self.chosen = names[max(0, min(at, len(names) - 1))]
        self.lift = 0

    def answer_next(self) -> None:
        """Answer the oldest item, then the next one, and after the last one none."""
        ids = list(self.items)
        at = ids.index(self.answering) + 1 if self.answering in ids else 0
        self.answer(ids[at] if at < len(ids) else "")

    def answer(self, item_id: str) -> None:
        """Show this item in full; what is typed answers it, and after it goes to its agent. "":
        none."""
        self.answering, self.page, self.follows = item_id, 0, False
        name = visible(self.items[item_id]["agent"]) if item_id else ""
        if name in self.agents:
            self.chosen = name

    def choice(self, typed: str, step: int) -> str:
        """``typed`` with the next choice of the item that is answered in it, or the one before; ""
        where there is none, or where something else is typed."""
        item = self.items.get(self.answering, {})
        keys = [str(one["key"]) for one in item.get("choices") or ()]
        key, space, note = typed.partition(" ")
        if not keys or (typed and key not in keys):
            return ""
        focus = item.get("chosen")
        at = keys.index(key) if typed else -1 if focus is None else focus
        return keys[max(0, min(at + step, len(keys) - 1))] + space + note

    def is_choice(self, typed: str) -> bool:
        """Whether ``typed`` is a choice of the item that is answered, and nothing more."""
        choices = self.items.get(self.answering, {}).get("choices") or ()
        return typed.strip() in {str(one["key"]) for one in choices}

    def open_chosen(self) -> None:
        """What the chosen agent asks, or else its screen."""
        if self.answering or not self.chosen:
            return
        item = self.item_of(self.chosen)
        if item is None:
            self.show_screen()
        else:
            self.answer(item["id"])

    def show_screen(self, again: bool = False) -> None:
        """The screen of the chosen agent; hide it where it is shown, unless ``again``."""
        self.answering, self.lift = "", 0
        self.beside = "" if self.beside == "screen" and not again else "screen"

    def scroll(self, rows: int) -> None:
        """Up by so many rows of what can be scrolled, or down; at its end the traffic is live."""
        if self.answering or self.beside == "help":
            self.page, self.follows = max(0, self.page - rows), False
            return
        if self.until is None and rows > 0:
            self.until = self.count
        self.scrolled = max(0, self.scrolled + rows)
        if not self.scrolled:
            self.until = None

    def newest(self) -> None:
        """Show the newest traffic again."""
        self.until, self.scrolled = None, 0

    def search(self, sought: str, rows: list[Json] | None) -> None:
        """Show the rows of ``history`` that were found; None: the live traffic again."""
        self.searched = visible(sought)
        self.newest()
        if rows is None:
            self.found = None
            return
        other = ConsoleState(self.me, self.host)
        for row in rows:
            other._past(row)
        self.found = list(other.lines)

    def back(self) -> None:
        """One step back to the live traffic."""
        if self.answering:
            self.answering = ""
        elif self.beside == "help":
            self.beside = ""
        elif self.found is not None:
            self.search("", None)
        elif self.scrolled or self.until is not None:
            self.newest()
        elif self.beside:
            self.beside = ""
        elif self.wanted:
            self.wanted = ""
        else:
            self.only_chosen = self.whole = False
        self.say("")

    def say(self, text: str, failed: bool = False) -> None:
        """Say one line to the person, above the prompt."""
        self.notice, self.failed = visible(" ".join(text.split())), failed

    def tell(self, error: RelayError) -> None:
        """Say what went wrong, and what to do next."""
        hint = _SHELL_ONLY.sub("", error.hint or "")
        hint = _SHELL.sub(lambda at: f"{at[1]}/{at[2]}" if is_verb(at[2]) else at[0], hint)
        self.say(f"{error.message}; {hint}" if hint else error.message, failed=True)


def about(row: Json) -> str:
    """What an agent is listed by, in small letters."""
    home = str(row.get("cwd") or "").rsplit("/", 1)[-1]
    names = (row["name"], row["state"], row.get("kind"), home, row.get("machine"))
    joined = (*(row.get("roles") or ()), *(row.get("channels") or ()))
    return " ".join(map(str, filter(None, (*names, *joined)))).lower()


_TAKEN = {
    "message": ConsoleState._message,
    "delivery": ConsoleState._delivery,
    "agent": ConsoleState._agent,
    "item": ConsoleState._item,
    "turn": ConsoleState._turn,
    "obligation": ConsoleState._owed,
    "gap": ConsoleState._gap,
    "connection": ConsoleState._connection,
}
