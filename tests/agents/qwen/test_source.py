"""What Qwen Code says, from an event file and a record of the chat that it wrote.

In them: a turn with thinking and a tool that the person allowed, one that was stopped, one that the
API refused, one into which a message came, and a message that came while a menu was open.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relay.agents.profile import find_profile
from relay.agents.qwen.source import (
    LACKING,
    REST,
    SILENCE,
    VERDICT,
    Block,
    DoubtedBlocks,
    QwenSource,
)
from relay.agents.structured_source import ERROR_RETRY, LIMIT_RETRY, limited
from relay.core.message import AgentState
from relay.core.source_events import (
    Degraded,
    End,
    LimitCause,
    Line,
    Proof,
    SourceEvent,
    StateChange,
)

IDLE = ["─" * 40, ">", "─" * 40]
WORKS = ["  ⠏ Thinking (3s · esc to cancel)", *IDLE]
STOPPED = ["  ● Request cancelled.", "", *IDLE]
ASKS = ["Allow execution of: 'touch'?", "1. Yes", "2. No"]


def lines(events: list[SourceEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, Line)]


def states(events: list[SourceEvent]) -> list[AgentState]:
    return [event.state for event in events if isinstance(event, StateChange)]


class Heard:
    """A source and what came of what it was fed."""

    def __init__(self, *, started: float = 0.0) -> None:
        self.source = QwenSource(started, profile=find_profile("qwen")[0])
        self.events: list[SourceEvent] = []
        self.now = 100.0
        self._uuid = 0

    def feed(self, *lines: str) -> list[SourceEvent]:
        fed = [event for line in lines for event in self.source.transcript(line, self.now)]
        self.events += fed
        return fed

    def see(self, rows: list[str], seconds: float = 0.0) -> list[SourceEvent]:
        self.now += seconds
        seen = self.source.glance(rows, self.now)
        self.events += seen
        return seen

    def tell(self, kind: str, **more: Any) -> list[SourceEvent]:
        self._uuid += 1
        own = {"uuid": f"u{self._uuid}", "session_id": "s", "parent_tool_use_id": None}
        return self.feed(json.dumps({"type": kind, **own, **more}, separators=(",", ":")))

    def stream(self, kind: str, **more: Any) -> list[SourceEvent]:
        return self.tell("stream_event", event={"type": kind, **more})

    def begin(self) -> None:
        self.tell("system", subtype="session_start")
        self.see(IDLE)
        self.prompt("a question")

    def prompt(self, text: str) -> list[SourceEvent]:
        content = [{"type": "text", "text": text}]
        return self.tell("user", message={"role": "user", "content": content})

    def open(self, kind: str = "text") -> list[SourceEvent]:
        return self.stream("content_block_start", index=0, content_block={"type": kind})

    def text(self, text: str) -> list[SourceEvent]:
        delta = {"type": "text_delta", "text": text}
        return self.stream("content_block_delta", index=0, delta=delta)

    def close(self) -> list[SourceEvent]:
        return self.stream("content_block_stop", index=0)

    def said(self, tokens: int, kind: str = "text") -> list[SourceEvent]:
        usage = {"input_tokens": tokens, "output_tokens": 0}
        return self.tell("assistant", message={"content": [{"type": kind}], "usage": usage})

    def stop(self) -> list[SourceEvent]:
        return self.stream("message_stop")

    def message(self, text: str, tokens: int = 0) -> None:
        """A message of one block is told to its end; without tokens nobody knows whether it is
        whole."""
        self.open()
        self.text(text)
        self.close()
        self.said(tokens)

    def answer(self, text: str, tokens: int = 0) -> None:
        self.message(text, tokens)
        self.stop()

    def chat(self, name: str, **event: Any) -> list[SourceEvent]:
        told = {"event.name": f"qwen-code.{name}", "prompt_id": "s########0", **event}
        head = {"uuid": "x", "sessionId": "s", "timestamp": "2026-11-22T06:16:27.109Z"}
        body = {"subtype": "ui_telemetry", "systemPayload": {"uiEvent": told}}
        return self.feed(json.dumps({**head, "type": "system", **body}, separators=(",", ":")))


@pytest.fixture
def it() -> Heard:
    heard = Heard()
    heard.begin()
    heard.events.clear()
    return heard


HERE = Path(__file__).parent
EVENTS = (HERE / "events.jsonl").read_text().splitlines()
CHAT = (HERE / "chat.jsonl").read_text().splitlines()


def test_a_recorded_conversation() -> None:
    it = Heard()
    it.feed(*CHAT)
    for line in EVENTS:
        it.feed(line)
        if it.source.in_doubt:
            it.see(STOPPED)
        if it.source.agent_state is AgentState.STARTING:
            it.see(IDLE)
    said = lines(it.events)
    assert said[:5] == ["I run it.", "", "@relay:Bob before the tool", "Done.", ""]
    assert said[5:9] == ["@relay:Bob after it", "Begun.", "", "@relay:Bob part of a"]
    assert not any("thought" in line or "API Error" in line for line in said)
    ends = [event for event in it.events if isinstance(event, End)]
    assert [end.aborted for end in ends] == [False, False, True, True, False, False, False]
    assert len({end.stream for end in ends}) == len(ends)
    reasons = [event.reason for event in it.events if isinstance(event, StateChange)]
    assert "asks to use run_shell_command" in reasons
    assert "the API refuses the account" in reasons
    assert it.source.agent_state is AgentState.IDLE and it.source.saved.model == "mock-model"
    assert it.source.seen("[STEER001]")
    assert it.source.seen("[UNDER001]")
    assert not it.source.seen("[OTHER001]")


def test_read_again_it_says_the_same_under_the_same_names() -> None:
    once, twice = Heard(), Heard()
    once.feed(*EVENTS)
    for number, line in enumerate(EVENTS):
        twice.feed(line)
        after = QwenSource(0.0)
        after.restore(json.loads(json.dumps(twice.source.state())))
        twice.source = after
        assert number < len(EVENTS)
    assert twice.events == once.events


def test_an_unknown_or_damaged_line_is_passed_over(it: Heard) -> None:
    for line in ("", "{", "null", "[]", '{"type":"result"}', '{"type":"stream_event"}', "\0\0"):
        assert it.feed(line) == []


def test_a_subagents_words_are_not_heard(it: Heard) -> None:
    event = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "@relay:B x\n"}}
    assert it.tell("stream_event", parent_tool_use_id="call_1", event=event) == []


def test_its_own_tool_calls_and_answers_are_known(it: Heard) -> None:
    count = it.source.answers
    it.stream("message_start", message={})
    it.stream("content_block_start", content_block={"type": "tool_use", "id": "own"})
    of_another = {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "no"}}
    it.tell("stream_event", parent_tool_use_id="own", event=of_another)
    it.tell("stream_event", parent_tool_use_id="own", event={"type": "message_start"})
    after = QwenSource(0.0)
    after.restore(it.source.state())
    for source in (it.source, after):
        assert source.answers == count + 1
        assert source.called("own") and not source.called("no")
        assert not source.went_on(count + 1)
    it.stream("message_start", message={})
    assert it.source.went_on(count + 1)  # the same turn goes on
    it.prompt("another question")
    it.stream("message_start", message={})
    assert it.source.went_on(count + 1) and not it.source.went_on(count + 2)


def test_text_goes_on_after_thinking_in_a_block_of_its_own(it: Heard) -> None:
    it.message("First.")
    assert it.open("thinking") == [Line("u3", "First."), End("u3")]
    it.close()
    it.answer("@relay:Bob second", tokens=20)
    assert lines(it.events) == ["First.", "@relay:Bob second"]
    assert it.source.agent_state is AgentState.IDLE


def test_a_stopped_turn_is_broken_off_by_what_the_screen_says(it: Heard) -> None:
    it.answer("@relay:Bob part of a\nmess")
    assert it.source.in_doubt
    assert it.see(WORKS) == []
    assert it.see(STOPPED) == [End("u3", aborted=True), StateChange(AgentState.IDLE)]


def test_without_a_record_an_api_that_counts_no_tokens_is_believed_in_the_end(it: Heard) -> None:
    it.answer("@relay:Bob whole")
    assert it.see(IDLE, VERDICT / 2) == []
    assert it.see(IDLE, VERDICT) == [
        Line("u3", "@relay:Bob whole"),
        End("u3"),
        StateChange(AgentState.IDLE),
    ]


def test_the_record_of_the_chat_says_at_once_that_a_message_is_whole(it: Heard) -> None:
    it.answer("@relay:Bob whole")
    assert it.chat("api_response", response_text="another") == []
    it.chat("api_response", response_text="@relay:Bob whole", subagent_id="memory")
    assert it.source.in_doubt
    assert lines(it.chat("api_response", response_text="@relay:Bob whole")) == ["@relay:Bob whole"]
    assert it.source.agent_state is AgentState.IDLE


def test_a_message_that_the_record_does_not_hold_was_stopped(it: Heard) -> None:
    it.chat("api_response", response_text="of another turn")
    it.answer("@relay:Bob part")
    assert it.see(IDLE, VERDICT + 0.1) == [End("u3", aborted=True), StateChange(AgentState.IDLE)]


def test_an_answer_that_the_api_gives_twice_is_heard_once(it: Heard) -> None:
    it.open()
    it.text("Hello.\n@relay:Bob one\npar")
    it.chat("api_response", response_text="Hello.\n@relay:Bob one\npar")
    it.text("Hello.\n@relay")
    it.text(":Bob one\npartial")
    it.close()
    it.said(20)
    assert lines(it.events) == ["Hello.", "@relay:Bob one", "partial"]


def test_a_record_that_is_read_early_changes_nothing(it: Heard) -> None:
    it.open()
    it.text("Hello.\nHel")
    it.chat("api_response", response_text="Hello.\nHello.\n")
    it.text("lo.\n")
    it.close()
    it.said(20)
    assert lines(it.events) == ["Hello.", "Hello."]


def test_the_error_of_an_api_is_not_the_agents_word(it: Heard) -> None:
    it.open()
    it.text("@relay:Bob part")
    it.text("[API Error: 500 @relay:Bob no]")
    it.close()
    it.said(0)
    it.stop()
    assert lines(it.events) == []
    assert it.events[-1] == StateChange(
        AgentState.LIMITED, "the API answers with an error", ERROR_RETRY, cause=LimitCause.ERROR
    )


@pytest.mark.parametrize(
    ("text", "state", "retry"),
    [
        ("[API Error: 400 bad request]", AgentState.IDLE, None),
        ("[API Error: 401 bad key]", AgentState.LIMITED, LIMIT_RETRY),
        ("[API Error: You exceeded your current quota]", AgentState.LIMITED, LIMIT_RETRY),
        ("[API Error: 429 slow down]\nPlease wait and try again later.", AgentState.LIMITED, None),
        ("Qwen OAuth quota exceeded: come back tomorrow", AgentState.LIMITED, LIMIT_RETRY),
        ("[API Error: Connection error.]", AgentState.LIMITED, ERROR_RETRY),
    ],
)
def test_errors_are_states(it: Heard, text: str, state: AgentState, retry: float | None) -> None:
    it.answer(text)
    [change] = [event for event in it.events if isinstance(event, StateChange)]
    assert change.state is state
    assert retry is None or change.retry == retry
    assert lines(it.events) == []


def test_what_only_looks_like_an_error_is_heard(it: Heard) -> None:
    it.open()
    it.text("[API Error: x] is what it shows.\n")
    assert lines(it.events) == ["[API Error: x] is what it shows."]


def test_a_limit_shows_while_qwen_code_still_tries(it: Heard) -> None:
    [change] = it.chat("api_error", status_code=429, error_message="429 slow down")
    assert change == limited(LimitCause.USAGE, "a usage limit is reached")
    assert it.source.in_turn
    it.open()
    assert states(it.text("Here")) == [AgentState.BUSY]


def test_a_dialog_blocks_until_it_is_answered(it: Heard) -> None:
    ask = {"subtype": "can_use_tool", "tool_name": "write_file"}
    it.tell("control_request", request_id="r1", request=ask)
    it.tell("control_request", request_id="r2", request=ask)
    assert it.events == [StateChange(AgentState.BLOCKED, "asks to use write_file")]
    assert it.tell("control_response", response={"request_id": "r1"}) == []
    answered = it.tell("control_response", response={"request_id": "r2"})
    assert states(answered) == [AgentState.BUSY]


def test_a_dialog_of_which_nothing_more_is_told_ends_with_the_screen(it: Heard) -> None:
    ask = {"subtype": "can_use_tool", "tool_name": "write_file"}
    it.tell("control_request", request_id="r1", request=ask)
    assert it.see(ASKS) == []
    assert it.see(IDLE, 1.0) == []
    assert it.see(IDLE, REST / 2) == []
    assert states(it.see(IDLE, REST)) == [AgentState.IDLE]
    assert not it.source.in_turn


def test_a_menu_blocks_while_it_is_open(it: Heard) -> None:
    it.open()
    it.close()
    it.said(20)
    it.stop()
    assert states(it.see(ASKS)) == [AgentState.BLOCKED]
    assert states(it.see(IDLE)) == [AgentState.IDLE]


def test_a_pause_in_the_middle_of_a_message_breaks_nothing_off(it: Heard) -> None:
    it.open()
    it.text("@relay:Bob a long")
    assert it.see(IDLE, 1.0) == []
    assert it.see(WORKS, 60.0) == []
    it.text(" thought\n")
    assert lines(it.events) == ["@relay:Bob a long thought"]


def test_a_file_that_ends_in_the_middle_of_a_message_is_given_up(it: Heard) -> None:
    it.open()
    it.text("@relay:Bob part\nof")
    it.see(IDLE, 1.0)
    given_up = it.see(IDLE, LACKING)
    assert [type(event) for event in given_up] == [End, StateChange, Degraded]
    assert not it.source.trusted


def test_a_file_that_lacks_an_answer_is_given_up(it: Heard) -> None:
    it.message("told\n", tokens=20)
    it.chat("api_response", response_text="told\n")
    assert it.see(WORKS, LACKING + 1) == []
    it.chat("api_response", response_text="not told")
    it.see(WORKS, LACKING - 1)
    assert it.source.trusted
    it.see(WORKS, 2.0)
    assert not it.source.trusted


def test_an_answer_that_is_recorded_before_it_is_told_is_waited_for(it: Heard) -> None:
    it.chat("api_response", response_text="told")
    it.see(WORKS, LACKING - 1)
    it.open()
    it.text("told")
    assert it.see(WORKS, LACKING) == []


def test_a_file_that_falls_silent_is_given_up_and_believed_again(it: Heard) -> None:
    it.open()
    it.close()
    it.said(20)
    it.stop()
    it.see(WORKS, 1.0)
    assert it.source.trusted
    [given_up] = it.see(WORKS, SILENCE + 1)
    assert isinstance(given_up, Degraded)
    assert not it.source.trusted
    it.prompt("again")
    assert it.source.trusted


def test_several_messages_that_arrive_as_one_are_proven(it: Heard) -> None:
    text = "Relay message [AAAA0001] from agent Bob: x\n\nRelay notice [AAAA0002]: y"
    [proof] = [event for event in it.prompt(text) if isinstance(event, Proof)]
    assert proof.text == text
    assert it.source.seen("[AAAA0001]")
    assert it.source.seen("[AAAA0002]")


def test_the_end_settles_what_was_complete() -> None:
    it = Heard()
    it.begin()
    it.open()
    it.text("one\ntwo")
    it.close()
    assert it.source.finish(it.now) == [Line("u3", "two"), End("u3"), StateChange(AgentState.GONE)]


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
    assert it.recorded("said by b") == [End("a", aborted=True), Line("b", "said by b"), End("b")]
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


@pytest.fixture
def asked_on(it: Heard) -> Heard:
    """A message has ended without a count of tokens, and the next turn begins at once."""
    it.chat("api_response", response_text="of another turn")
    it.answer("@relay:Bob part")
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
    it.answer("@relay:Bob part")
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
