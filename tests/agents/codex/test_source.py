"""What is heard of Codex: its records, words, states and proofs, in whatever order they come.

``conversation.jsonl`` is one of the real 0.169.0, without instructions and settings.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from relay.agents.codex.source import (
    DRAWN,
    HOOKS_DEADLINE,
    LOADED,
    STALE,
    CodexSource,
    is_conversation,
    open_files,
    parse,
    thread_of,
)
from relay.agents.profile import find_profile
from relay.agents.structured_source import ERROR_RETRY, limited
from relay.core.message import AgentState
from relay.core.source_events import Degraded, End, LimitCause, Line, Proof, StateChange
from tests.agents.heard import Heard

RECORDED = (Path(__file__).parent / "conversation.jsonl").read_text().splitlines()
BEGUN = datetime(2026, 11, 22, 6, 42, 20, tzinfo=UTC).timestamp()
INPUT_LINE = ["› Ask Codex to do anything", "", "  gpt-5 · /srv/demo", "  ? for shortcuts"]
LOADING = ["› Ask Codex to do anything", "", "  ? for shortcuts"]
DIALOG = ["› 1. Yes, proceed (y)", "  2. No (esc)", "", "  Press enter to confirm or esc to cancel"]


class Script(Heard):
    """Feeds a source and collects what comes out; ``now`` moves only when told."""

    def __init__(self, **planned: bool) -> None:
        super().__init__()
        self.source = CodexSource(BEGUN, profile=find_profile("codex")[0], **planned)

    def feed(self, *lines: str) -> Script:
        for line in lines:
            self.events += self.source.transcript(line, self.now)
        return self

    def event(self, kind: str, age: float = 0.0, **payload: Any) -> Script:
        stamp = datetime.fromtimestamp(BEGUN + 1 - age, UTC).isoformat()
        record = {"timestamp": stamp, "type": "event_msg", "payload": {"type": kind, **payload}}
        return self.feed(json.dumps(record))

    def says(self, text: str, key: str = "m1", age: float = 0.0) -> Script:
        item = {"type": "AgentMessage", "id": key, "content": [{"type": "Text", "text": text}]}
        return self.event("item_completed", age, turn_id="t1", item=item)

    def hook(self, name: str, **fields: Any) -> Script:
        event = {"hook_event_name": name, "turn_id": "t1", **fields}
        self.events += self.source.hook(event, self.now)
        return self

    def look(self, rows: list[str], title: str = "demo", after: float = 0.0) -> Script:
        self.now += after
        self.events += self.source.look(rows, title, self.now)
        return self

    @property
    def state(self) -> AgentState:
        return self.source.agent_state


def test_a_real_conversation() -> None:
    script = Script().look(INPUT_LINE).feed(*RECORDED)
    directives = [line for line in script.lines if "Bob" in line]
    assert directives == [
        "@relay:Bob hello *there*",
        "\\@relay:Bob escaped",
        "@relay:Bob fenced",
        "@relay:Bob last words",
        "@relay:Bob after the compaction",
    ]
    idle, busy, limited = AgentState.IDLE, AgentState.BUSY, AgentState.LIMITED
    assert script.states == [idle, *[busy, idle] * 2, *[busy, limited] * 2, *[busy, idle] * 2]
    reasons = [e for e in script.events if isinstance(e, StateChange) and e.state is limited]
    words = "We’re currently experiencing high demand, which may cause temporary errors"
    reason = f"the API answers with an error ({words})"
    assert [(e.reason, e.retry) for e in reasons] == [(reason, ERROR_RETRY)] * 2


def test_a_rate_limit_is_a_limit() -> None:
    info = {"response_too_many_failed_attempts": {"http_status_code": 429}}
    error = {"message": "exceeded retry limit", "codex_error_info": info}
    script = Script().look(INPUT_LINE).event("task_started", turn_id="t1")
    script.event("task_complete", turn_id="t1", error=error)
    expected = limited(LimitCause.USAGE, "the API's rate limit is reached")
    assert script.events[-1] == expected


def test_what_is_read_twice_is_heard_once_also_after_a_restart() -> None:
    script = Script().feed(*RECORDED)
    heard = list(script.lines)
    again = Script()
    again.source.restore(json.loads(json.dumps(script.source.state())))
    again.feed(*RECORDED)
    assert heard and again.lines == []
    assert again.states == []
    streams = {event.stream for event in script.events if isinstance(event, Line)}
    assert streams == {event.stream for event in script.events if isinstance(event, End)}
    assert len(streams) == 3


def test_the_same_words_twice_are_two() -> None:
    script = Script().says("@relay:Bob hello", "m1").says("@relay:Bob hello", "m2")
    assert script.lines == ["@relay:Bob hello"] * 2


def test_history_is_not_heard() -> None:
    script = Script().event("task_started", age=60, turn_id="t0").says("@relay:Bob old", age=60)
    assert script.events == []
    assert script.says("@relay:Bob new", "m2").lines == ["@relay:Bob new"]


def test_it_is_ready_when_its_input_line_is_drawn_and_its_settings_are_read() -> None:
    script = Script().look([]).look(LOADING)
    assert script.states == []
    assert script.look(INPUT_LINE).states == [AgentState.IDLE]
    # Its footer may be set up to look so all the time.
    script = Script().look(LOADING).look(LOADING, after=LOADED)
    assert script.states == [AgentState.IDLE]


def test_a_dialog_at_its_start_blocks_it() -> None:
    script = Script().look(DIALOG)
    assert script.states == [AgentState.BLOCKED]
    assert script.look(INPUT_LINE).states == [AgentState.BLOCKED, AgentState.IDLE]


def test_a_dialog_that_a_hook_reports_before_it_is_drawn() -> None:
    script = Script().look(INPUT_LINE).event("task_started", turn_id="t1")
    script.hook("PermissionRequest", tool_name="Bash").look(INPUT_LINE)
    assert script.state is AgentState.BLOCKED
    assert script.events[-1] == StateChange(AgentState.BLOCKED, "asks to use Bash")
    assert script.look(DIALOG).look(INPUT_LINE).states[-1] is AgentState.BUSY


def test_a_dialog_that_was_answered_before_its_hook_came() -> None:
    script = Script().look(INPUT_LINE).event("task_started", turn_id="t1")
    script.hook("PermissionRequest", tool_name="Bash").look(INPUT_LINE, after=DRAWN)
    assert script.state is AgentState.BUSY
    script.event("task_complete", turn_id="t1").hook("PermissionRequest", tool_name="Bash")
    assert script.states[-1] is AgentState.IDLE


def test_the_title_tells_of_a_dialog() -> None:
    script = Script().look(INPUT_LINE).event("task_started", turn_id="t1")
    assert script.look(INPUT_LINE, "[ ! ] Action Required | demo").states[-1] is AgentState.BLOCKED


def test_a_refused_tool_ends_the_turn() -> None:
    script = Script().look(INPUT_LINE).event("task_started", turn_id="t1").look(DIALOG)
    script.event("turn_aborted", turn_id="t1", reason="interrupted")
    assert script.state is AgentState.IDLE
    assert script.source.saved.interrupted
    script.event("task_started", turn_id="t2")
    assert not script.source.saved.interrupted


def test_a_prompt_s_hook_that_comes_after_its_turn_is_no_new_turn() -> None:
    script = Script().look(INPUT_LINE)
    script.event("task_started", turn_id="t1").event("task_complete", turn_id="t1")
    script.hook("UserPromptSubmit", prompt="Relay message [AB] from Ann: hello")
    assert script.state is AgentState.IDLE
    assert script.source.seen("[AB]")
    assert Proof("Relay message [AB] from Ann: hello", "hook") in script.events


def test_subagents_are_not_followed() -> None:
    script = Script().hook("UserPromptSubmit", agent_id="a", prompt="x", transcript_path="/a.jsonl")
    assert script.events == [] and script.source.named is None


def test_a_prompt_s_hook_names_the_file_of_its_conversation() -> None:
    script = Script().hook("UserPromptSubmit", prompt="x", transcript_path="/srv/a.jsonl")
    assert script.source.named == "/srv/a.jsonl" and script.source.saved.path is None
    script.source.in_front("/srv/a.jsonl")
    script.source.found("/srv/b.jsonl")
    assert script.source.saved.path == "/srv/a.jsonl"


def test_a_turn_whose_end_is_never_told_is_over_when_nothing_of_it_is_seen() -> None:
    script = Script().look(INPUT_LINE).event("task_started", turn_id="t1")
    script.look(INPUT_LINE, "⠋ demo")
    assert script.source.next_deadline() is None
    script.look(INPUT_LINE)
    assert script.source.next_deadline() == script.now + STALE
    assert script.source.tick(script.now + STALE - 0.1) == []
    assert script.source.tick(script.now + STALE) == [StateChange(AgentState.IDLE)]
    assert script.source.next_deadline() is None


def test_a_turn_that_is_told_before_it_is_seen_is_not_over_at_once() -> None:
    script = Script().look(INPUT_LINE)
    script.now += 60 * STALE
    script.event("task_started", turn_id="t1")
    assert script.source.tick(script.now) == [] and script.state is AgentState.BUSY
    script.hook("PermissionRequest").look(DIALOG)
    script.now += 60 * STALE
    script.feed(json.dumps(result()))
    assert script.source.tick(script.now) == [] and script.state is AgentState.BUSY
    assert script.source.tick(script.now + STALE) == [StateChange(AgentState.IDLE)]


def result() -> dict[str, Any]:
    """The record of a tool that has run."""
    stamp = datetime.fromtimestamp(BEGUN + 2, UTC).isoformat()
    payload = {"type": "function_call_output", "call_id": "c1", "output": "done"}
    return {"timestamp": stamp, "type": "response_item", "payload": payload}


def developer(text: str, kind: str) -> str:
    """A line that tells of something that was said to the model beside the person's words."""
    about = {"turn_id": "t1", "content_item_kinds": [kind]}
    payload = {"type": "message", "role": "developer", "content": [{"text": text}]}
    payload["internal_chat_message_metadata_passthrough"] = about  # type: ignore[assignment]
    stamp = datetime.fromtimestamp(BEGUN + 1, UTC).isoformat()
    return json.dumps({"timestamp": stamp, "type": "response_item", "payload": payload})


