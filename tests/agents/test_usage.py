"""The tokens that agents' own records tell of, counted once whatever is told twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from relay.agents.claude.source import ClaudeSource
from relay.agents.codex.source import CodexSource
from relay.agents.gemini.source import GeminiSource
from relay.agents.opencode.source import OpencodeSource
from relay.agents.qwen.source import QwenSource
from relay.agents.structured_source import StructuredSource

HERE = Path(__file__).parent
CLAUDE = "claude/recorded/projects/-srv-demo/2f3a93f5-844d-471e-8f33-ffd977e9dc08.jsonl"


def fed(source: StructuredSource, name: str) -> StructuredSource:
    for line in (HERE / name).read_text().splitlines() * 2:  # as after a kill
        source.transcript(line, 0.0)
    return source


@pytest.mark.parametrize(
    ("source", "name", "used"),
    [
        (ClaudeSource(0.0), CLAUDE, {"claude-sonnet-4-5": [700, 140, 0, 0]}),
        (CodexSource(0.0), "codex/conversation.jsonl", {"": [400, 80, 0, 0]}),
        (
            GeminiSource(0.0, asyncio.Event()),
            "gemini/recorded/session.jsonl",
            {"gemini-2.5-pro": [270_000, 60, 0, 0]},
        ),
        (QwenSource(0.0), "qwen/events.jsonl", {"mock-model": [500, 100, 0, 0]}),
    ],
    ids=["claude", "codex", "gemini", "qwen"],
)
def test_the_tokens_of_a_recorded_conversation(
    source: StructuredSource, name: str, used: dict[str, list[int]]
) -> None:
    assert fed(source, name).saved.usage.by_model == used


def test_opencodes() -> None:
    folder = HERE / "opencode" / "recorded"
    source = OpencodeSource(json.loads((folder / "conversation.heard.json").read_text())["started"])
    for line in (folder / "conversation.jsonl").read_text().splitlines():
        source.hook(json.loads(line), 0.0)
    assert source.saved.usage.by_model == {"mock-model": [500, 100, 0, 0]}


def test_what_is_cached_is_told_apart_and_no_number_breaks_the_count() -> None:
    source = ClaudeSource(0.0)
    for number, usage in enumerate(
        (
            {"input_tokens": 10, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 5},
            {"input_tokens": -1, "output_tokens": "x", "cache_read_input_tokens": 1 << 60},
        )
    ):
        message = {"id": f"m{number}", "model": "m", "usage": usage, "content": []}
        record = {"type": "assistant", "timestamp": "2026-01-01T00:00:00Z", "message": message}
        source.transcript(json.dumps(record), 0.0)
    assert source.saved.usage.by_model == {"m": [10, 0, 7, 5]}
