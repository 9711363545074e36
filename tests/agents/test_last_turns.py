"""The last turns of a transcript that is being written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from relay.agents import past as module
from relay.agents.past import last_turns


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
    os.mkfifo(tmp_path / "pipe")
    assert last_turns("codex", str(tmp_path / "pipe"), 1) == []
