"""The verbs watch and wait: what happens as it happens, and waiting until something is proven."""

from __future__ import annotations

import sys
import time

from relay.broker.client import BrokerClient, connect, no_agent
from relay.cli import output
from relay.cli.parser import Parser, wait_seconds
from relay.cli.verbs import verb
from relay.core import signals
from relay.core.errors import EXIT_NOT_DELIVERED, EXIT_TIMEOUT, NotFound, RelayError
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENTS, ASK
from relay.protocol.broker import WATCHED
from relay.protocol.message_ops import HISTORY, SENT, SHOW, WAIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.cli.output import Json
    from relay.protocol.message_ops import FullMessage

#: What ``relay wait`` knows.
CONDITIONS = ("idle", "blocked", "reply", "seen", "gone")
#: How long it waits, if nothing else is said. Seconds.
_WAIT = "600"
#: Seconds of rest after a message was seen, after which an agent that tells of no turn is taken
#: to be done with it.
_RESTS = 10.0
#: Seconds of rest in which what an agent has said in its turn still comes in, and turns that are
#: looked through for the one that took a message.
_SETTLES, _TURNS = 2.0, 20


def add(verbs: Parser) -> None:
    watch = verb(
        verbs,
        "watch",
        "relay watch\n  relay watch Bob Carol\n"
        "  relay watch --kinds message,delivery | jq .   (JSON lines in a pipe)",
    )
    watch.add_argument(
        "names", nargs="*", metavar="NAME", offers="names", help="only what concerns these"
    )
    watch.add_argument(
        "--kinds",
        metavar="K",
        help=f"only these, separated by commas: {', '.join(sorted(WATCHED))}, and what features"
        " add",
    )
    watch.add_argument(
        "--for", dest="seconds", type=wait_seconds, metavar="S", help="end after S seconds"
    )
    watch.add_argument("--brief", action="store_true", help="only messages, and what needs you")
    watch.add_argument("--full", action="store_true", help="everything, on a terminal, too")
    watch.add_argument("--text", action="store_true", help="readable lines in a pipe, too")
    watch.add_argument("--json", action="store_true", help="print JSON lines on a terminal, too")
    watch.set_defaults(run=watch_verb)

    wait = verb(
        verbs,
        "wait",
        "relay wait Bob idle\n  relay wait Bob reply --timeout 300\n  relay wait Bob Carol gone",
        "Wait for an agent. idle: it is done with your last message; reply: it has answered that;"
        " seen: it has read that; blocked: it waits for you; gone: it has ended. The exit status"
        " is 0 when that has happened, 4 when it no longer can, 5 when the time is up.",
    )
    wait.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        offers="names",
        help="the agents; WHAT must hold for each of them",
    )
    wait.add_argument("what", choices=CONDITIONS, metavar="WHAT", help=", ".join(CONDITIONS))
    wait.add_argument("--id", metavar="ID", help="which message (default: your last to it)")
    wait.add_argument(
        "--timeout",
        type=wait_seconds,
        default=float(_WAIT),
        metavar="S",
        help=f"at most S seconds ({_WAIT})",
    )
    wait.add_argument("--json", action="store_true", help="print JSON")
    wait.set_defaults(run=wait_verb)


# -- watch


def watch_verb(options: Any) -> int:
    from relay.ui.row_view import matters
    from relay.ui.watching import Watching

    # Python would hear of a Ctrl-C that comes just before it waits only after it has waited.
    signals.plain_interrupt()
    kinds = [one.strip() for one in (options.kinds or "").split(",") if one.strip()]
    terminal = sys.stdout.isatty()
    in_json = options.json or not (options.text or terminal)
    brief = options.brief or (terminal and not in_json and not options.full and not kinds)
    with Watching(Home.from_env(), kinds=kinds, agents=options.names) as watching:
        if not in_json:
            more = "; --full shows every change" if brief else ""
            output.note(f"watching; Ctrl-C ends it{more}")
        for row in watching.rows(options.seconds):
            if brief and not matters(row):
                continue
            if in_json:
                at = {"seq": row.pop("seq"), "at": output.iso(row.pop("at_ms"))}
                output.as_json_line(at | row)
                continue
            if row.get("again"):
                continue
            output.toned(_line(row))
            output.flush()
    return 0


