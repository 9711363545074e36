"""Blocks of text: whole lines, once, also of an answer given again; and those still in doubt."""

from __future__ import annotations

import json

import pytest

from relay.agents.qwen.source import DOUBTED_MAX, REST, VERDICT, Block, DoubtedBlocks, QwenSource
from relay.core.message import AgentState
from relay.core.source_events import End, Line, StateChange
from relay.core.state import from_json, to_json
from tests.agents.qwen.heard import IDLE, STOPPED, WORKS, Heard, lines, states


def test_lines_come_when_they_are_complete() -> None:
    block = Block()
    assert block.add("one\ntw", "a") == [Line("a", "one")]
    assert block.add("o\r\n", "b") == [Line("a", "two")]
    assert block.add("\nlast", "c") == [Line("a", "")]
    assert block.complete() == [Line("a", "last"), End("a")]
    assert block.complete() == []


def test_a_line_that_is_broken_off_is_not_heard() -> None:
    block = Block()
    block.add("one\ntwo", "a")
    assert block.break_off() == [End("a", aborted=True)]
    assert block.break_off() == []


def test_an_answer_that_is_given_again_is_heard_once() -> None:
    block = Block()
    block.add("Hello.\n@relay:Bob one\npar", "a")
    assert block.is_said_again("Hello.\n@relay:Bob one\npar", "Hel")
    block.start_again()
    assert block.add("Hello.\n@rel", "b") == []
    assert block.add("ay:Bob one\npartial\n", "c") == [Line("a", "partial")]
    assert block.complete() == [End("a")]


def test_an_answer_that_is_another_one_the_second_time_breaks_off_the_first() -> None:
    block = Block()
    block.add("Hello.\n@relay:Bob one\nand", "a")
    block.start_again()
    events = block.add("Hello.\n@relay:Bob two\n", "b")
    assert events == [End("a", aborted=True), Line("b", "@relay:Bob two")]
    assert block.complete() == [End("b")]


def test_a_third_answer_is_measured_by_all_that_was_heard() -> None:
    block = Block()
    block.add("one\ntwo\nthree\n", "a")
    block.start_again()
    assert block.add("one\nt", "b") == []
    block.start_again()
    assert lines(block.add("one\ntwo\nthree\nfour\n", "c")) == ["four"]
    assert block.complete() == [End("a")]


def test_a_shorter_answer_leaves_what_was_open_unsent() -> None:
    block = Block()
    block.add("one\n@relay:Bob two\nthree\n", "a")
    block.start_again()
    assert block.add("one", "b") == []
    assert block.complete() == [End("a", aborted=True)]


def test_the_record_of_a_long_answer_holds_its_beginning() -> None:
    block = Block()
    text = "a long answer " * 400
    block.add(text, "a")
    cut = text[:4000] + "...[truncated]"
    assert block.is_whole(cut)
    assert not block.is_whole("b" + cut)
    assert block.is_said_again(cut, "a long")
    assert not block.is_said_again(cut, "and more")


def test_a_new_session_goes_on() -> None:
    block = Block()
    block.add("one\ntwo\nthr", "a")
    block.start_again()
    block.add("one\nt", "b")
    after = from_json(Block, to_json(block))
    assert after.add("wo\nthree\n", "c") == [Line("a", "three")]


# -- in doubt: the record of the chat tells, or time does


def said_by(name: str) -> Block:
    made = Block()
    made.add(f"said by {name}", name)
    made.close()
    return made


def test_what_came_before_a_recorded_answer_was_stopped() -> None:
    it = DoubtedBlocks()
    for name in ("a", "b", "c"):
        assert it.put(said_by(name), 1.0) == []
    assert it.recorded("of nobody") is None
    assert it.recorded("said by b") == [
        End("a", aborted=True),
        Line("b", "said by b"),
        End("b"),
    ]
    assert it.recorded("said by b") is None
    assert it.break_off() == [End("c", aborted=True)]
    assert not it


