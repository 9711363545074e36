"""The standard conversation: what is heard of a perfect agent, and how long relay waits for it."""

from __future__ import annotations

import os
import time
from typing import Any, cast

import pytest

from relay.app.driven_program import DrivenProgram
from relay.broker.client import BrokerClient
from relay.core.message import Message
from relay.directive.envelope import LINE_BYTES, Style, envelope
from relay.directive.grammar import Match, Scanner
from relay.features.agent_check import agent_check
from relay.features.agent_check import standard_conversation as talk
from relay.features.agent_check.agent_check import STARTED, Correspondence, _Conversation
from relay.features.agent_check.standard_conversation import Ask
from relay.session.typist import STARTING
from tests.real_agents.programs.parrot import answer_to
from tests.support import wait_until

ASKS = {
    "simple": talk.simple("T1"),
    "long": talk.long("T1"),
    "pause": talk.pausing("T1", "Checker")[0],
    "fence": talk.fences("T1")[0],
    "escape": talk.escapes("T1")[0],
    "twice": talk.twice("T1"),
    "block": talk.blocks("T1")[0],
    "whole": talk.whole("T1"),
    "counting": talk.counting("T1"),
    "running": talk.running("T1", "touch x"),
}


def sent(ask: Ask) -> Message:
    return Message("01M80A3SJCBYEWEDVSTKKKPE1S", "Checker", "Ada", ask.body, 1, nonce="ABCDEF")


def answered(ask: Ask, style: Style) -> list[str]:
    """What relay's grammar finds in the answer to ``ask``."""
    answer = answer_to(envelope(sent(ask), style=style).text)
    assert answer is not None
    scanner = Scanner(("relay",))
    found = [one for line in answer.text.split("\n") for one in scanner.line(line)]
    found += scanner.end()
    assert all(isinstance(one, Match) and one.target == "Checker" for one in found)
    return [one.body for one in found if isinstance(one, Match)]


@pytest.mark.parametrize("style", ["paste", "plain", "line"])
@pytest.mark.parametrize("name", ASKS)
def test_the_right_answer_holds(name: str, style: Style) -> None:
    ask = ASKS[name]
    assert talk.judged(ask, answered(ask, style)) == (True, "")


@pytest.mark.parametrize("name", sorted(ASKS.keys() - {"whole"}))
def test_a_question_is_one_line_that_any_terminal_takes(name: str) -> None:
    [line] = envelope(sent(ASKS[name]), style="plain").lines
    assert len(line) < LINE_BYTES and "@relay:Ada" not in line


@pytest.mark.parametrize(
    ("name", "heard", "reason"),
    [
        ("long", [], "not heard"),
        ("twice", ["the same words T1"], "heard 1 times, said 2 times"),
        ("fence", ["from the fence T1", "behind the fence T1"], "heard: “from the fence T1”"),
        ("block", ["first line T1"], "heard: “first line T1”"),
        ("block", ["first line T1 the second one", "x"], "heard: “first line T1 the second one”"),
        ("block", [talk.solid(ASKS["block"].heard[0])], "heard with other line breaks"),
    ],
)
def test_a_wrong_answer_does_not(name: str, heard: list[str], reason: str) -> None:
    assert talk.judged(ASKS[name], heard) == (False, reason)


def test_empty_lines_of_a_block_may_be_its_renderers() -> None:
    heard = ASKS["block"].heard[0].replace("\n\n", "\n")
    assert talk.judged(ASKS["block"], [heard]) == (True, "without its empty lines")


def test_line_breaks_of_a_program_count_in_a_block_only() -> None:
    ask = ASKS["long"]
    assert talk.judged(ask, [ask.heard[0].replace(" ", "\n", 3)])[0]


PATIENCE = 0.2


class SlowProgram:
    """Shows ``rows``, which have rested for ``quiet`` seconds at each next look."""

    runs = True

    def __init__(self, looks: list[tuple[list[str], float]]) -> None:
        self.looks = looks

    def rows(self) -> list[str]:
        return self.looks[0][0]

    @property
    def quiet(self) -> float:
        if len(self.looks) > 1:
            self.looks.pop(0)
        return self.looks[0][1]


class Broker:
    """Tells of the one message ``states``, one after the other, each after ``pause`` seconds."""

    def __init__(self, states: list[tuple[str, str]], pause: float) -> None:
        self.states = states
        self.pause = pause

    def request(self, op: str, **fields: Any) -> Any:
        if op == "send":
            return {"id": "A", "deliveries": [{"state": "queued", "reason": ""}]}
        return {"agents": []}

    def next_push(self, seconds: float) -> dict[str, str] | None:
        time.sleep(self.pause)
        if not self.states:
            return None
        state, reason = self.states.pop(0)
        return {"push": "receipt", "id": "A", "state": state, "reason": reason}


def post(program: SlowProgram, broker: Broker) -> Correspondence:
    parts = cast(DrivenProgram, program), cast(BrokerClient, broker)
    return Correspondence(*parts, "Ada", PATIENCE)


def test_a_program_has_started_once_it_shows_something_and_rests() -> None:
    program = SlowProgram([([], 0.0), ([], STARTED + 1), (["Loading"], 0.0), (["> "], STARTED + 1)])
    post(program, Broker([], 0.0)).started()
    assert program.rows() == ["> "]


def test_patience_begins_when_the_program_reads() -> None:
    broker = Broker([*[("queued", STARTING)] * 5, ("queued", ""), ("seen", "")], PATIENCE)
    it = post(SlowProgram([(["> "], 99.0)]), broker)
    sent = it.ask(talk.simple("T1"), "T1")
    assert it.state(sent) == ("seen", "")


@pytest.mark.parametrize(("shown", "unsent"), [("> {}", True), ("> {}\n\n> ", False)])
def test_what_stands_unsent_in_the_input_line_is_not_seen(
    shown: str, unsent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_check, "new_token", lambda: "T1")
    body = talk.simple("T1", "a reply").body
    words = shown.format(body).replace("\n", "\\n").replace("%", "%%")
    with DrivenProgram(["sh", "-c", f"printf '{words}'; cat"], dict(os.environ), 60, 20) as shows:
        wait_until(lambda: shows.shows(body))
        it = Correspondence(shows, cast(BrokerClient, Broker([("seen", "")], 0.0)), "Ada", PATIENCE)
        conversation = _Conversation(shows, it, "")
        conversation._rest()
        assert conversation._rows[talk.REST][0] is not unsent
