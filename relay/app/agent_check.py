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
from typing import Any

from relay.app import standard_conversation as talk
from relay.app.driven_program import DrivenProgram
from relay.app.standard_conversation import Ask, Row
from relay.app.throwaway_home import throwaway_home, undisturbed
from relay.broker.client import BrokerClient, connect
from relay.core.errors import BrokerUnavailable, RelayError, Timeout
from relay.core.ids import new_ulid
from relay.core.paths import Home

#: The name of the agent that is the check.
CHECKER = "Checker"
#: Seconds that a program may take until it is there.
BOOT = 120.0
#: After so many seconds without drawing anything an agent is taken to be at rest.
QUIET = 5.0
#: How long after an answer it is waited for what should not come.
SETTLE = 1.0
#: How long a message must stay away from a draft or a dialog.
STAYS_AWAY = 3.0
_FINAL = ("seen", "failed", "cancelled")
_ON_ITS_WAY = ("delivering", "submitted")
#: The keys Backspace, Ctrl-U and Escape.
_ERASE, _CLEAR, _ESCAPE = "\x7f", "\x15", "\x1b"


@dataclass
class Sent:
    """A message to the program."""

    id: str
    token: str
    ask: Ask
    #: How many messages of the program's had been heard before.
    before: int
    answered: bool = False


