"""What lines of Codex's session file mean; ``conversation.jsonl`` is one of the real 0.169.0.

It was made shorter: without instructions, settings and accounts of tokens.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from relay.agents.codex.source import is_conversation, open_files, parse, thread_of

RECORDED = Path(__file__).parent / "conversation.jsonl"
THREAD = "01a201fd-d59b-7a33-88eb-2169a534f011"


def event(**payload: object) -> str:
    stamp = "2026-11-22T06:42:23.320Z"
    return json.dumps({"timestamp": stamp, "type": "event_msg", "payload": payload})


def test_a_real_conversation() -> None:
    records = [record for line in RECORDED.read_text().splitlines() for record in parse(line)]
    said = [record.text for record in records if record.kind == "said"]
    assert said == [
        "I start.\n\n@relay:Bob hello *there*\n\n\\@relay:Bob escaped\n\n"
        "```\n@relay:Bob fenced\n```\n",
        "Done.\n\n@relay:Bob last words",
        "@relay:Bob after the compaction",
    ]
    turns = [(r.kind, r.error) for r in records if r.kind in ("begun", "over", "aborted")]
    assert turns == [
        ("begun", ""),
        ("over", ""),
        ("begun", ""),
        ("aborted", ""),
        ("begun", ""),
        ("over", "internal_server_error"),
        ("begun", ""),
        ("over", "internal_server_error"),
        ("begun", ""),
        ("over", ""),
        ("begun", ""),
        ("over", ""),
    ]
    prompts = [record.text for record in records if record.kind == "prompt"]
    assert [text for text in prompts if not text.startswith("<")] == [
        "run the demo",
        "be broken off",
        "boom",
        "limit",
        "last one",
    ]


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
    own.write_text(RECORDED.read_text())
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
    rollout.write_text(RECORDED.read_text())
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