def test_messages_that_a_hook_has_added_are_proven() -> None:
    long = "x" * 5000
    text = f"Relay message [AAAA0001] from Bob: {long}\n\nRelay message [AAAA0002] from Bob: b"
    script = Script().feed(developer(text, "hooks.additional_context"))
    assert script.events == [Proof(text, "transcript")]
    script.feed(developer("Relay message [AAAA0003] as an example", "instructions"))
    after = CodexSource(BEGUN)
    after.restore(script.source.state())
    for source in (script.source, after):
        assert [source.seen(f"[AAAA000{n}]") for n in (1, 2, 3)] == [True, True, False]


def test_a_usage_limit_is_over_when_codex_says_so() -> None:
    ends = BEGUN + 1 + 900
    window = {"used_percent": 100, "resets_at": ends}
    limits = {"rate_limit_reached_type": "rate_limit_reached", "primary": window}
    error = {"message": "You've hit your usage limit.", "codex_error_info": "usage_limit_exceeded"}
    script = Script().look(INPUT_LINE).event("task_started", turn_id="t1")
    script.event("token_count", rate_limits=limits).event(
        "task_complete", turn_id="t1", error=error
    )
    assert script.events[-1] == limited(LimitCause.USAGE, "a usage limit is reached", 900)


def test_an_error_of_one_request_does_not_hold_the_next() -> None:
    script = Script().look(INPUT_LINE).event("task_started", turn_id="t1")
    error = {"message": "too long", "codex_error_info": "context_window_exceeded"}
    script.event("task_complete", turn_id="t1", error=error)
    assert script.state is AgentState.IDLE