def test_each_is_late_in_its_own_time() -> None:
    it = DoubtedBlocks()
    it.put(said_by("a"), 1.0)
    it.put(said_by("b"), 2.0)
    assert it.late(2.9, 2.0) == []
    assert it.late(3.0, 2.0) == [End("a", aborted=True)]
    assert it.late(9.0, 2.0) == [End("b", aborted=True)]
    assert not it


def test_the_oldest_of_too_many_was_stopped() -> None:
    it = DoubtedBlocks()
    for number in range(DOUBTED_MAX):
        assert it.put(said_by(str(number)), 1.0) == []
    assert it.put(said_by("last"), 1.0) == [End("0", aborted=True)]


@pytest.fixture
def asked_on(it: Heard) -> Heard:
    """A message has ended without a count of tokens, and the next turn begins at once."""
    it.chat("api_response", response_text="of another turn")
    it.open()
    it.text("@relay:Bob part")
    it.close()
    it.said(0)
    it.stop()
    it.events.clear()
    assert states(it.prompt("the next question")) == []
    return it


def test_a_stopped_message_is_not_taken_as_whole_when_the_next_turn_begins(asked_on: Heard) -> None:
    assert asked_on.source.in_doubt
    asked_on.open()
    asked_on.text("another\n")
    assert asked_on.see(WORKS, VERDICT - 0.1) == []
    assert asked_on.see(WORKS, 0.2) == [End("u3", aborted=True)]
    assert lines(asked_on.events) == ["another"]
    assert not asked_on.source.in_doubt


def test_a_whole_message_is_heard_while_the_next_turn_runs(asked_on: Heard) -> None:
    heard = asked_on.chat("api_response", response_text="@relay:Bob part")
    assert heard == [Line("u3", "@relay:Bob part"), End("u3")]
    asked_on.open()
    asked_on.text("another")
    asked_on.close()
    asked_on.said(20)
    assert lines(asked_on.events) == ["@relay:Bob part", "another"]
    assert not asked_on.source.in_doubt


@pytest.mark.parametrize("whole", [True, False])
def test_a_message_in_doubt_is_judged_by_the_next_session(asked_on: Heard, whole: bool) -> None:
    after = QwenSource(0.0)
    after.restore(json.loads(json.dumps(asked_on.source.state())))
    asked_on.source = after
    asked_on.now = 5.0  # another clock
    assert asked_on.see(WORKS) == []
    if whole:
        heard = asked_on.chat("api_response", response_text="@relay:Bob part")
        assert lines(heard) == ["@relay:Bob part"]
    else:
        assert asked_on.see(WORKS, VERDICT + 0.1) == [End("u3", aborted=True)]


def test_a_stopped_message_is_not_taken_as_whole_at_the_end(it: Heard) -> None:
    it.chat("api_response", response_text="of another turn")
    it.open()
    it.text("@relay:Bob part")
    it.close()
    it.said(0)
    it.stop()
    assert it.source.finish(it.now)[0] == End("u3", aborted=True)


def test_what_is_stopped_on_the_screen_is_not_whole_because_the_rest_comes_late(it: Heard) -> None:
    it.chat("api_response", response_text="of another turn")
    it.open()
    it.text("@relay:Bob part")
    it.close()
    it.see(STOPPED)
    assert it.see(STOPPED, REST + 0.1) == []
    assert it.see(STOPPED, 0.1) == [End("u3", aborted=True), StateChange(AgentState.IDLE)]
    it.said(0)
    it.stop()
    assert lines(it.events) == []


def test_a_closed_message_of_which_nothing_more_is_told_is_whole_in_the_end(it: Heard) -> None:
    it.open()
    it.text("@relay:Bob whole")
    it.close()
    it.see(IDLE)
    assert it.see(IDLE, REST + 0.1) == []
    assert lines(it.see(IDLE, VERDICT + 0.1)) == ["@relay:Bob whole"]
    assert it.source.agent_state is AgentState.IDLE
