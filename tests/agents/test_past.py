"""What programs have written of past conversations becomes turns that hang from each other."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from relay.agents import past as module
from relay.agents.aider import chat_history
from relay.agents.past import ClaudeTurns, CodexTurns, PastReader, last_turns
from relay.protocol.past_turns import PastEnd, PastTurns

HERE = Path(__file__).parent
FILES = {
    **{path.stem[:12]: path for path in sorted((HERE / "claude").glob("recorded/**/*.jsonl"))},
    **{path.stem[-12:]: path for path in sorted((HERE / "codex").glob("recorded/**/*.jsonl"))},
    "conversation": HERE / "codex" / "conversation.jsonl",
}


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def reader_of(path: Path, state: Any = None) -> PastReader:
    kind = CodexTurns if "codex" in path.parts else ClaudeTurns
    return kind(json.loads(json.dumps(state or {})))


def turns(reader: PastReader) -> list[tuple[str, str | None, str, str | None]]:
    """(prompt, prompt of the turn from which it hangs, state, last words) of each turn."""
    rows = reader.take()
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    for one in rows.messages:
        first.setdefault(one.turn, one.content)
        last[one.turn] = one.content
    ends = {one.turn: one for one in rows.ends}
    return [
        (
            first.get(one.id, ""),
            None if one.parent is None else first.get(one.parent, one.parent),
            ends[one.id].state + ("?" if ends[one.id].inferred else ""),
            last.get(one.id),
        )
        for one in rows.turns
    ]


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_whatever_a_record_holds_a_reader_stays_in_form(path: Path) -> None:
    """The broker takes every row that comes of it."""
    chance = random.Random(7)
    odd: tuple[Any, ...] = (
        None,
        1,
        -5,
        1 << 70,
        1.5,
        True,
        "",
        "x",
        "y" * 5000,
        [],
        [[]],
        {},
        {"a": 1},
        float("inf"),
    )
    records = records_of(path)
    for _ in range(30):
        reader = reader_of(path)
        for record in records:
            if chance.random() < 0.3:
                record = json.loads(json.dumps(record))
                _spoil(record, chance, odd)
            try:
                reader.read(record)
            except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
                continue  # as who feeds it does
            state = reader.state()
        reader = reader_of(path, state)
        reader.release()
        rows = json.loads(json.dumps(reader.take().to_json()))
        PastTurns.from_json(rows)


def _spoil(value: Any, chance: random.Random, odd: tuple[Any, ...]) -> None:
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        if isinstance(value[key], dict | list) and chance.random() < 0.7:
            value = value[key]
            continue
        value[key] = chance.choice(odd)
        return


# -- Claude Code
def said(uuid: str, parent: str | None, text: str, **more: Any) -> dict[str, Any]:
    kind = "assistant" if text.startswith("!") else "user"
    message = {"role": kind, "content": text, **more.pop("message", {})}
    base = {"type": kind, "uuid": uuid, "parentUuid": parent, "message": message}
    return {**base, "sessionId": "S", "timestamp": f"2026-11-23T09:00:{uuid[1:]:0>2}Z", **more}


def claude(records: Iterable[dict[str, Any]], *, left: bool = True) -> ClaudeTurns:
    reader = ClaudeTurns({})
    for record in records:
        reader.read(record)
    if left:
        reader.release()
    return reader


def test_a_prompt_that_was_rewound_begins_another_branch() -> None:
    reader = claude(
        [
            said("u1", None, "one"),
            said("u2", "u1", "!first"),
            said("u3", "u2", "two"),
            said("u4", "u3", "!second"),
            said("u5", "u2", "two, otherwise"),
            said("u6", "u5", "!third"),
        ]
    )
    assert turns(reader) == [
        ("one", None, "completed?", "!first"),
        ("two", "one", "completed?", "!second"),
        ("two, otherwise", "one", "completed?", "!third"),
    ]


def test_how_a_turn_of_claude_ended_is_told() -> None:
    over = {"message": {"stop_reason": "end_turn"}}
    reader = claude(
        [
            said("u1", None, "one"),
            said("u2", "u1", "!done", **over),
            said("u3", "u2", "two"),
            said("u4", "u3", "!API Error: 529", isApiErrorMessage=True),
            said("u5", "u4", "three"),
            said("u6", "u5", "!I look"),
            said("u7", "u6", "[Request interrupted by user]"),
            said("u8", "u7", "<command-name>/cost</command-name>"),
            said("u9", "u8", "<local-command-stdout>$1</local-command-stdout>"),
            said("u10", "u9", "four"),
        ]
    )
    assert turns(reader) == [
        ("one", None, "completed", "!done"),
        ("two", "one", "failed", "two"),
        ("three", "two", "interrupted", "!I look"),
        ("four", "three", "interrupted?", "four"),
    ]


def test_what_waits_for_an_answer_is_kept_until_the_next_look() -> None:
    reader = claude([said("u1", None, "one")], left=False)
    assert not reader.settled and turns(reader) == []
    reader = ClaudeTurns(json.loads(json.dumps(reader.state())))
    reader.read(said("u2", "u1", "!done", message={"stop_reason": "end_turn"}))
    assert turns(reader) == [("one", None, "completed", "!done")]
    assert reader.settled


def test_sub_agents_in_the_conversations_own_file_have_a_session_of_their_own() -> None:
    reader = claude(
        [
            said("u1", None, "one"),
            said("u2", "u1", "!I ask"),
            said("u3", None, "count", isSidechain=True),
            said("u4", "u3", "!seven", isSidechain=True),
            said("u5", "u2", "!It is seven"),
        ]
    )
    rows = reader.take()
    assert [(one.conversation, one.parent) for one in rows.sessions] == [
        ("S", None),
        ("S/sidechain", "S"),
    ]
    first, second = (one.id for one in rows.turns)
    assert [(one.turn, one.content) for one in rows.messages] == [
        (first, "one"),
        (first, "!I ask"),
        (second, "count"),
        (second, "!seven"),
        (first, "!It is seven"),
    ]


# -- Codex
def test_a_conversation_of_codex_with_failures_and_a_compaction() -> None:
    reader = CodexTurns({})
    for record in records_of(FILES["conversation"]):
        reader.read(record)
    assert [(asked, state) for asked, _, state, _ in turns(reader)] == [
        ("run the demo", "completed"),
        ("be broken off", "interrupted"),
        ("boom", "failed"),
        ("limit", "failed"),
        ("Side request", "completed"),
        ("last one", "completed"),
    ]


def item(kind: str, at: int, **payload: Any) -> dict[str, Any]:
    return {"type": kind, "timestamp": f"2026-11-23T09:00:{at:02}Z", "payload": payload}


def message(at: int, role: str, text: str) -> dict[str, Any]:
    return item("response_item", at, type="message", role=role, content=[{"text": text}])


def test_an_older_codex_tells_of_no_turns() -> None:
    reader = CodexTurns({})
    for record in [
        item("session_meta", 0, id="T", cwd="/srv/demo"),
        message(1, "user", "<environment_context>…"),
        message(2, "user", "one"),
        item("response_item", 3, type="function_call", name="shell", arguments="{}", call_id="c"),
        item("response_item", 4, type="function_call_output", call_id="c", output="7"),
        message(5, "assistant", "seven"),
        message(6, "user", "two"),
        message(7, "assistant", "eight"),
        item("event_msg", 8, type="thread_rolled_back", num_turns=1),
        message(9, "user", "two, otherwise"),
    ]:
        reader.read(record)
    reader.release()
    rows = reader.take()
    [result] = rows.results
    assert (result.call, result.result) == (rows.calls[0].id, "7")
    ends: dict[str, PastEnd] = {one.turn: one for one in rows.ends}
    first, second, third = (one.id for one in rows.turns)
    assert [one.parent for one in rows.turns] == [None, first, first]
    assert [ends[one].state for one in (first, second, third)] == [
        *("completed", "completed", "interrupted")
    ]
    assert [one.content for one in rows.messages if one.turn == first] == ["one", "seven"]


def record(kind: str, number: int, text: str, **more: object) -> str:
    message = {"role": kind, "content": text}
    if kind == "assistant":
        message = {"role": kind, "content": [{"type": "text", "text": text}], "model": "m"}  # type: ignore[dict-item]
    fields = {
        "type": kind,
        "uuid": f"u{number}",
        "parentUuid": f"u{number - 1}",
        "message": message,
    }
    at = f"2026-11-23T10:00:{number:02d}Z"
    return json.dumps({**fields, "sessionId": "s1", "timestamp": at, "cwd": "/", **more}) + "\n"


def test_the_end_of_a_transcript_is_told_turn_by_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.jsonl"
    lines = ["no json\n", "[1]\n"]
    for number in range(1, 13, 2):
        lines.append(record("user", number, f"ask {number}", promptId=f"p{number}"))
        lines.append(record("assistant", number + 1, f"said {number}"))
    path.write_text("".join(lines))
    turns = last_turns("claude", str(path), 2)
    assert [(one["prompt"], one["text"]) for one in turns] == [
        ("ask 9", "said 9"),
        ("ask 11", "said 11"),
    ]
    assert turns[-1]["model"] == "m" and turns[-1]["state"]
    monkeypatch.setattr(module, "TAIL_MAX", len(lines[-1]) + len(lines[-2]) + 10)
    assert [one["prompt"] for one in last_turns("claude", str(path), 9)] == ["ask 11"]
    chats = tmp_path / ".aider.chat.history.md"
    chats.write_text("# aider chat started at x\n\n#### one?\n#### two?\n\n> Tokens: 2\n\nYes.\n")
    assert last_turns("aider", str(chats), 1) == [{"prompt": "one?\ntwo?", "text": "Yes."}]
    monkeypatch.setattr(chat_history, "_PART", 9)  # a turn without an end is no text without one
    assert [one["text"] for one in last_turns("aider", str(chats), 2)] == ["", "Yes."]
    asked = {"id": "1", "type": "user", "content": [{"text": "why?"}]}
    said = [{"id": text, "type": "gemini", "content": text} for text in ("So", "it is.")]
    again = [asked, *said, said[0]]  # Gemini CLI writes a record again, once it has its tokens
    path.write_text("\n".join(map(json.dumps, again)))
    assert last_turns("gemini", str(path), 5) == [{"prompt": "why?", "text": "So\nit is."}]
    os.mkfifo(tmp_path / "pipe")
    assert last_turns("codex", str(tmp_path / "pipe"), 1) == []
