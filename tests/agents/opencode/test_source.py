"""What is heard from the events of opencode's server; their forms are those of 1.18.33."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from relay.agents.opencode.source import SETTLE, SNAPSHOT, TEXT_MAX, OpencodeSource
from relay.core.message import AgentState
from relay.core.source_events import Degraded, End, Line, StateChange
from tests.agents.heard import Heard

STARTED = 1_800_000_000_000
RECORDED = Path(__file__).with_name("recorded")
ABORTED = {"name": "MessageAbortedError", "data": {"message": "Aborted"}}


class Script(Heard):
    """Feeds a source and collects what comes out; ``now`` moves only when told."""

    def __init__(self, source: OpencodeSource | None = None, *, connect: bool = True) -> None:
        super().__init__()
        self.source = source or OpencodeSource(STARTED)
        self._ids = itertools.count(1)
        self._parents: dict[str, str] = {}
        if connect:
            self.snapshot()

    def event(self, kind: str, **properties: Any) -> Script:
        self.events += self.source.hook({"type": kind, "properties": properties}, self.now)
        return self

    def snapshot(self, *messages: dict[str, Any], **found: Any) -> Script:
        return self.event(SNAPSHOT, messages=list(messages), **found)

    def session(self, name: str = "ses_1", parent: str = "", age: int = 0) -> Script:
        info = {"id": name, "time": {"created": STARTED + 1 - age}}
        if parent:
            info["parentID"] = parent
        return self.event("session.created", sessionID=name, info=info)

    def status(self, kind: str, session: str = "ses_1", **more: Any) -> Script:
        return self.event("session.status", sessionID=session, status={"type": kind, **more})

    def user(self, text: str, session: str = "ses_1", **more: Any) -> str:
        message = self._next()
        info = {"id": message, "sessionID": session, "role": "user", **_when(), **more}
        self.event("message.updated", sessionID=session, info=info)
        self.part(message, f"prt_{message}", session, type="text", text=text)
        return message

    def answer(self, parent: str, session: str = "ses_1", **more: Any) -> str:
        message = self._next()
        self._parents[message] = parent
        self.info(message, session, **more)
        return message

    def info(self, message: str, session: str = "ses_1", **more: Any) -> Script:
        parent = self._parents[message]
        info = {"id": message, "sessionID": session, "role": "assistant", "parentID": parent}
        return self.event("message.updated", sessionID=session, info={**info, **_when(), **more})

    def part(self, message: str, part: str, session: str = "ses_1", **fields: Any) -> Script:
        described = {"id": part, "messageID": message, "sessionID": session, **fields}
        return self.event("message.part.updated", sessionID=session, part=described)

    def begin(self, message: str, part: str, session: str = "ses_1") -> Script:
        self.part(message, f"{part}_step", session, type="step-start")
        return self.part(message, part, session, type="text", text="", time={"start": 1})

    def delta(self, message: str, part: str, *deltas: str) -> Script:
        for delta in deltas:
            self.event(
                "message.part.delta", messageID=message, partID=part, field="text", delta=delta
            )
        return self

    def end(self, message: str, part: str, text: str, session: str = "ses_1") -> Script:
        time = {"start": 1, "end": 2}
        return self.part(message, part, session, type="text", text=text, time=time)

    def tick(self, seconds: float) -> Script:
        self.now += seconds
        self.events += self.source.tick(self.now)
        return self

    def _next(self) -> str:
        return f"msg_{next(self._ids):03}"


def _when(age: int = 0) -> dict[str, Any]:
    return {"time": {"created": STARTED + 2 - age}}


def _answer(message: str) -> dict[str, Any]:
    info = {"id": message, "sessionID": "ses_1", "role": "assistant", "parentID": "msg_001"}
    return {**info, **_when()}


def _text(message: str, part: str, text: str, *, ended: bool = False) -> dict[str, Any]:
    time = {"start": 1, "end": 2} if ended else {"start": 1}
    ids = {"id": part, "messageID": message, "sessionID": "ses_1"}
    return {**ids, "type": "text", "text": text, "time": time}


def _busy() -> dict[str, Any]:
    return {"ses_1": {"type": "busy"}}


def turn() -> tuple[Script, str]:
    """A session in which the person has said something and the model begins to answer."""
    script = Script().session()
    asked = script.user("go on")
    script.status("busy")
    return script, script.answer(asked)


def recorded(name: str) -> list[dict[str, Any]]:
    text = (RECORDED / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def test_lines_come_as_they_are_completed() -> None:
    script, message = turn()
    script.begin(message, "p").delta(message, "p", "One.\n\n@relay:Bob he", "llo\nTh")
    assert script.lines == ["One.", "", "@relay:Bob hello"]
    script.end(message, "p", "One.\n\n@relay:Bob hello\nThe end")
    assert script.ends == []
    script.info(message, finish="stop")
    assert script.lines[3:] == ["The end"]
    assert script.ends == [End("p")]


def test_a_message_that_ends_before_its_tool_is_believed_at_once() -> None:
    script, message = turn()
    script.begin(message, "p").delta(message, "p", "@relay:Bob x")
    script.part(message, "t", type="tool", tool="bash", state={"status": "pending"})
    script.end(message, "p", "@relay:Bob x")
    assert script.ends == []
    script.part(message, "t", type="tool", tool="bash", state={"status": "running"})
    assert (script.lines, script.ends) == (["@relay:Bob x"], [End("p")])


def test_an_end_that_nothing_follows_is_believed_after_a_while() -> None:
    script, message = turn()
    script.begin(message, "p").end(message, "p", "@relay:Bob x")
    assert script.source.next_deadline() == script.now + SETTLE
    assert script.tick(SETTLE / 2).lines == []
    assert script.tick(SETTLE / 2).lines == ["@relay:Bob x"]
    assert script.source.next_deadline() is None


@pytest.mark.parametrize("told_first", [True, False])
def test_what_the_person_stops_is_broken_off(told_first: bool) -> None:
    said = "Begun.\n@relay:Bob part of a\nmess"
    script, message = turn()
    script.begin(message, "p").delta(message, "p", said)
    if told_first:
        script.event("session.error", sessionID="ses_1", error=ABORTED)
    script.end(message, "p", said)
    script.info(message, error=ABORTED, time={"created": STARTED + 2, "completed": STARTED + 9})
    script.tick(SETTLE)
    assert script.lines == ["Begun.", "@relay:Bob part of a"]
    assert script.ends == [End("p", aborted=True)]


def test_reasoning_tools_and_the_person_are_not_heard() -> None:
    script, message = turn()
    script.part(message, "r", type="reasoning", text="", time={"start": 1})
    script.delta(message, "r", "@relay:Bob thought\n")
    script.part(message, "r", type="reasoning", text="@relay:Bob thought\n", time={"end": 2})
    state = {"status": "completed", "output": "@relay:Bob tool\n"}
    script.part(message, "t", type="tool", tool="bash", state=state)
    script.user("@relay:Bob typed\n@relay:Bob again\n")
    assert script.lines == []


def test_subagents_and_summaries_are_not_heard() -> None:
    script, _ = turn()
    script.session("ses_2", parent="ses_1")
    asked = script.user("do it", "ses_2")
    sub = script.answer(asked, "ses_2")
    script.begin(sub, "s", "ses_2").end(sub, "s", "@relay:Bob sub\n", "ses_2")
    summary = script.answer(asked, summary=True, agent="compaction")
    script.begin(summary, "c").end(summary, "c", "@relay:Bob summary\n")
    script.tick(SETTLE)
    assert script.lines == []
    assert script.source.conversation == "ses_1"


def test_history_and_copies_in_a_fork_are_not_heard() -> None:
    script = Script().session()
    old = script.answer("msg_000", time={"created": STARTED - 5})
    script.begin(old, "o").end(old, "o", "@relay:Bob old\n")
    script.event("session.created", info={"id": "ses_f", "time": {"created": STARTED + 9_000}})
    copy = script.answer("msg_000", "ses_f", time={"created": STARTED + 2})
    script.begin(copy, "f", "ses_f").end(copy, "f", "@relay:Bob copied\n", "ses_f")
    assert script.tick(SETTLE).lines == []


def test_the_same_words_in_two_messages_are_two_streams() -> None:
    script, message = turn()
    script.begin(message, "p").end(message, "p", "@relay:Bob x").info(message, finish="stop")
    again = script.answer("msg_001")
    script.begin(again, "q").end(again, "q", "@relay:Bob x").info(again, finish="stop")
    assert [event.stream for event in script.events if isinstance(event, Line)] == ["p", "q"]


def test_what_was_missed_of_a_stream_is_taken_from_its_end() -> None:
    script, message = turn()
    script.begin(message, "p").delta(message, "p", "One.\nTw")
    script.source.interrupted()
    held = {"info": _answer(message), "parts": [_text(message, "p", "")]}
    script.snapshot(held, sessions=[{"id": "ses_1", **_when(1)}], status=_busy())
    script.delta(message, "p", "ree.\nFo")  # "o.\nTh" was missed
    assert script.lines == ["One."]
    script.end(message, "p", "One.\nTwo.\nThree.\nFour.").info(message, finish="stop")
    assert script.lines == ["One.", "Two.", "Three.", "Four."]
    assert script.ends == [End("p")]


def test_a_message_that_was_missed_altogether_is_heard_once() -> None:
    script, message = turn()
    script.source.interrupted()
    info = {**_answer(message), "finish": "stop"}
    held = {"info": info, "parts": [_text(message, "p", "@relay:Bob x", ended=True)]}
    for _ in range(2):
        script.snapshot(held, sessions=[{"id": "ses_1", **_when(1)}])
    script.end(message, "p", "@relay:Bob x")
    assert (script.lines, script.ends) == (["@relay:Bob x"], [End("p")])


def test_a_restart_hears_the_same_streams_and_nothing_twice() -> None:
    script, message = turn()
    script.begin(message, "p").delta(message, "p", "One.\nTw")
    state = json.loads(json.dumps(script.source.state()))
    source = OpencodeSource(STARTED)
    source.restore(state)
    after = Script(source, connect=False)
    held = {"info": _answer(message), "parts": [_text(message, "p", "")]}
    after.snapshot(held, sessions=[{"id": "ses_1", **_when(1)}], status=_busy())
    assert after.states == [AgentState.BUSY]
    after.end(message, "p", "One.\nTwo.").tick(SETTLE)
    assert [(e.stream, e.text) for e in after.events if isinstance(e, Line)] == [("p", "Two.")]
    assert source.conversation == "ses_1"


def test_after_the_screen_was_heard_only_what_is_new_is_heard() -> None:
    script, message = turn()
    [note] = script.source.failed("gone")
    assert isinstance(note, Degraded) and not script.source.trusted
    info = {**_answer(message), "finish": "stop"}
    held = {"info": info, "parts": [_text(message, "p", "@relay:Bob x", ended=True)]}
    script.source.state()
    fresh = OpencodeSource(STARTED)
    fresh.failed("gone")
    after = Script(fresh, connect=False)
    after.snapshot(held, sessions=[{"id": "ses_1", **_when(1)}], at=STARTED + 60_000)
    assert fresh.trusted and after.lines == []


def test_blanks_that_opencode_takes_off_are_no_change() -> None:
    script, message = turn()
    script.begin(message, "p").delta(message, "p", "One.\n\n").end(message, "p", "One.")
    script.info(message, finish="stop")
    assert (script.lines, script.ends) == (["One.", ""], [End("p")])
    assert not any(isinstance(event, Degraded) for event in script.events)


def test_a_text_that_is_too_long_is_cut_off_visibly() -> None:
    script, message = turn()
    script.begin(message, "p").delta(message, "p", "x" * TEXT_MAX, "y")
    assert any(isinstance(event, Degraded) for event in script.events)
    assert script.ends == [End("p", aborted=True)]


def test_a_message_is_proven_when_the_model_answers_after_it() -> None:
    script, message = turn()
    queued = script.user("Relay message [ABC] from agent Bob: look")
    assert script.source.accepted("[ABC]") and not script.source.seen("[ABC]")
    script.begin(message, "p")
    assert "ABC" not in "".join(script.proofs)
    script.begin(script.answer(queued), "q")
    assert script.proofs == ["go on", "Relay message [ABC] from agent Bob: look"]
    assert script.source.seen("[ABC]")


def test_a_failed_request_proves_nothing() -> None:
    script, message = turn()
    error = {"name": "APIError", "data": {"message": "no", "statusCode": 400}}
    script.info(message, error=error).status("idle")
    assert script.proofs == []


def test_a_command_of_the_persons_proves_nothing() -> None:
    script, message = turn()
    script.part(message, "t", type="tool", tool="bash", state={"status": "running"})
    assert script.proofs == []


def test_what_lies_after_a_stop_is_known() -> None:
    script, message = turn()
    script.begin(message, "p")
    queued = script.user("Relay message [ABC] from agent Bob: look")
    assert script.source.stranded() == []
    script.event("session.error", sessionID="ses_1", error=ABORTED).status("idle")
    [(session, name, head)] = script.source.stranded()
    assert (session, name) == ("ses_1", queued) and "[ABC]" in head
    script.event("message.removed", sessionID="ses_1", messageID=queued)
    assert script.source.stranded() == [] and not script.source.accepted("[ABC]")


def test_the_states_of_a_turn() -> None:
    script, _ = turn()
    request = {"id": "per_1", "sessionID": "ses_1", "permission": "bash"}
    script.event("permission.asked", **request)
    script.event("permission.replied", sessionID="ses_1", requestID="per_1", reply="once")
    script.status("idle")
    blocked = [e for e in script.events if isinstance(e, StateChange)][2]
    assert blocked.reason == "asks to use bash"
    assert [state.value for state in script.states] == ["idle", "busy", "blocked", "busy", "idle"]


def test_a_turn_that_was_stopped_is_told_as_broken_off() -> None:
    script, _ = turn()
    script.event("session.error", sessionID="ses_1", error=ABORTED).status("idle")
    script.status("busy").status("idle")
    changes = [(e.state.value, e.broken) for e in script.events if isinstance(e, StateChange)]
    assert changes[-3:] == [("idle", True), ("busy", False), ("idle", False)]


def test_a_subagents_question_blocks_and_anothers_does_not() -> None:
    script, _ = turn()
    script.session("ses_2", parent="ses_1")
    script.event("question.asked", id="que_1", sessionID="ses_2")
    blocked = script.states[-1]
    assert blocked is AgentState.BLOCKED
    script.event("question.rejected", requestID="que_1")
    script.event("session.updated", info={"id": "ses_9", "time": {"created": STARTED}})
    script.event("permission.asked", id="per_9", sessionID="ses_9", permission="edit")
    assert script.states[-1] is AgentState.BUSY


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ({"statusCode": 429, "message": "slow down"}, "a usage limit is reached: slow down"),
        ({"statusCode": 503}, "the API answers with an error (503)"),
        ({"message": "refused"}, "the API cannot be reached: refused"),
        ({"statusCode": 400, "message": "bad"}, ""),
    ],
)
def test_a_model_that_does_not_answer_is_a_state(error: dict[str, Any], reason: str) -> None:
    script, _ = turn()
    script.event("session.error", sessionID="ses_1", error={"name": "APIError", "data": error})
    script.status("idle")
    change = [event for event in script.events if isinstance(event, StateChange)][-1]
    assert change.reason == reason
    assert change.state is (AgentState.LIMITED if reason else AgentState.IDLE)
    script.status("busy")
    assert script.states[-1] is AgentState.BUSY


def test_the_person_is_followed_into_the_session_they_speak_in() -> None:
    script = Script().session("ses_1").session("ses_2")
    assert script.source.conversation == "ses_2"
    script.user("back here", "ses_1", agent="plan", model={"providerID": "m", "modelID": "x"})
    assert script.source.conversation == "ses_1"
    assert script.source.saved.manner == {
        "agent": "plan",
        "model": {"providerID": "m", "modelID": "x"},
    }
    script.event("session.deleted", info={"id": "ses_1"})
    assert script.source.conversation == ""


def test_what_is_unknown_is_asked_for() -> None:
    script = Script()
    script.user("hello", "ses_7")
    assert script.source.missing == ["ses_7"]
    script.snapshot(sessions=[{"id": "ses_7", **_when(1)}])
    assert script.source.missing == []


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": 7},
        {"type": "message.updated", "properties": []},
        {"type": "message.updated", "properties": {"info": {"id": 3}}},
        {"type": "message.part.updated", "properties": {"part": None}},
        {"type": "session.status", "properties": {"sessionID": "s", "status": "busy"}},
        {"type": "permission.asked", "properties": {}},
        {"type": "session.error", "properties": {"sessionID": "s", "error": "x"}},
    ],
)
def test_odd_events_do_no_harm(event: dict[str, Any]) -> None:
    source = OpencodeSource(STARTED)
    assert source.hook(event, 1.0) == []


@pytest.mark.parametrize("name", sorted(path.name for path in RECORDED.glob("*.jsonl")))
def test_a_recorded_conversation(name: str) -> None:
    events = recorded(name)
    expected = json.loads((RECORDED / name).with_suffix(".heard.json").read_text())
    source = OpencodeSource(expected["started"])
    script = Script(source, connect=False).snapshot()
    for event in events:
        script.event(event["type"], **event["properties"])
    script.tick(SETTLE)
    assert script.lines == expected["lines"]
    assert [state.value for state in script.states] == expected["states"]
    assert script.proofs == expected["proofs"]
    assert [end.aborted for end in script.ends] == expected["aborted"]


def test_what_was_forgotten_is_not_taken_for_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.agents.opencode.source.PARTS_MAX", 2)
    monkeypatch.setattr("relay.agents.opencode.source.MESSAGES_MAX", 3)
    script, _ = turn()
    for number in range(4):
        message = script.answer("msg_001")
        script.begin(message, f"prt_{number}").end(message, f"prt_{number}", f"{number}")
        script.info(message, finish="stop")
    held = {**_answer("msg_003"), "finish": "stop"}
    again = {"info": held, "parts": [_text("msg_003", "prt_0", "0", ended=True)]}
    script.snapshot(again, sessions=[{"id": "ses_1", **_when(1)}])
    script.end("msg_003", "prt_0", "0").tick(SETTLE)
    assert script.lines == ["0", "1", "2", "3"]
    assert script.source.missing == []


def test_what_the_screen_heard_to_its_end_is_not_heard_again() -> None:
    script, message = turn()
    script.begin(message, "p").delta(message, "p", "One.\nTw")
    script.source.failed("gone")
    script.snapshot(sessions=[{"id": "ses_1", **_when(1)}], status=_busy(), at=STARTED + 60_000)
    script.delta(message, "p", "o.\n").end(message, "p", "One.\nTwo.\n").tick(SETTLE)
    assert script.lines == ["One."]