def test_it_fails_once_and_hears_again_when_its_file_is_found() -> None:
    script = Script()
    assert script.source.failed("nothing there") == [Degraded("nothing there")]
    assert script.source.failed("nothing there") == []
    assert not script.source.trusted
    script.source.found("/srv/demo/rollout-x.jsonl")
    assert script.source.trusted


def test_the_end() -> None:
    script = Script().look(INPUT_LINE)
    script.events += script.source.finish(script.now)
    assert script.states == [AgentState.IDLE, AgentState.GONE]
    assert script.look(INPUT_LINE).states == [AgentState.IDLE, AgentState.GONE]


@pytest.mark.parametrize("gated", [False, True])
def test_hooks_that_never_come_are_noticed(gated: bool) -> None:
    script = Script(hooks=True, gated=gated).event("task_started", turn_id="t1")
    assert script.source.tick(script.now) == []
    assert script.source.next_deadline() == script.now + HOOKS_DEADLINE
    [dead] = script.source.tick(script.now + HOOKS_DEADLINE)
    assert isinstance(dead, Degraded)
    assert ("tool calls do not reach" in dead.reason) is gated
    script.event("task_complete", turn_id="t1").event("task_started", turn_id="t2")
    assert script.source.next_deadline() is None  # said once


def test_one_hook_is_enough_to_know_that_they_come() -> None:
    script = Script(hooks=True).hook("SessionStart").event("task_started", turn_id="t1")
    assert script.source.next_deadline() is None
    late = Script(hooks=True).event("task_started", turn_id="t1").hook("UserPromptSubmit")
    assert late.source.next_deadline() is None
    again = Script(hooks=True)
    again.source.restore(late.source.state())
    assert again.event("task_started", turn_id="t2").source.next_deadline() is None
    assert Script().event("task_started", turn_id="t1").source.next_deadline() is None


