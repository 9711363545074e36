"""Drives the standard conversation with a wrapped program, and says what of it holds.

The program runs under ``relay wrap`` in a home of its own. The other agent is the check itself: it
registers with that home's broker, writes to the program and reads what it says.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relay.app.driven_program import DrivenProgram
from relay.app.throwaway_home import throwaway_home, undisturbed
from relay.broker.client import BrokerClient, connect
from relay.core.errors import BrokerUnavailable, RelayError, Timeout
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.features.agent_check import standard_conversation as talk
from relay.features.agent_check.standard_conversation import Ask, Verdict
from relay.protocol.agent_ops import AGENTS, REGISTER, AgentRow
from relay.protocol.message_ops import SEND, STATE
from relay.session.typist import STARTING

#: The name of the agent that is the check.
CHECKER = "Checker"
#: Seconds that a program may take until it is there.
BOOT = 120.0
#: How long a message must stay away from a draft or a dialog.
STAYS_AWAY = 3.0
#: The keys Backspace, Ctrl-U, Escape and Ctrl-G.
_ERASE, _CLEAR, _ESCAPE, _ABORT = "\x7f", "\x15", "\x1b", "\x07"
#: After so many seconds without drawing anything an agent may be at rest.
QUIET = 5.0
#: After so many seconds without drawing a program that starts may be there; it may take longer to
#: come to that, or to read its terminal, but no longer than this.
STARTED, STARTS_MAX = 2.0, 300.0
#: How long after an answer it is waited for what should not come.
SETTLE = 1.0
#: The last states of a message, and those before in which it has left.
FINAL = ("seen", "failed", "cancelled")
_ON_ITS_WAY = ("delivering", "submitted")


@dataclass
class Report:
    """What came of a check. ``messages`` are id, state, body and token of each that was sent."""

    rows: list[Verdict] = field(default_factory=list)
    kind: str = ""
    source: str = ""
    messages: list[dict[str, str]] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    screen: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing that could be tried failed."""
        return all(row.holds is not False for row in self.rows)


def check(
    name: str,
    command: list[str],
    progress: Callable[[str], None],
    *,
    patience: float = 60.0,
    size: tuple[int, int] = (100, 30),
    dialog: str = "",
) -> Report:
    """Hold the conversation with ``command``. ``patience`` is what one answer may take, in seconds.

    ``dialog`` are keys that open a dialog in it; without them it is asked to run a command. Raises
    RelayError where the program does not start.
    """
    with throwaway_home("relay-check-") as home:
        env = {**os.environ, "RELAY_HOME": home.root}
        env |= {"RELAY_HOPS_MAX": "0", "RELAY_RATE_MAX": "0", "RELAY_STORED_MAX": "0"}
        own = Home.from_env().profiles
        if os.path.isdir(own):
            home.create()
            shutil.copytree(own, home.profiles)
        # In a governed folder, too: it is the person who tries it out.
        wrap = [sys.executable, "-P", "-m", "relay", "wrap", "--name", name, "--ungoverned"]
        wrap += ["--", *command]
        program = DrivenProgram(wrap, env, *size)
        try:
            with contextlib.ExitStack() as stack:
                client = stack.enter_context(_there(home, name, program))
                post = Correspondence(program, client, name, patience)
                progress(f"it starts: until it rests, for {STARTS_MAX:g} s at most")
                post.started()
                conversation = _Conversation(program, post, home.root)
                conversation.hold(progress, dialog)
                with undisturbed():
                    program.close()
                post.step_for(SETTLE)  # what it says at its end
                return conversation.report()
        finally:
            with undisturbed():
                program.close()


