"""One block of text: whole lines, once, also when an answer has to be given again."""

from __future__ import annotations

from relay.agents.qwen.block import Block
from relay.core.source_events import End, Line, SourceEvent
from relay.core.state import from_json, to_json


def lines(events: list[SourceEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, Line)]


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