THREAD = "01a201fd-d59b-7a33-88eb-2169a534f011"


def event(**payload: object) -> str:
    stamp = "2026-11-22T06:42:23.320Z"
    return json.dumps({"timestamp": stamp, "type": "event_msg", "payload": payload})


@pytest.mark.parametrize(
    "line",
    [
        "",
        "not JSON",
        "[1]",
        "{}",
        '{"type":"event_msg","payload":[]}',
        '{"type":"event_msg","payload":{"type":"item_completed","item":"x"}}',
        '{"type":"response_item","payload":{"type":"message","role":"user","content":7}}',
        "[" * 100_000,
    ],
)
def test_damaged_lines_say_nothing(line: str) -> None:
    assert parse(line) == []


def test_an_error_names_its_status() -> None:
    info = {"response_too_many_failed_attempts": {"http_status_code": 429}}
    error = {"message": "exceeded retry limit, last status: 429", "codex_error_info": info}
    [record] = parse(event(type="task_complete", turn_id="t1", error=error))
    assert record.error == "response_too_many_failed_attempts:429"
    [record] = parse(event(type="task_complete", turn_id="t1", error={"message": "odd"}))
    assert record.error == "other"


def test_a_usage_limit_says_when_it_ends() -> None:
    windows = {
        "primary": {"used_percent": 100.0, "resets_at": 1795330000},
        "secondary": {"used_percent": 20.0, "resets_at": 1795990000},
    }
    reached = {"rate_limit_reached_type": "rate_limit_reached", **windows}
    [record] = parse(event(type="token_count", rate_limits=reached))
    assert record.resets == 1795330000
    [record] = parse(event(type="token_count", rate_limits=windows))
    assert record.resets == 0
    [record] = parse(event(type="token_count", rate_limits=None))
    assert record.resets == 0
    odd = {"rate_limit_reached_type": "x", "primary": {"resets_at": "soon", "used_percent": "all"}}
    [record] = parse(event(type="token_count", rate_limits=odd))
    assert record.resets == 0


def test_only_a_person_s_conversation_is_followed(tmp_path: Path) -> None:
    name = f"rollout-2026-11-22T06-42-19-{THREAD}.jsonl"
    own = tmp_path / name
    own.write_text("\n".join(RECORDED) + "\n")
    assert thread_of(str(own)) == THREAD
    assert is_conversation(str(own))
    spawned = {"subagent": {"thread_spawn": {"parent_thread_id": THREAD, "depth": 1}}}
    for source in (spawned, None):
        meta = {"type": "session_meta", "payload": {"source": source, "thread_source": "user"}}
        own.write_text(json.dumps(meta) + "\n")
        assert not is_conversation(str(own))
    assert not is_conversation(str(tmp_path / "nothing"))
    assert thread_of("/srv/demo/notes.jsonl") == ""


def test_what_a_process_and_its_children_hold_open(tmp_path: Path) -> None:
    rollout = tmp_path / f"rollout-2026-11-22T06-42-19-{THREAD}.jsonl"
    rollout.write_text("\n".join(RECORDED) + "\n")
    queue = tmp_path / "queue_1.sqlite"
    executed = tmp_path / f"rollout-2026-11-22T06-42-50-{THREAD[:-1]}2.jsonl"  # by a tool
    meta = {"type": "session_meta", "payload": {"source": "exec", "thread_source": "user"}}
    executed.write_text(json.dumps(meta) + "\n")
    proc = tmp_path / "proc"
    opened = ((7, "8", "README.md"), (8, "9", rollout), (8, "9", queue), (9, "", executed))
    for pid, child, held in opened:
        (proc / f"{pid}" / "fd").mkdir(parents=True, exist_ok=True)
        (proc / f"{pid}" / "task" / f"{pid}").mkdir(parents=True, exist_ok=True)
        (proc / f"{pid}" / "task" / f"{pid}" / "children").write_text(child)
        number = len(os.listdir(proc / f"{pid}" / "fd"))
        (proc / f"{pid}" / "fd" / f"{number}").symlink_to(tmp_path / held)
    found = open_files(7, str(proc))
    assert found.rollouts == (str(rollout),)
    assert found.queue == str(queue)
    assert open_files(10, str(proc)).rollouts == ()
