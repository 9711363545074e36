"""Transcripts of Claude Code and Codex become turns of the agent ledger, each once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from relay.core.paths import Home
from tests.cli.conftest import Run

RECORDED = Path(__file__).parents[1] / "agents"
MAIN = "2f3a93f5-844d-471e-8f33-ffd977e9dc08"
FORK = "2a877d03-bea3-4e3e-b4a1-8a7d67145448"
HELPER = f"{MAIN}/ac4216e2a8354141d"
CODEX, CODEX_FORK = (
    "01a207b2-129c-7ec1-af11-9d2fe4abfe4b",
    "01a207b2-1afe-7d62-b052-ede3caf08ffb",
)
TURNS = (
    "SELECT s.external_id AS session, p.external_id AS parent, t.state, t.inferred,"
    " t.tool_call_count AS calls, t.tokens_in, t.id, t.parent_turn,"
    " (SELECT content FROM agent_messages m WHERE m.turn = t.id ORDER BY number LIMIT 1) AS asked,"
    " (SELECT content FROM agent_messages m WHERE m.turn = t.parent_turn ORDER BY number LIMIT 1)"
    " AS after FROM agent_turns t JOIN agent_sessions s ON s.id = t.session"
    " LEFT JOIN agent_sessions p ON p.id = s.parent_session"
    " WHERE s.source <> 'relay' ORDER BY s.external_id, t.started_ms"
)


def asked(relay: Run, sql: str = TURNS) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(relay("ledger", "query", sql, "--json").stdout)
    return found


def ingested(relay: Run, *paths: object) -> dict[str, Any]:
    done = relay("ledger", "ingest", *map(str, paths), "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def transcripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker_home: Home) -> Path:
    """What both programs have kept, where they keep it."""
    for program in ("claude", "codex"):
        shutil.copytree(RECORDED / program / "recorded", tmp_path / program)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    return tmp_path


def test_conversations_forks_and_sub_agents_become_a_tree_of_turns(
    relay: Run, transcripts: Path
) -> None:
    first = ingested(relay)
    assert [first[name] for name in ("files", "turns", "calls")] == [5, 12, 5]
    assert first["problems"] == []
    rows = asked(relay)
    tree = [
        (row["session"], row["parent"], row["asked"][:19], (row["after"] or "")[:19])
        for row in rows
    ]
    assert tree == [
        (CODEX, None, "count the files", ""),
        (CODEX, None, "and the hidden ones", "count the files"),
        (CODEX, None, "ask a helper", "and the hidden ones"),
        (CODEX_FORK, CODEX, "another way", "and the hidden ones"),
        (FORK, MAIN, "another way", "and the hidden ones"),
        (MAIN, None, "count the files", ""),
        (MAIN, None, "and the hidden ones", "count the files"),
        (MAIN, None, "ask a helper", "and the hidden ones"),
        (MAIN, None, "<task-notification>", "ask a helper"),
        (MAIN, None, "This session is bei", "<task-notification>"),
        (MAIN, None, "and the hidden ones", "This session is bei"),
        (HELPER, MAIN, "helper: count the w", ""),
    ]
    assert {(row["state"], row["inferred"]) for row in rows} == {("completed", 0)}
    assert rows[5]["calls"] == 1 and rows[5]["tokens_in"] == 200
    [call] = asked(
        relay,
        "SELECT c.name, c.state, c.result_json AS result, s.external_id AS child, m.content"
        " FROM agent_tool_calls c JOIN agent_sessions s ON s.id = c.child_session"
        " JOIN agent_messages m ON m.id = c.message",
    )
    assert (call["name"], call["state"], call["child"]) == ("Agent", "completed", HELPER)
    assert call["content"] == "I ask one." and call["result"].startswith("Async agent launched")
    numbers = asked(
        relay, "SELECT session, count(*) AS n, max(number) AS m FROM agent_messages GROUP BY 1"
    )
    assert all(row["n"] == row["m"] for row in numbers)
    found = json.loads(relay("history", "--grep", "None either", "--json").stdout)
    assert len(found) == 3 and {row["from"] for row in found} == {"claude", "codex"}
    again = ingested(relay)
    assert (again["read"], again["turns"]) == (0, 0)