def _line(row: Json) -> list[tuple[str, str]]:
    """A row as one line for people, with its tones: when, who, what."""
    from relay.ui.row_view import pieces

    at = output.clock(row["at_ms"], int(time.time() * 1000))
    return [(f"{at}  ", "faint"), *pieces(row)]


# -- wait


class _Never(Exception):
    """It will not come to that; the text says why, and ``hint`` what helps."""

    hint = ""


class _Wait:
    """One agent, and what is waited for."""

    def __init__(self, client: BrokerClient, name: str, what: str, id_: str | None) -> None:
        self._client = client
        self.name = name
        self.what = what
        self._id = id_
        self._speaker: str | None = None
        self.state = ""
        self.text = ""  # the answer
        self.proof = ""  # what has proven it
        self.again: float | None = None  # seconds until a look helps, though nothing happens
        if id_ is None and what in ("idle", "reply", "seen"):
            rows = client.request(SENT, limit=1000, **output.speaker())["rows"]
            own = [row for row in rows if row["to"].lower() == name.lower()]
            if own:
                self._id = own[-1]["id"]
            elif what != "idle":
                raise NotFound(
                    f"you have not sent {name} a message", hint="give --id, or: relay send"
                )

    def holds(self) -> bool:
        """Whether it is so. Raises NotFound and _Never."""
        agent = self._look()
        self.state = state = output.state_text(agent)
        self.again = None
        if self.what in ("blocked", "gone"):
            if agent["state"] == self.what:
                self.proof = state
                return True
        elif self._is_done(agent):
            return True
        if agent["state"] == "gone":
            raise _Never(f"{self.name} has gone")
        return False

    def _look(self) -> Json:
        for agent in self._client.request(AGENTS)["agents"]:
            if agent["name"].lower() == self.name.lower():
                self.name = agent["name"]
                return dict(agent)
        raise no_agent(Home.from_env(), self.name)

    def _is_done(self, agent: Json) -> bool:
        rests: bool = agent["state"] == "idle"
        if self._id is None:
            self.proof = "idle; you have sent it nothing"
            return rests
        message = self._client.request(SHOW, id=self._id, **output.speaker())["message"]
        self._id = message["id"]
        mine = [one for one in message["deliveries"] if one["to"].lower() == self.name.lower()]
        if not mine:
            raise NotFound(f"{self._id} was not sent to {self.name}", hint=f"relay show {self._id}")
        delivery = mine[0]
        if delivery["state"] in ("failed", "cancelled"):
            if self.what == "idle":
                self.proof = f"idle; your message {delivery['state']}"
                return rests
            raise _Never(f"{self.name}: {output.state_text(delivery)}")
        if delivery["state"] != "seen":
            return False
        if self.what == "seen":
            self.proof = delivery["proof"] or "seen"
            return True
        if (message.get("attributes") or {}).get("report") == "turn":
            return self._has_answered(message["id"]) and (self.what == "reply" or rests)
        if self.what == "reply":
            seen_ms = delivery["updated_ms"]
            return self._has_written(message, seen_ms) or (rests and self._said(agent, seen_ms))
        return rests and self._has_rested(agent, delivery["updated_ms"])

    def _has_answered(self, id_: str) -> bool:
        found = self._client.request(WAIT, id=id_, timeout=0, answer=True, **output.speaker())
        for one in found["answers"]:
            if one["from"].lower() == self.name.lower():
                if self.what == "reply" and one["state"] != "completed":
                    raise _Never(f"{self.name}: {one['state']} ({one['reason'] or 'no reason'})")
                self.text, self.proof = one["text"], "the turn that answers it has ended"
                return True
        return False

    def _has_written(self, message: FullMessage, seen_ms: int) -> bool:
        """Whether it has written to the sender since it has seen the message."""
        sender = message["from"].lower()
        answer = self._client.request(
            HISTORY, agent=self.name, since_ms=seen_ms, **output.speaker()
        )
        for row in answer["rows"]:
            to = (row["to"] or "").lower()
            if row["from"].lower() == self.name.lower() and to == sender:
                self.text, self.proof = row["body"] or "", f"it wrote {row['id'][-8:]}"
                return True
        return False

    def _said(self, agent: Json, seen_ms: int) -> bool:
        """Whether its turn is over, and what it said there is known. Raises _Never where it is
        not: nobody has asked for an answer, so none will come."""
        if not self._has_rested(agent, seen_ms):
            return False
        left = _SETTLES - (time.time() - agent["since_ms"] / 1000)
        if left > 0:
            self.again = left
            return False
        assert self._id is not None
        for turn in self._turns():
            if f"[{self._id[-8:]}_" in turn["prompt"] and turn["text"]:
                self.text, self.proof = turn["text"], "the turn that took it has ended"
                return True
        never = _Never(
            f"{self.name} has read your message and is idle again, but has not written to you;"
            " the message asked for no answer"
        )
        never.hint = "relay ask, or relay send --answer, asks for one"
        raise never

    def _turns(self) -> list[Json]:
        """The last turns by the agent's own transcript; none where that cannot be read."""
        fields: Json = {"agent": self.name, "kind": "transcript", "request": {"count": _TURNS}}
        try:
            said = self._client.request(ASK, timeout=10, **fields, **output.speaker())
        except RelayError:
            return []
        turns: list[Json] = said["response"]["turns"]
        return turns

    def _has_rested(self, agent: Json, seen_ms: int) -> bool:
        """Whether it was busy since, or has rested for long: some tell of no turn."""
        if agent["since_ms"] >= seen_ms:
            self.proof = "done with your last message"
            return True
        left = _RESTS - (time.time() - seen_ms / 1000)
        self.again = max(0.05, left)
        self.proof = f"idle for {_RESTS:g} s since it read your last message"
        return left <= 0