@dataclass
class Report:
    """What came of a check. ``messages`` are id, state, body and token of each that was sent."""

    rows: list[Row] = field(default_factory=list)
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
        env |= {"RELAY_HOPS_MAX": "0", "RELAY_RATE_MAX": "0"}
        own = os.path.join(Home.from_env().root, "profiles")
        if os.path.isdir(own):
            home.create()
            shutil.copytree(own, os.path.join(home.root, "profiles"))
        wrap = [sys.executable, "-P", "-m", "relay", "wrap", "--name", name, "--", *command]
        program = DrivenProgram(wrap, env, *size)
        try:
            with contextlib.ExitStack() as stack:
                client = stack.enter_context(_there(home, name, program))
                conversation = _Conversation(program, client, name, patience, home.root)
                conversation.hold(progress, dialog)
                with undisturbed():
                    program.close()
                conversation.step_for(SETTLE)
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
            if any(one["name"] == name for one in client.request("agents")["agents"]):
                run = new_ulid(time.time_ns() // 1_000_000)
                token = secrets.token_hex(16)
                client.request(
                    "register", name=CHECKER, run=run, token=token, kind="check", pid=0, cwd="/"
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
        raise RelayError(f"{name} ended before it was there{said}", hint="start it by itself first")
    raise Timeout(f"{name} was not there after {BOOT:g} s{said}", hint="run `relay doctor`")


class _Conversation:
    """The conversation so far: what was sent, how far it is, what was heard."""

    def __init__(
        self, program: DrivenProgram, client: BrokerClient, name: str, patience: float, folder: str
    ) -> None:
        self._program = program
        self._client = client
        self._name = name
        self._patience = patience
        self._folder = folder
        self._sent: list[Sent] = []
        self._states: dict[str, tuple[str, str]] = {}
        self._heard: list[str] = []
        self._rows: dict[str, tuple[bool | None, str]] = {}
        self._asked: dict[str, list[Sent]] = {}
        self._about: dict[str, Any] = {}

    # -- what is asked

    def hold(self, progress: Callable[[str], None], dialog: str) -> None:
        """All of it, one after the other."""
        for what, step in (
            (talk.REST, self._rest),
            (talk.LONG, lambda: self._say(talk.LONG, [talk.long])),
            (talk.FENCE, lambda: self._say(talk.FENCE, [talk.fence])),
            (talk.ESCAPE, lambda: self._say(talk.ESCAPE, _each(talk.escapes))),
            (talk.TWICE, self._twice),
            (talk.BLOCK, lambda: self._say(talk.BLOCK, _each(talk.blocks))),
            (talk.WHOLE, lambda: self._say(talk.WHOLE, [talk.whole])),
            (talk.BUSY, self._busy),
            (talk.DRAFT, self._draft),
            (talk.DIALOG, lambda: self._dialog(dialog)),
        ):
            progress(what)
            if not self._program.runs:
                break
            step()
            if what == talk.REST and self._state(self._sent[0])[0] not in _FINAL:
                break  # nothing else would reach it either
        self._ask_about()

    def _rest(self) -> None:
        sent = self._ask(talk.simple(token := _token(), "a reply"), token)
        state, reason = self._state(sent)
        self._rows[talk.REST] = (state == "seen", "" if state == "seen" else _why(state, reason))
        self._asked[talk.REPLY] = [sent]

    def _say(self, what: str, makers: Sequence[Callable[[str], Ask]]) -> None:
        """Ask for the first of ``makers``; for the next one where that is not heard as it should
        be."""
        for make in makers:
            token = _token()
            sent = self._ask(make(token), token)
            self._asked[what] = [sent]
            self.step_for(SETTLE)
            if talk.judged(sent.ask, self._heard_of(sent))[0]:
                break
        if len(makers) > 1 and what == talk.ESCAPE and make is not makers[0]:
            self._rows[what] = (None, "with two backslashes")
        elif len(makers) > 1 and make is not makers[0]:
            self._rows[what] = (None, "with \\>>> between blank lines")

    def _twice(self) -> None:
        ask = talk.twice(token := _token())
        first = self._ask(ask, token)
        self.step_for(SETTLE)
        self._asked[talk.TWICE] = [first]
        self._asked[talk.AGAIN] = [first, self._ask(ask, token)]

    def _busy(self) -> None:
        first = self._send(talk.counting(token := _token()), token)
        self._until(lambda: self._state(first)[0] in (*_FINAL, *_ON_ITS_WAY), self._patience)
        self.step_for(0.5)
        was_over = self._is_answered(first)
        second = self._ask(talk.simple(token := _token(), "after the work"), token)
        self._until(lambda: self._is_answered(first), QUIET)
        state, reason = self._state(second)
        if state != "seen":
            self._rows[talk.BUSY] = (False, _why(state, reason))
        elif not self._is_answered(first) and self._is_answered(second):
            self._rows[talk.BUSY] = (False, "what it was saying was broken off")
        elif self._is_answered(second) and self._place(second) < self._place(first):
            self._rows[talk.BUSY] = (False, "it was answered before the work was over")
        elif was_over:
            self._rows[talk.BUSY] = (None, "the work was over at once")
        else:
            self._rows[talk.BUSY] = (True, "")

    def _draft(self) -> None:
        words = f"half a draft {_token()}"
        self._at_rest()
        self._program.type(words)
        if not self._until(lambda: self._program.shows(words), 10.0):
            self._rows[talk.DRAFT] = (None, "what is typed does not show")
            self._program.type(_ERASE * len(words))
            return
        sent = self._send(talk.simple(token := _token(), "after the draft"), token)
        self._until(lambda: self._state(sent)[0] == "seen", STAYS_AWAY)
        went_past = self._state(sent)[0] == "seen"
        self.step_for(0.5)
        stands = self._program.shows(words)
        for keys in (_ERASE * len(words), _CLEAR):
            self._program.type(keys)
            if self._until(lambda: self._state(sent)[0] == "seen", STAYS_AWAY):
                break
        self._answer(sent)
        state, reason = self._state(sent)
        if not stands:
            self._rows[talk.DRAFT] = (False, "the draft is gone")
        elif state != "seen":
            self._rows[talk.DRAFT] = (False, f"the draft was erased: {_why(state, reason)}")
        else:
            self._rows[talk.DRAFT] = (True, "goes past it" if went_past else "waits")

    def _dialog(self, keys: str) -> None:
        self._at_rest()
        ran = os.path.join(self._folder, f"ran-{_token()}")
        if keys:
            self._program.type(keys)
            self.step_for(2.0)
        else:
            asked = self._send(talk.running(token := _token(), f"touch {ran}"), token)
            self._answer(asked, lambda: os.path.exists(ran))
            if os.path.exists(ran) or self._is_answered(asked):
                why = "it asks before no command" if os.path.exists(ran) else "it ran no command"
                self._rows[talk.DIALOG] = (None, f"none opened: {why}")
                asked.answered = True
                return
            asked.answered = True  # by the dialog
        before = self._program.rows()
        sent = self._send(talk.simple(token := _token(), "after the dialog"), token)
        self.step_for(STAYS_AWAY)
        touched = os.path.exists(ran) or self._program.shows(token)
        reason = self._state(sent)[1]
        for keys in (_ESCAPE, "n\r"):
            self._program.type(keys)
            if self._until(lambda: self._state(sent)[0] == "seen", STAYS_AWAY):
                break
        self._answer(sent)
        if os.path.exists(ran):
            self._rows[talk.DIALOG] = (False, "the dialog was answered")
        elif touched:
            self._rows[talk.DIALOG] = (False, "it was typed into the dialog")
        elif self._state(sent)[0] != "seen":
            self._rows[talk.DIALOG] = (False, _why(*self._state(sent)))
        elif not any(before):
            self._rows[talk.DIALOG] = (None, "the screen was empty")
        else:
            self._rows[talk.DIALOG] = (True, reason)

    # -- how

    def _ask(self, ask: Ask, token: str) -> Sent:
        """Send it, and wait for the answer or until nothing more comes."""
        sent = self._send(ask, token)
        self._answer(sent)
        return sent

    def _send(self, ask: Ask, token: str) -> Sent:
        answer = self._client.request("send", to=self._name, body=ask.body)
        [delivery] = answer["deliveries"]
        sent = Sent(answer["id"], token, ask, len(self._heard))
        self._states.setdefault(sent.id, (delivery["state"], delivery["reason"] or ""))
        self._sent.append(sent)
        return sent

    def _answer(self, sent: Sent, over: Callable[[], bool] = lambda: False) -> None:
        self._until(lambda: self._state(sent)[0] in _FINAL or over(), self._patience)
        if self._state(sent)[0] == "seen":
            self._until(
                lambda: self._is_answered(sent) or over() or self._program.quiet > QUIET,
                self._patience,
            )

    def _at_rest(self) -> None:
        """Until it has drawn nothing for a moment; a program that always draws is at rest soon."""
        self._until(lambda: self._program.quiet > SETTLE, QUIET)

    def _is_answered(self, sent: Sent) -> bool:
        """Whether the last of what must be heard was, as often as it was asked for."""
        last = talk.solid(sent.ask.heard[-1])
        asked = [one for one in self._sent if one.token == sent.token and one.before <= sent.before]
        wanted = sum(list(map(talk.solid, one.ask.heard)).count(last) for one in asked)
        return list(map(talk.solid, self._heard_of(sent))).count(last) >= wanted

    def _heard_of(self, sent: Sent, upto: int | None = None) -> list[str]:
        """What was heard of an answer: what has its token, and what has none and came then."""
        tokens = [one.token for one in self._sent]
        after = next((one.before for one in self._sent if one.before > sent.before), None)
        return [
            body
            for number, body in enumerate(self._heard[:upto])
            if sent.token in body
            or (
                number >= sent.before
                and (after is None or number < after)
                and not any(token in body for token in tokens)
            )
        ]

    def _place(self, sent: Sent) -> int:
        wanted = talk.solid(sent.ask.heard[-1])
        return next(n for n, body in enumerate(self._heard) if talk.solid(body) == wanted)

    def _state(self, sent: Sent) -> tuple[str, str]:
        return self._states[sent.id]

    def _until(self, check: Callable[[], bool], seconds: float) -> bool:
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
                self._heard.append(push["body"])
            self._client.request("state", id=push["id"], state="seen", proof="check")
        elif push["push"] == "receipt":
            self._states[push["id"]] = (push["state"], push["reason"] or "")

    def _ask_about(self) -> None:
        agents = self._client.request("agents")["agents"]
        self._about = next((one for one in agents if one["name"] == self._name), {})
        self._screen = self._program.rows()

    # -- what came of it

    def report(self) -> Report:
        """The table, in its order."""
        rows = [Row(side, what, *self._row(what)) for what, side in talk.ROWS.items()]
        return Report(
            rows,
            str(self._about.get("kind") or ""),
            str(self._about.get("source") or ""),
            [
                {"id": one.id, "token": one.token, "state": self._states[one.id][0]}
                | {"reason": self._states[one.id][1], "body": one.ask.body}
                for one in self._sent
            ],
            self._heard,
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
            if any(self._state(one)[0] != "seen" for one in sent):
                return False, "it could not be asked: " + _why(*self._state(sent[-1]))
            heard = self._heard_of(sent[0])
            if what == talk.TWICE:
                heard = self._heard_of(sent[0], upto=self._asked[talk.AGAIN][1].before)
            holds, reason = talk.judged(ask, heard)
            return holds, reason or (self._rows[what][1] if what in self._rows else "")
        if what in self._rows:
            return self._rows[what]
        return False, "it could not be asked" if self._program_ran() else "the program ended"

    def _program_ran(self) -> bool:
        return bool(self._about)

    def _seen_row(self) -> tuple[bool | None, str]:
        """Whether every message that counts as seen was answered."""
        seen = [one for one in self._sent if self._state(one)[0] == "seen"]
        if not self._heard:
            return None, "nothing that it says is heard"
        missing = [one for one in seen if not (one.answered or self._is_answered(one))]
        if missing:
            return False, f"{len(missing)} of {len(seen)} were not answered as they ask"
        return True, f"{len(seen)} of {len(seen)} were answered"


def _each(make: Callable[[str], Sequence[Ask]]) -> Sequence[Callable[[str], Ask]]:
    """The ways of ``make`` to ask for one thing, each with a token of its own."""
    return [lambda token, n=n: make(token)[n] for n in range(len(make("")))]  # type: ignore[misc]


def _token() -> str:
    """A word that stands nowhere else."""
    return "T" + secrets.token_hex(3)


def _why(state: str, reason: str) -> str:
    return f"{state}: {reason}" if reason else state
