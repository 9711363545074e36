"""Messages between the check and the program that it tries out, and how far each of them is."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from relay.app.driven_program import DrivenProgram
from relay.broker.client import BrokerClient
from relay.features.agent_check import standard_conversation as talk
from relay.features.agent_check.standard_conversation import Ask
from relay.protocol.agents import AGENTS, AgentRow
from relay.session.typist import STARTING

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
        answer = self._client.request("send", to=self._name, body=ask.body, unproven=True)
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
        """Whether the broker says that the agent is so."""
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
        """How far it is, and why."""
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
            self._client.request("state", id=push["id"], state="seen", proof="check")
        elif push["push"] == "receipt":
            self._states[push["id"]] = (push["state"], push["reason"] or "")


def new_token() -> str:
    """A word that stands nowhere else."""
    return "T" + secrets.token_hex(3)