def wait_verb(options: Any) -> int:
    from relay.ui.watching import Watching

    signals.plain_interrupt()
    names = list(dict.fromkeys(options.names))
    end = time.monotonic() + options.timeout
    home, status = Home.from_env(), 0
    why: _Never | None = None
    kinds = [one for one in WATCHED if one != "item"]
    with Watching(home, kinds=kinds, agents=names) as watching, connect(home) as client:
        waits = [_Wait(client, name, options.what, options.id) for name in names]
        left = list(waits)
        try:
            while left := [one for one in left if not one.holds()]:
                seconds = end - time.monotonic()
                if seconds <= 0:
                    status = EXIT_TIMEOUT
                    break
                looks = [one.again for one in left if one.again is not None]
                watching.next_rows(min(seconds, 60.0, *looks))
        except _Never as never:
            status, why = EXIT_NOT_DELIVERED, never
    _print_waits(options, waits, left, why, status)
    return status


def _print_waits(
    options: Any, waits: list[_Wait], left: list[_Wait], why: _Never | None, status: int
) -> None:
    if options.json:
        names = ("name", "what", "state", "proof", "text")
        rows: list[Json] = [
            {**{name: getattr(one, name) for name in names}, "holds": one not in left}
            for one in waits
        ]
        output.as_json({"done": not status, "why": str(why) if why else None, "agents": rows})
        return
    for one in waits:
        if one not in left:
            if one.text and options.what == "reply":
                output.lines(one.text)
            else:
                output.note(f"{one.name}: {one.proof}")
    if why is not None:
        output.note(f"relay: {why}")
        if why.hint:
            output.note(f"  {why.hint}")
    elif left:
        for one in left:
            output.note(f"relay: timed out after {options.timeout:g} s: {one.name} is {one.state}")
