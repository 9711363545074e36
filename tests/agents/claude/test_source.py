"""What is heard from hooks and transcript, in every order in which they may come.

The events have the form that Claude Code 2.1.330 was seen to send; times are invented.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.agents.claude.source import HOOKS_DEADLINE, ClaudeSource
from relay.agents.claude.transcript import (
    DISPLAY_GRACE,
    GAP_DEADLINE,
    TAIL_GRACE,
    Messages,
    MessagesState,
    TranscriptRecord,
    Whereabouts,
    whereabouts,
)
from relay.agents.profile import find_profile
from relay.core.message import AgentState
from relay.core.source_events import Degraded, End, Line, SourceEvent, StateChange
from relay.core.state import from_json, to_json
from tests.agents.heard import Heard

STARTED = 1_800_000_000.0


class Script(Heard):
    """Feeds a source and collects what comes out; ``now`` moves only when told."""

    def __init__(self, *, hooks: bool = True, gated: bool = False) -> None:
        super().__init__()
        self.source = ClaudeSource(
            STARTED, hooks=hooks, gated=gated, profile=find_profile("claude")[0]
        )
        self._uuids = itertools.count()

    def hook(self, name: str, **fields: Any) -> Script:
        event = {"hook_event_name": name, "prompt_id": "p1", **fields}
        self.events += self.source.hook(event, self.now)
        return self

    def show(
        self, message: str, index: int, delta: str, final: bool = False, prompt: str = "p1"
    ) -> Script:
        fields = {"message_id": message, "index": index, "delta": delta, "final": final}
        return self.hook("MessageDisplay", prompt_id=prompt, **fields)

    def line(self, age: float = 0.0, **record: Any) -> Script:
        when = datetime.fromtimestamp(STARTED + 1 - age, UTC)
        record = {"uuid": f"u{next(self._uuids)}", "timestamp": when.isoformat(), **record}
        self.events += self.source.transcript(json.dumps(record), self.now)
        return self

    def wrote(self, message: str, *blocks: Any, age: float = 0.0, **more: Any) -> Script:
        for block in blocks:
            content = [{"type": "text", "text": block}] if isinstance(block, str) else [block]
            body = {"id": message, "role": "assistant", "content": content}
            self.line(age, type="assistant", message=body, **more)
        return self

    def user(self, content: Any, **more: Any) -> Script:
        record = {"promptId": "p1", "message": {"role": "user", "content": content}, **more}
        return self.line(type="user", **record)

    def wait(self, seconds: float) -> Script:
        self.now += seconds
        self.events += self.source.tick(self.now)
        return self


THINKING = {"type": "thinking", "thinking": "@relay:Thought x"}


def call(identifier: str, command: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": identifier, "name": "Bash", "input": {"command": command}}


def result(identifier: str) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": identifier, "content": "@relay:Tool x"}]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_pieces_are_put_in_order(order: tuple[int, ...]) -> None:
    pieces = ["one\n\n", "@relay:Bob two\nmore\n", "three"]
    script = Script()
    for index in order:
        script.show("m", index, pieces[index], final=index == 2)
    script.wrote("api", "".join(pieces))
    assert script.lines == ["one", "", "@relay:Bob two", "more", "three"]
    assert script.ends == [End("p1/0")]


def test_a_piece_that_comes_twice_is_heard_once() -> None:
    script = Script().show("m", 0, "one\n").show("m", 0, "one\n").show("m", 1, "two", final=True)
    script.wait(TAIL_GRACE).show("m", 1, "two", final=True).wait(TAIL_GRACE)
    assert script.lines == ["one", "two"]
    assert len(script.ends) == 1


def test_the_last_line_does_not_wait_long_for_the_transcript() -> None:
    script = Script().show("m", 0, "only", final=True)
    assert script.lines == []
    assert script.source.next_deadline() == script.now + TAIL_GRACE
    assert script.wait(TAIL_GRACE).lines == ["only"]
    assert script.wrote("api", "only").wait(DISPLAY_GRACE).lines == ["only"]


def test_a_block_after_thinking_begins_a_line_of_its_own() -> None:
    script = Script().show("m", 0, "First.@relay:Bob second", final=True)
    script.wrote("api", "First.", THINKING, "@relay:Bob second")
    assert script.wait(TAIL_GRACE).lines == ["First.", "@relay:Bob second"]
    assert len(script.ends) == 1


def test_blocks_that_follow_each_other_are_one_text() -> None:
    script = Script().show("m", 0, "A claim, as in the source.", final=True)
    script.wrote("api", "A claim,", " as in the source.").wait(TAIL_GRACE)
    assert script.lines == ["A claim, as in the source."]


def test_the_same_words_said_twice_are_heard_twice() -> None:
    script = Script().show("m1", 0, "@relay:Bob hi", final=True).wrote("a1", "@relay:Bob hi")
    script.show("m2", 0, "@relay:Bob hi", final=True).wrote("a2", "@relay:Bob hi")
    script.wait(DISPLAY_GRACE)
    assert script.lines == ["@relay:Bob hi"] * 2
    assert [end.stream for end in script.ends] == ["p1/0", "p1/1"]


def test_what_was_never_displayed_is_heard_from_the_transcript() -> None:
    script = Script().hook("SessionStart", source="startup").wrote("api", "one\ntwo")
    assert script.lines == []
    assert script.wait(DISPLAY_GRACE).lines == ["one", "two"]
    script.show("m", 0, "one\n").show("m", 1, "two", final=True).wait(DISPLAY_GRACE)
    assert script.lines == ["one", "two"]


def test_after_a_message_that_was_not_displayed_the_next_one_is_named_right() -> None:
    script = Script().hook("SessionStart").user("go").wrote("a1", "one").wait(DISPLAY_GRACE)
    script.show("m2", 0, "two", final=True).wrote("a2", "two").hook("Stop")
    streams = [event.stream for event in script.events if isinstance(event, Line)]
    assert streams == ["p1/0", "p1/1"]
    assert {end.stream for end in script.ends} == {"p1/0", "p1/1"}


def test_a_lost_piece_is_taken_from_the_transcript() -> None:
    script = Script().show("m", 0, "one\n").show("m", 2, "three", final=True)
    script.wrote("api", "one\n@relay:Bob two\nthree")
    assert script.lines == ["one"]
    assert script.wait(DISPLAY_GRACE).lines == ["one", "@relay:Bob two", "three"]
    assert script.show("m", 1, "@relay:Bob two\n").wait(DISPLAY_GRACE).ends == [End("p1/0")]


def test_a_piece_that_is_lost_for_good_is_reported() -> None:
    script = Script().show("m", 0, "@relay:Bob one\n").show("m", 2, "three", final=True)
    script.wait(GAP_DEADLINE)
    assert script.ends == [End("p1/0", aborted=True)]
    assert any(isinstance(event, Degraded) for event in script.events)


def test_a_whole_conversation_without_hooks() -> None:
    script = Script(hooks=False).user("go").wrote("a1", THINKING, "one", call("t1", "ls"))
    script.user(result("t1")).wrote("a2", "@relay:Bob two")
    script.line(type="system", subtype="turn_duration")
    assert script.lines == ["one", "@relay:Bob two"]
    assert script.states == [AgentState.BUSY, AgentState.IDLE]
    assert script.proofs == ["go"]
    assert [end.stream for end in script.ends] == ["p1/0", "p1/1"]


@pytest.mark.parametrize("gated", [False, True])
def test_hooks_that_never_come_are_noticed(gated: bool) -> None:
    script = Script(gated=gated).user("go").wrote("a1", "one").wait(HOOKS_DEADLINE)
    assert script.lines == ["one"]
    [dead] = [e for e in script.events if isinstance(e, Degraded)]
    assert ("tool calls do not reach" in dead.reason) is gated
    assert script.source.trusted
    assert script.wrote("a2", "two").lines == ["one", "two"]


@pytest.mark.parametrize(
    "more",
    [
        {"isSidechain": True},
        {"isApiErrorMessage": True},
        {"age": 3600.0},
        {"timestamp": "nonsense"},
        {"timestamp": None},
    ],
)
def test_what_is_not_the_agents_own_word_of_this_run_is_not_heard(more: dict[str, Any]) -> None:
    script = Script(hooks=False).wrote("api", "@relay:Bob x", **more).wait(60)
    assert script.events == []


def test_damaged_lines_are_passed_over() -> None:
    source = ClaudeSource(STARTED, hooks=False)
    for line in (
        "",
        "{",
        "[]",
        "1",
        '{"type":"assistant"}',
        '{"type":"user","message":3}',
        "[" * 9999,
    ):
        assert source.transcript(line, 1.0) == []


def test_a_subagent_is_not_heard() -> None:
    script = Script().hook("MessageDisplay", agent_id="a", message_id="m", index=0, delta="x\n")
    assert script.lines == []


def test_interrupted_while_speaking() -> None:
    script = Script().hook("UserPromptSubmit", prompt="go").show("m", 0, "@relay:Bob part\n")
    script.wrote("api", "@relay:Bob part\nof a").user(
        [{"type": "text", "text": "[Request interrupted by user]"}], interruptedMessageId="api"
    )
    script.wait(DISPLAY_GRACE)
    assert script.lines == ["@relay:Bob part"]
    assert script.ends == [End("p1/0", aborted=True)]
    assert script.states == [AgentState.BUSY, AgentState.IDLE]


CUT = "I begin.\n\n@relay:Bob part\nof a"


@pytest.mark.parametrize("shown", ["before", "between", "after", "never"])
def test_what_was_cut_is_not_said_though_its_display_calls_it_complete(shown: str) -> None:
    script = Script().hook("UserPromptSubmit", prompt="go")
    if shown != "never":
        script.show("m", 0, "I begin.\n\n@relay:Bob part\n")
    for when in ("before", "between", "after"):
        if when == shown:
            script.show("m", 1, "of a", final=True)
        if when == "before":
            script.wrote("api", CUT, isAbortedMidStream=True)
        elif when == "between":
            stopped = [{"type": "text", "text": "[Request interrupted by user]"}]
            script.user(stopped, interruptedMessageId="api")
    if shown == "never":
        script.show("m", 0, CUT, final=True)
    script.wait(TAIL_GRACE).wait(DISPLAY_GRACE)
    assert "of a" not in script.lines
    assert script.ends == ([] if shown == "never" else [End("p1/0", aborted=True)])
    assert script.states == [AgentState.BUSY, AgentState.IDLE]


def test_without_hooks_what_was_cut_is_heard_up_to_its_last_message() -> None:
    script = Script(hooks=False).user("go").wrote("api", CUT, isAbortedMidStream=True)
    assert script.lines == ["I begin.", "", "@relay:Bob part"]
    assert script.ends == [End("p1/0", aborted=True)]


def test_a_failed_request_breaks_off_what_it_had_begun() -> None:
    script = Script().hook("UserPromptSubmit", prompt="go").show("m", 0, "@relay:Bob part\n")
    script.hook("StopFailure", error="overloaded")
    assert script.ends == [End("p1/0", aborted=True)]
    script.hook("UserPromptSubmit", prompt="go", prompt_id="p2")
    assert script.states[-2:] == [AgentState.LIMITED, AgentState.BUSY]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("rate_limit", "a usage limit is reached"),
        ("server_error", "the API answers with an error (server_error)"),
        ("invalid_request", ""),
    ],
)
def test_a_model_that_does_not_answer_is_a_state(error: str, reason: str) -> None:
    script = Script().hook("UserPromptSubmit", prompt="go").hook("StopFailure", error=error)
    change = [event for event in script.events if isinstance(event, StateChange)][-1]
    assert change.reason == reason
    assert change.state is (AgentState.LIMITED if reason else AgentState.IDLE)
    assert (change.retry or 0) > 0 if reason else change.retry is None


def test_a_model_that_does_not_answer_does_so_no_sooner_because_nobody_types() -> None:
    script = Script().hook("UserPromptSubmit", prompt="go").hook("StopFailure", error="rate_limit")
    script.hook("Notification", notification_type="idle_prompt")
    assert script.states[-1] is AgentState.LIMITED


def test_reports_that_overtake_each_other_do_not_confuse_the_state() -> None:
    script = Script().hook("UserPromptSubmit", prompt="go")
    script.hook("Stop", last_assistant_message="one\n\ntwo").show("m", 0, "one\n\n")
    script.show("m", 1, "two", final=True)
    assert script.states == [AgentState.BUSY, AgentState.IDLE]
    script.hook("UserPromptSubmit", prompt="next", prompt_id="p2").hook("Stop")
    assert script.source.agent_state is AgentState.BUSY
    script.hook("Stop", prompt_id="p2").hook("UserPromptSubmit", prompt="late", prompt_id="p2")
    assert script.states[-1] is AgentState.IDLE
    assert "late" in script.proofs


def test_words_of_a_turn_that_has_ended_are_owed_until_they_are_heard() -> None:
    script = Script().hook("UserPromptSubmit", prompt="go").show("m", 0, "one\n\n")
    script.hook("Stop", last_assistant_message="one\n\ntwo")
    assert script.source.owes_words
    script.show("m", 1, "two", final=True).wrote("a", "one\n\ntwo")
    assert not script.source.owes_words
    script.hook("UserPromptSubmit", prompt="next", prompt_id="p2")
    script.hook("Stop", prompt_id="p2", last_assistant_message="three")
    assert script.source.owes_words
    assert not script.wrote("b", "three").wait(60.0).source.owes_words


def test_a_turn_that_goes_on_after_stop_is_busy_again() -> None:
    script = Script().hook("UserPromptSubmit", prompt="go").hook("Stop", last_assistant_message="x")
    assert script.show("m2", 0, "I go on\n").source.agent_state is AgentState.BUSY


def test_a_dialog_blocks_until_that_very_tool_has_run() -> None:
    script = Script().hook("UserPromptSubmit", prompt="go")
    script.wrote("a", call("t1", "ls"), call("t2", "rm x"))
    script.hook("PermissionRequest", tool_name="Bash", tool_input={"command": "rm x"})
    assert script.source.agent_state is AgentState.BLOCKED
    script.user(result("t1")).show("m", 0, "late words\n")
    assert script.source.agent_state is AgentState.BLOCKED
    assert script.user(result("t2")).source.agent_state is AgentState.BUSY


def test_a_dialog_that_has_left_the_screen_does_not_block() -> None:
    composer = ["─" * 40, "❯", "─" * 40]
    dialog = ["Do you want to proceed?", "❯ 1. Yes", "  2. No"]
    script = Script().hook("PermissionRequest", tool_name="Bash", tool_input={})
    assert script.source.look(composer, "", 0.0) == []  # not painted yet
    assert script.source.look(dialog, "", 0.0) == []
    assert script.source.look(composer, "", 0.0) == [StateChange(AgentState.BUSY)]
    assert script.source.look(composer, "", 0.0) == []


def test_notifications() -> None:
    script = Script().hook("UserPromptSubmit", prompt="go")
    for kind in ("permission_prompt", "idle_prompt", "permission_prompt"):
        script.hook("Notification", notification_type=kind)
    assert script.states == [AgentState.BUSY, AgentState.BLOCKED, AgentState.IDLE]


def test_what_proves_that_a_message_was_seen() -> None:
    script = Script().line(type="queue-operation", operation="enqueue", content="Relay [M1] x")
    assert script.source.accepted("[M1]")
    assert script.proofs == []  # it only waits
    script.line(type="attachment", attachment={"type": "queued_command", "prompt": "Relay [M1] x"})
    script.user("Another session sent a message:\nRelay [M2] y").hook(
        "UserPromptSubmit", prompt="Relay [M3] z"
    )
    assert [text.split("[")[1][:2] for text in script.proofs] == ["M1", "M2", "M3"]
    assert not script.source.accepted("[M4]")
    script.user(result("t"))
    assert len(script.proofs) == 3


def test_hooks_tell_where_things_are() -> None:
    script = Script().hook(
        "SessionStart", transcript_path="/t/a.jsonl", relay={"messaging-socket": "/s/1"}
    )
    assert script.source.transcript_path == "/t/a.jsonl"
    assert script.source.socket_path == "/s/1"
    assert script.states == [AgentState.IDLE]
    script.hook("SessionEnd", relay={"messaging-socket": ""})
    assert script.source.socket_path == "/s/1"


def test_reports_of_a_session_that_was_left_do_not_bring_it_back() -> None:
    script = Script().hook("SessionStart", session_id="a", transcript_path="/t/a.jsonl")
    script.hook("SessionStart", session_id="b", transcript_path="/t/b.jsonl", source="clear")
    script.hook("SessionEnd", session_id="a", transcript_path="/t/a.jsonl", reason="clear")
    script.hook("Stop", session_id="a", transcript_path="/t/a.jsonl")
    assert script.source.transcript_path == "/t/b.jsonl"
    script.hook("SessionStart", session_id="a", transcript_path="/t/a.jsonl", source="resume")
    assert script.source.transcript_path == "/t/a.jsonl"


def test_a_source_that_hears_nothing_says_so_and_recovers() -> None:
    script = Script()
    assert [type(e) for e in script.source.failed("nothing")] == [Degraded]
    assert script.source.failed("nothing") == []
    assert not script.source.trusted
    assert script.hook("SessionStart").source.trusted


def test_the_end_of_the_run_leaves_nothing_behind() -> None:
    script = Script().hook("SessionStart").show("m1", 0, "tail", final=True)
    script.show("m2", 0, "@relay:Bob cut\n").wrote("a3", "never displayed")
    events = script.source.finish(script.now)
    assert [e.text for e in events if isinstance(e, Line)] == ["never displayed", "tail"]
    assert End("p1/0") in events
    assert End("p1/1", aborted=True) in events
    assert events[-1] == StateChange(AgentState.GONE)


SAID = ["one\n\n@relay:Bob tw", "o\nmore\n", "tail"]


@pytest.mark.parametrize("cut", range(7))
def test_a_restart_anywhere_loses_and_doubles_nothing(cut: int) -> None:
    steps: list[Callable[[Script], object]] = [
        lambda s: s.hook("UserPromptSubmit", prompt="go").user("go"),
        lambda s: s.show("m", 0, SAID[0]),
        lambda s: s.show("m", 1, SAID[1]),
        lambda s: s.show("m", 2, SAID[2], final=True),
        lambda s: s.wrote("api", "".join(SAID)),
        lambda s: s.show("m2", 0, "next", final=True),
        lambda s: s.wrote("api2", "next"),
    ]
    script = Script()
    for number, step in enumerate(steps):
        if number == cut:
            kept = json.loads(json.dumps(script.source.state()))
            script.source = ClaudeSource(STARTED)
            script.source.restore(kept)
        step(script)
    script.wait(DISPLAY_GRACE)
    assert script.lines == ["one", "", "@relay:Bob two", "more", "tail", "next"]
    assert [end.stream for end in script.ends] == ["p1/0", "p1/1"]


LINES = st.lists(st.sampled_from(["", "a", "b", "@relay:Bob a", "a b"]), min_size=1, max_size=6)


def pieces_of(text: str, cuts: list[bool]) -> list[str]:
    """As Claude Code sends it: whole lines, the rest with the last piece."""
    pieces = [""]
    for number, line in enumerate(text.splitlines(keepends=True)):
        if number and cuts[number % len(cuts)]:
            pieces.append("")
        pieces[-1] += line
    return pieces


def words(events: list[SourceEvent]) -> dict[str, list[str]]:
    heard: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, Line):
            heard.setdefault(event.stream, []).append(event.text)
    return {stream: "\n".join(lines).strip("\n").split("\n") for stream, lines in heard.items()}


@settings(max_examples=100)
@given(st.data())
def test_every_message_is_heard_once(data: st.DataObject) -> None:
    saved = MessagesState()
    messages, events = Messages(saved), []
    said: list[list[str]] = []
    now = 0.0
    for number in range(data.draw(st.integers(1, 3), label="messages")):
        text = "\n".join(data.draw(LINES, label="lines")).strip("\n") or "x"
        said.append(text.split("\n"))
        cuts = data.draw(st.lists(st.booleans(), min_size=1, max_size=4), label="cuts")
        pieces = pieces_of(text, cuts)
        reports: list[int | None] = [*range(len(pieces)), None]  # None: the transcript
        for report in data.draw(st.permutations(reports), label="order"):
            if report is None:
                record = TranscriptRecord(
                    "said", 0, text=text, message_id=f"api{number}", uuid=f"u{number}"
                )
                events += messages.transcript(record, now)
                continue
            lost = data.draw(st.sampled_from([False, False, False, True]), label="lost")
            if lost:
                continue
            final = report == len(pieces) - 1
            event = {"message_id": f"m{number}", "index": report, "delta": pieces[report]}
            events += messages.display({**event, "final": final, "prompt_id": ""}, now)
        now += DISPLAY_GRACE
        events += messages.settle(now)
        saved = from_json(MessagesState, to_json(saved))
        messages = Messages(saved)
    now += 10 * DISPLAY_GRACE
    events += messages.settle(now)
    assert list(words(events).values()) == said
    assert all(not event.aborted for event in events if isinstance(event, End))


def test_a_process_tells_where_its_things_are(tmp_path: Path) -> None:
    config = str(tmp_path)
    assert whereabouts(config, 7) == Whereabouts()
    sessions, project = tmp_path / "sessions", tmp_path / "projects" / "-home-me"
    sessions.mkdir()
    noted = {"sessionId": "7d4b7dce-d64b", "messagingSocketPath": "/run/7.sock"}
    (sessions / "7.json").write_text(json.dumps(noted))
    assert whereabouts(config, 7) == Whereabouts(None, "/run/7.sock")
    project.mkdir(parents=True)
    transcript = project / "7d4b7dce-d64b.jsonl"
    transcript.write_text("")
    assert whereabouts(config, 7) == Whereabouts(str(transcript), "/run/7.sock")


@pytest.mark.parametrize("noted", ["", "[]", "{}", '{"sessionId": "../../../etc/passwd"}', "\xff"])
def test_notes_that_make_no_sense(tmp_path: Path, noted: str) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "7.json").write_text(noted, encoding="latin-1")
    assert whereabouts(str(tmp_path), 7) == Whereabouts()
