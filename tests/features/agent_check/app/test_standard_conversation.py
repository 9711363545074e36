"""The standard conversation: what a perfect agent answers is what must be heard of it."""

from __future__ import annotations

import pytest

from relay.core.message import Message
from relay.directive.envelope import LINE_BYTES, Style, envelope
from relay.directive.grammar import Match, Scanner
from relay.features.agent_check import standard_conversation as talk
from relay.features.agent_check.standard_conversation import Ask
from tests.real_agents.programs.parrot import answer_to

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