def _there(home: Home, name: str, program: DrivenProgram) -> BrokerClient:
    """A connection that is registered as the check's own agent, once ``name`` is there too."""
    end = time.monotonic() + BOOT
    while time.monotonic() < end and program.runs:
        try:
            client = connect(home, start=False)
        except BrokerUnavailable:
            time.sleep(0.05)
            continue
        try:
            if any(one["name"] == name for one in client.request(AGENTS)["agents"]):
                run = new_ulid(time.time_ns() // 1_000_000)
                token = secrets.token_hex(16)
                client.request(
                    REGISTER, name=CHECKER, run=run, token=token, kind="check", pid=0, cwd="/"
                )
                return client
        except BaseException:
            client.close()
            raise
        client.close()
        time.sleep(0.05)
    rows = [row for row in program.rows() if row.strip()]
    said = "; it showed: " + talk.shown(" ".join(rows[-6:])) if rows else ""
    if not program.runs:
        raise RelayError(f"{name} ended before it was ready{said}", hint="start it by itself first")
    raise Timeout(f"{name} was not there after {BOOT:g} s{said}", hint="run `relay doctor`")


class _Conversation:
    """The conversation so far, and what of it holds."""

    def __init__(self, program: DrivenProgram, post: Correspondence, folder: str) -> None:
        self._program = program
        self._post = post
        self._folder = folder
        self._rows: dict[str, tuple[bool | None, str]] = {}
        self._asked: dict[str, list[Sent]] = {}
        self._as_told: set[str] = set()
        self._paused = False  # the model has, within a message
        self._about: AgentRow | None = None
        self._screen: list[str] = []

    # -- what is asked

    def hold(self, progress: Callable[[str], None], dialog: str) -> None:
        """All of it, one after the other."""
        for what, step in (
            (talk.REST, self._rest),
            (talk.LONG, lambda: self._say(talk.LONG, lambda token: [talk.long(token)])),
            (talk.PAUSE, self._pause),
            (talk.FENCE, lambda: self._say(talk.FENCE, talk.fences)),
            (talk.ESCAPE, lambda: self._say(talk.ESCAPE, talk.escapes)),
            (talk.TWICE, self._twice),
            (talk.BLOCK, lambda: self._say(talk.BLOCK, talk.blocks)),
            (talk.WHOLE, lambda: self._say(talk.WHOLE, lambda token: [talk.whole(token)])),
            (talk.BUSY, self._busy),
            (talk.DRAFT, self._draft),
            (talk.DIALOG, lambda: self._dialog(dialog)),
        ):
            progress(what)
            if not self._program.runs:
                break
            step()
            if what == talk.REST and self._post.state(self._post.sent[0])[0] not in FINAL:
                break  # nothing else would reach it either
        self._about = self._post.agent()
        self._screen = self._program.rows()

    def _rest(self) -> None:
        sent = self._post.ask(talk.simple(token := new_token(), "a reply"), token)
        state, reason = self._post.state(sent)
        why = "" if state == "seen" else _why(state, reason)
        if state == "seen" and self._program.ends_at_cursor(sent.ask.body):
            why = "it counts as seen, and stands unsent in the input line"
        self._rows[talk.REST] = (not why, why)
        self._asked[talk.REPLY] = [sent]

    def _say(self, what: str, make: Callable[[str], Sequence[Ask]]) -> None:
        """Ask for the first that ``make`` makes; where the screen is all that is heard and it
        fails, for the second, which is as the primer tells."""
        plain = self._ask_for(make(token := new_token())[0], token)
        self._asked[what] = [plain]
        agent = self._post.agent()
        by_screen = agent is not None and agent["source"] == "screen"
        if self._holds(plain) or not by_screen or what not in talk.AS_TOLD:
            return
        told = self._ask_for(make(token := new_token())[1], token)
        if self._holds(told):
            self._asked[what] = [told]
            self._as_told.add(what)
            plain.answered = True  # in a way that does not show

    def _ask_for(self, ask: Ask, token: str) -> Sent:
        sent = self._post.ask(ask, token)
        self._post.step_for(SETTLE)
        return sent

    def _holds(self, sent: Sent) -> bool:
        return talk.judged(sent.ask, self._post.heard_of(sent))[0]

    def _pause(self) -> None:
        ask, first, then = talk.pausing(token := new_token(), CHECKER)
        sent = self._post.send(ask, token)
        self._asked[talk.PAUSE] = [sent]
        self._post.go_out(sent)
        self._post.until(lambda: self._program.shows(first), talk.PAUSE_SECONDS * 2)
        began = time.monotonic()
        self._post.until(lambda: self._program.shows(then), talk.PAUSE_SECONDS * 2)
        self._paused = time.monotonic() - began > talk.PAUSE_SECONDS / 2
        self._post.answer(sent)
        self._post.step_for(SETTLE)

    def _twice(self) -> None:
        ask = talk.twice(token := new_token())
        first = self._post.ask(ask, token)
        self._post.step_for(SETTLE)
        self._asked[talk.TWICE] = [first]
        self._asked[talk.AGAIN] = [first, self._post.ask(ask, token)]

    def _busy(self) -> None:
        first = self._post.send(talk.counting(token := new_token()), token)
        self._post.go_out(first)
        self._post.step_for(0.5)
        was_over = self._post.is_answered(first)
        second = self._post.ask(talk.simple(token := new_token(), "after the work"), token)
        both = (first, second)
        self._post.until(lambda: all(map(self._post.is_answered, both)), 4 * QUIET)
        state, reason = self._post.state(second)
        if state != "seen":
            self._rows[talk.BUSY] = (False, _why(state, reason))
        elif not self._post.is_answered(first) and self._post.is_answered(second):
            self._rows[talk.BUSY] = (False, "what it was saying was broken off")
        elif self._post.is_answered(second) and self._post.place(second) < self._post.place(first):
            self._rows[talk.BUSY] = (False, "it was answered before the work was over")
        elif not self._post.is_answered(second):
            self._rows[talk.BUSY] = (False, "no answer was heard")
        elif was_over:
            self._rows[talk.BUSY] = (None, "the work was over at once")
        else:
            self._rows[talk.BUSY] = (True, "")

    def _draft(self) -> None:
        words = f"half a draft {new_token()}"
        self._post.at_rest()
        self._program.type(words)
        if not self._post.until(lambda: self._program.shows(words), 10.0):
            self._rows[talk.DRAFT] = (None, "what is typed does not show")
            self._program.type(_ERASE * len(words))
            return
        sent = self._post.send(talk.simple(token := new_token(), "after the draft"), token)
        self._post.until(lambda: self._post.state(sent)[0] == "seen", STAYS_AWAY)
        went_past = self._post.state(sent)[0] == "seen"
        self._post.step_for(0.5)
        stands = self._program.shows(words)
        self._let_go(sent, _ERASE * len(words), _CLEAR)
        self._post.answer(sent)
        state, reason = self._post.state(sent)
        if not stands:
            self._rows[talk.DRAFT] = (False, "the draft is gone")
        elif state != "seen":
            self._rows[talk.DRAFT] = (False, f"the draft was erased: {_why(state, reason)}")
        else:
            self._rows[talk.DRAFT] = (True, "goes past it" if went_past else "waits")

    def _dialog(self, keys: str) -> None:
        self._post.at_rest()
        ran = os.path.join(self._folder, f"ran-{new_token()}")
        if keys:
            before = self._program.rows()
            self._program.type(keys)
            self._post.until(lambda: self._program.rows() != before, QUIET)
            self._post.step_for(2.0)
            self._post.at_rest()
        else:
            asked = self._post.send(talk.running(token := new_token(), f"touch {ran}"), token)
            self._post.answer(asked, lambda: os.path.exists(ran))
            if os.path.exists(ran) or self._post.is_answered(asked):
                why = "it asks before no command" if os.path.exists(ran) else "it ran no command"
                self._rows[talk.DIALOG] = (None, f"none opened: {why}")
                asked.answered = True
                return
            asked.answered = True  # by the dialog
            if not self._post.heard:
                self._rows[talk.DIALOG] = (None, "none opened that can be told")
                return
        before = self._program.rows()
        sent = self._post.send(talk.simple(token := new_token(), "after the dialog"), token)
        self._post.step_for(STAYS_AWAY)
        touched = os.path.exists(ran) or self._program.shows(token)
        reason = self._post.state(sent)[1]
        # To readline the next key belongs to Escape, and Ctrl-G ends whatever that began.
        self._let_go(sent, _ESCAPE, f"{_ABORT}n\r")
        self._post.answer(sent)
        if os.path.exists(ran):
            self._rows[talk.DIALOG] = (False, "the dialog was answered")
        elif touched:
            self._rows[talk.DIALOG] = (False, "it was typed into the dialog")
        elif self._post.state(sent)[0] != "seen":
            self._rows[talk.DIALOG] = (False, _why(*self._post.state(sent)))
        elif not any(before):
            self._rows[talk.DIALOG] = (None, "the screen was empty")
        else:
            self._rows[talk.DIALOG] = (True, reason)

    def _let_go(self, sent: Sent, *tries: str) -> None:
        """Press each of ``tries`` until what holds the message back does so no longer."""
        held = self._post.state(sent)

        def goes() -> bool:
            state = self._post.state(sent)[0]
            return state == "seen" or state != held[0]

        for keys in tries:
            self._program.type(keys)
            self._post.until(goes, STAYS_AWAY)
            # While something else holds it, the next keys would be typed into what it goes to.
            self._post.until(lambda: goes() or self._post.state(sent) == held, 4 * QUIET)
            if goes():
                break

    # -- what came of it

    def report(self) -> Report:
        """The table, in its order."""
        rows = [
            Verdict(side, what, *self._row(what), what in self._as_told)
            for what, side in talk.ROWS.items()
        ]
        return Report(
            rows,
            "" if self._about is None else self._about["kind"],
            "" if self._about is None else self._about["source"] or "",
            [
                {"id": one.id, "token": one.token, "body": one.ask.body}
                | dict(zip(("state", "reason"), self._post.state(one), strict=True))
                for one in self._post.sent
            ],
            self._post.heard,
            [row for row in self._screen if row.strip()],
        )

    def _row(self, what: str) -> tuple[bool | None, str]:
        if what == talk.SEEN:
            return self._seen_row()
        if what in self._asked:
            sent = self._asked[what]
            ask = sent[0].ask
            if len(sent) > 1:
                ask = Ask(ask.text, ask.heard * len(sent))
            if any(self._post.state(one)[0] != "seen" for one in sent):
                return False, "it could not be asked: " + _why(*self._post.state(sent[-1]))
            heard = self._post.heard_of(sent[0])
            if what == talk.TWICE:
                heard = self._post.heard_of(sent[0], upto=self._asked[talk.AGAIN][1].before)
            holds, reason = talk.judged(ask, heard)
            if what == talk.PAUSE and holds and not self._paused:
                return None, "no pause showed on its screen"
            return holds, talk.AS_TOLD[what] if what in self._as_told and holds else reason
        if what in self._rows:
            return self._rows[what]
        return False, "it could not be asked" if self._program_ran() else "the program ended"

    def _program_ran(self) -> bool:
        return self._about is not None

    def _seen_row(self) -> tuple[bool | None, str]:
        """Whether every message that counts as seen was answered."""
        seen = [one for one in self._post.sent if self._post.state(one)[0] == "seen"]
        if not self._post.heard:
            return None, "nothing that it says is heard"
        missing = [one for one in seen if not (one.answered or self._post.is_answered(one))]
        if missing:
            said = [what for what, side in talk.ROWS.items() if side == talk.SENDER]
            heard = all(self._row(what)[0] for what in said)
            reason = f"{len(missing)} of {len(seen)} were not answered as they ask"
            return (False, reason) if heard else (None, f"{reason}, or that was not heard")
        return True, f"{len(seen)} of {len(seen)} were answered"


def _why(state: str, reason: str) -> str:
    return f"{state}: {reason}" if reason else state


@dataclass
class Sent:
    """A message to the program."""

    id: str
    token: str
    ask: Ask
    #: How many messages of the program's had been heard before.
    before: int
    answered: bool = False


class Correspondence:
    """Writes to the agent ``name`` as the one that ``client`` is registered as, and hears it.

    ``patience`` is what one answer may take, in seconds.
    """

    def __init__(
        self, program: DrivenProgram, client: BrokerClient, name: str, patience: float
    ) -> None:
        self.sent: list[Sent] = []
        #: The bodies that it sent, in order.
        self.heard: list[str] = []
        self._program = program
        self._client = client
        self._name = name
        self._patience = patience
        #: After so long without drawing it is at rest: some time more than its last answer took,
        #: for a busy machine, or a program that loads a library for its first, pauses for long.
        self._pause = patience
        self._states: dict[str, tuple[str, str]] = {}

    def ask(self, ask: Ask, token: str) -> Sent:
        """Send it, and wait for the answer or until nothing more comes."""
        sent = self.send(ask, token)
        self.answer(sent)
        return sent

    def send(self, ask: Ask, token: str) -> Sent:
        """Send what asks for it, and wait for nothing."""
        # As another agent would: what is the person's own may be typed where that is not.
        answer = self._client.request(SEND, to=self._name, body=ask.body, unproven=True)
        [delivery] = answer["deliveries"]
        sent = Sent(answer["id"], token, ask, len(self.heard))
        self._states.setdefault(sent.id, (delivery["state"], delivery["reason"] or ""))
        self.sent.append(sent)
        return sent

    def started(self) -> None:
        """Until it shows something and rests: an installer, a cold cache may take its time."""
        self.until(lambda: self._program.quiet > STARTED and any(self._program.rows()), STARTS_MAX)

    def answer(self, sent: Sent, over: Callable[[], bool] = lambda: False) -> None:
        """Wait until it is answered, or is ``over``, or the program has come to rest."""
        arrived = self.until(lambda: self.state(sent)[0] in FINAL or over(), self._patience)
        if not arrived and self.state(sent)[1] == STARTING:
            self.until(lambda: self.state(sent)[1] != STARTING, STARTS_MAX)
            self.until(lambda: self.state(sent)[0] in FINAL or over(), self._patience)
        if self.state(sent)[0] == "seen":
            began = time.monotonic()
            self.until(lambda: self.is_answered(sent) or over() or self._rests(), self._patience)
            if self.is_answered(sent):
                self._pause = min(max(QUIET, 3 * (time.monotonic() - began)), self._patience)

    def _rests(self) -> bool:
        """Whether nothing more is to be expected."""
        return self._program.quiet > self._pause and not self.state_is("busy")

    def go_out(self, sent: Sent) -> None:
        """Until it is on its way."""
        self.until(lambda: self.state(sent)[0] in (*FINAL, *_ON_ITS_WAY), self._patience)

    def agent(self) -> AgentRow | None:
        """What the broker says of the agent; None where it does not know it."""
        agents = self._client.request(AGENTS)["agents"]
        return next((row for row in agents if row["name"] == self._name), None)

    def state_is(self, state: str) -> bool:
        agent = self.agent()
        return agent is not None and agent["state"] == state

    def at_rest(self) -> None:
        """Until it has drawn nothing for a moment; a program that always draws is at rest soon."""
        self.until(lambda: self._program.quiet > SETTLE, QUIET)

    def is_answered(self, sent: Sent) -> bool:
        """Whether the last of what must be heard was, as often as it was asked for."""
        last = talk.solid(sent.ask.heard[-1])
        asked = [one for one in self.sent if one.token == sent.token and one.before <= sent.before]
        wanted = sum(list(map(talk.solid, one.ask.heard)).count(last) for one in asked)
        return list(map(talk.solid, self.heard_of(sent))).count(last) >= wanted

    def heard_of(self, sent: Sent, upto: int | None = None) -> list[str]:
        """What was heard of an answer: what has its token, and what has none and came then."""
        tokens = [one.token for one in self.sent]
        after = next((one.before for one in self.sent if one.before > sent.before), None)
        return [
            body
            for number, body in enumerate(self.heard[:upto])
            if sent.token in body
            or (
                number >= sent.before
                and (after is None or number < after)
                and not any(token in body for token in tokens)
            )
        ]

    def place(self, sent: Sent) -> int:
        """Which of all that was heard was its answer, from 0."""
        wanted = talk.solid(sent.ask.heard[-1])
        return next(n for n, body in enumerate(self.heard) if talk.solid(body) == wanted)

    def state(self, sent: Sent) -> tuple[str, str]:
        return self._states[sent.id]

    def until(self, check: Callable[[], bool], seconds: float) -> bool:
        """Take what comes until ``check`` is true, the program has ended or the time is up."""
        end = time.monotonic() + seconds
        while not check():
            if time.monotonic() > end or not self._program.runs:
                return check()
            self._step(0.05)
        return True

    def step_for(self, seconds: float) -> None:
        """Take what comes meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._step(0.05)

    def _step(self, seconds: float) -> None:
        push = self._client.next_push(seconds)
        if push is None:
            return
        if push["push"] == "deliver":
            if push["from"] == self._name:
                self.heard.append(push["body"])
            self._client.request(STATE, id=push["id"], state="seen", proof="check")
        elif push["push"] == "receipt":
            self._states[push["id"]] = (push["state"], push["reason"] or "")


def new_token() -> str:
    return "T" + secrets.token_hex(3)
