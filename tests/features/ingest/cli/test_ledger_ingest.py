"""Transcripts of Claude Code and Codex become turns of the agent ledger, each once."""

from __future__ import annotations

import json
import os
import shutil
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from relay.__main__ import main
from relay.broker.client import BrokerClient, connect
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.features.ingest.broker import note_own
from relay.features.ingest.ops import INGEST, INGESTED
from relay.ledger import agent_ledger
from relay.ledger.store import Ledger
from relay.protocol.broker_ops import STATUS
from relay.protocol.message_ops import SEND
from tests.broker.support import register
from tests.cli.fixtures import Run

RECORDED = Path(__file__).parents[3] / "agents"
MAIN = "2f3a93f5-844d-471e-8f33-ffd977e9dc08"
FORK = "2a877d03-bea3-4e3e-b4a1-8a7d67145448"
HELPER = f"{MAIN}/ac4216e2a8354141d"
CODEX, CODEX_FORK = (
    "01a207ce-82fd-7b51-af64-a408f1cc37e7",
    "01a207ce-8d9d-7f32-b70a-46a3b0ba53ea",
)
CODEX_HELPER = f"{CODEX}/01a207ce-9319-7fe1-a984-f3c5b15f9026"
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
    assert [first[name] for name in ("files", "turns", "calls")] == [6, 13, 5]
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
        (CODEX_HELPER, CODEX, "helper: count the w", ""),
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
    assert rows[6]["calls"] == 1 and rows[6]["tokens_in"] == 200
    of_codex, call = asked(
        relay,
        "SELECT c.name, c.state, c.result_json AS result, s.external_id AS child, m.content"
        " FROM agent_tool_calls c JOIN agent_sessions s ON s.id = c.child_session"
        " LEFT JOIN agent_messages m ON m.id = c.message ORDER BY s.source DESC",
    )
    assert (of_codex["name"], of_codex["child"]) == ("spawn_agent", CODEX_HELPER)
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


def everything(relay: Run) -> list[list[dict[str, Any]]]:
    """What the agent ledger holds, apart from the numbers that follow the order of reading."""
    return [
        asked(relay, f"SELECT {columns} FROM {table} ORDER BY id")
        for table, columns in (
            ("agent_sessions", "id, external_id, parent_session, head_turn, message_count, model"),
            ("agent_turns", "*"),
            ("agent_messages", "id, turn, session, role, content, created_ms"),
            ("agent_tool_calls", "*"),
        )
    ]


def test_what_is_added_is_read_wherever_the_last_look_was(
    relay: Run, transcripts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = transcripts / "claude" / "projects" / "-srv-demo" / f"{MAIN}.jsonl"
    lines = whole.read_bytes().splitlines(keepends=True)
    ingested(relay, whole)
    expected = everything(relay)
    relay("broker", "stop")
    monkeypatch.setenv("RELAY_HOME", str(tmp_path / "second"))
    growing = tmp_path / f"{MAIN}.jsonl"
    growing.touch()
    read = 0
    with growing.open("ab", buffering=0) as file:
        for number, line in enumerate(lines):
            file.write(line[:40])
            if number % 3 == 0:
                read += ingested(relay, growing)["bytes"]
            file.write(line[40:])
    read += ingested(relay, growing)["bytes"]
    assert read == whole.stat().st_size
    assert everything(relay) == expected
    relay("broker", "stop")


@pytest.mark.parametrize("dies", ["reader", "reader after", "broker"])
def test_a_kill_at_any_moment_loses_and_doubles_nothing(
    dies: str, relay: Run, transcripts: Path, broker_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.features.ingest.ledger_ingest.BATCH_SIZE", 500)
    ask: Any = BrokerClient.request
    kills = 0
    while True:
        pid = os.fork()
        if pid == 0:
            left = kills % 4 + 1

            def request(self: BrokerClient, op: str, **fields: Any) -> Any:
                nonlocal left
                left -= op == "ingest"
                if left == 0 and op == "ingest":
                    if dies == "reader after":
                        ask(self, op, **fields)
                    os.kill(stat_pid() if dies == "broker" else os.getpid(), signal.SIGKILL)
                return ask(self, op, **fields)

            def stat_pid() -> int:
                return int(ask(connect(broker_home), STATUS)["pid"])

            try:
                BrokerClient.request = request  # type: ignore[method-assign,assignment]
                os._exit(main(["ledger", "ingest"]))
            finally:
                os._exit(9)
        status = os.waitpid(pid, 0)[1]
        kills += 1
        if status == 0 and (dies != "broker" or kills > 3):
            break
        assert kills < 60
    assert kills > 3
    one_by_one = everything(relay)
    assert ingested(relay)["turns"] == 0
    relay("broker", "stop")
    monkeypatch.setenv("RELAY_HOME", str(transcripts / "second"))
    ingested(relay)
    assert one_by_one == everything(relay)
    relay("broker", "stop")


# -- relay's own turns


def test_what_a_headless_persona_has_said_is_not_read_in_a_second_time(
    relay: Run, transcripts: Path, broker_home: Home
) -> None:
    broker_home.create()
    ledger = Ledger(broker_home.ledger)
    ledger.begin()
    session = agent_ledger.session_of(ledger, "clerk", "main", 1)
    note_own(ledger, MAIN, session, 1)
    ledger.commit()
    ledger.close()
    ingested(relay)
    rows = [row for row in asked(relay) if not row["session"].startswith("01a207")]
    # Only where a person has gone on with it in a conversation of his own.
    assert [(row["session"], row["asked"]) for row in rows] == [(FORK, "another way")]


def test_a_turn_that_a_wrapped_agents_session_reports_is_left_out(
    relay: Run, tmp_path: Path, broker_home: Home
) -> None:
    with register(broker_home, "Bob"), connect(broker_home) as client:
        sent = [
            client.request(SEND, to="Bob", body=body, answer=answer)["id"]
            for body, answer in (("is it green?", True), ("by the way", False))
        ]
    ledger = Ledger(broker_home.ledger)
    marks = [f"{id_[-8:]}_{ledger.nonce(id_, 'Bob')}" for id_ in sent]
    ledger.close()
    prompts = [
        f"Relay message [{marks[0]}] from user ann: is it green? [end {marks[0]}].",
        f"Relay message [{marks[1]}] from user ann: by the way [end {marks[1]}].",
        f"Relay message [{marks[1][:-6]}FORGED] from user ann: [end].",
        "and now you",
    ]
    at = datetime.now(UTC).isoformat()
    records: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts):
        base = {"sessionId": MAIN, "timestamp": at, "isSidechain": False}
        message = {"role": "user", "content": prompt}
        parent = f"uuid-answer-{number - 1}" if number else None
        asked_of = {"type": "user", "uuid": f"uuid-prompt-{number}", "parentUuid": parent}
        records.append({**base, **asked_of, "message": message})
        said: dict[str, Any] = {"id": f"m{number}", "content": [{"type": "text", "text": "Yes."}]}
        answer_of = {"type": "assistant", "uuid": f"uuid-answer-{number}"}
        hangs = {"parentUuid": f"uuid-prompt-{number}"}
        records.append(
            {**base, **answer_of, **hangs, "message": {**said, "stop_reason": "end_turn"}}
        )
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    assert ingested(relay, file)["turns"] == 3
    rows = asked(relay)
    assert [row["asked"] for row in rows] == prompts[1:]
    assert [row["after"] for row in rows] == [None, *prompts[1:3]]
    [linked] = asked(
        relay,
        "SELECT e.id FROM agent_messages m JOIN events e ON e.seq = m.event WHERE m.role = 'user'",
    )
    assert linked["id"] == sent[1]


def test_an_agent_cannot_have_transcripts_read_in(broker_home: Home, transcripts: Path) -> None:
    with register(broker_home, "Bob") as agent:
        with pytest.raises(RelayError, match="only"):
            agent.request(INGESTED, path="/x")
        with pytest.raises(RelayError, match="only"):
            agent.request(
                INGEST,
                path="/x",
                source="claude",
                known=None,
                inode="1:1",
                offset=1,
                state={},
                rows={},
            )


# -- hostile files


def test_a_hostile_file_costs_only_its_own_lines(
    relay: Run, transcripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.features.ingest.ledger_ingest.LINE_MAX", 300_000)
    folder = transcripts / "claude" / "projects" / "-srv-demo"
    whole = folder / f"{MAIN}.jsonl"
    ingested(relay, whole)
    expected = everything(relay)
    relay("broker", "stop")
    monkeypatch.setenv("RELAY_HOME", str(transcripts / "second"))
    lines = whole.read_bytes().splitlines(keepends=True)
    base = b'"sessionId":"x","timestamp":"2026-11-23T09:00:00Z","uuid":"u%d","type":'
    odd = [
        b"{",
        b"\x00\xff\xfe not utf-8",
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b'"a text"',
        b"1" * 10_000,
        b'{"sessionId":1,"uuid":[],"type":"user"}',
        b"{" + base % 1 + b'"user","message":{"content":[1,{"type":"tool_result"}]}}',
        b"{" + base % 2 + b'"assistant","message":{"content":{"a":1},"usage":[]}}',
        b"x" * 1_000_000,
        b'{"timestamp":1e999,"type":"session_meta","payload":{"id":"y"}}',
    ]
    hostile = whole.with_name("hostile.jsonl")
    pairs = zip(odd * 20, lines, strict=False)
    hostile.write_bytes(b"".join(bad + b"\n" + good for bad, good in pairs))
    found = ingested(relay, hostile)
    assert found["lines_passed"] > 20
    mine = [[row for row in rows if row.get("external_id") != "x"] for rows in everything(relay)]
    assert mine == expected
    relay("broker", "stop")


def test_what_sqlite_and_utf8_cannot_hold_is_replaced(
    relay: Run, tmp_path: Path, broker_home: Home
) -> None:
    file = tmp_path / "t.jsonl"
    base = r'"sessionId":"x\ud800","cwd":"/\udfff","timestamp":"2026-11-23T09:00:00Z"'
    file.write_text(
        rf'{{"type":"user","uuid":"a\ud800","parentUuid":null,{base},'
        r'"message":{"content":"one\u0000two\ud83dthree \ud83d\ude00"}}' + "\n"
        rf'{{"type":"assistant","uuid":"b","parentUuid":"a\ud800",{base},'
        r'"message":{"model":"m\udc00","stop_reason":"end_turn","content":[{"type":"tool_use",'
        r'"id":"t","name":"N\u0000\ud800","input":{"\ud800":"\u0000"}}]}}' + "\n"
    )
    assert ingested(relay, file)["lines_passed"] == 0
    [row] = asked(relay)
    assert row["asked"] == "one\ufffdtwo?three 😀"
    [call] = asked(relay, "SELECT name, params_json AS params FROM agent_tool_calls")
    assert call["name"] == "N\ufffd?"


def test_links_and_pipes_in_folders_are_left_alone(
    relay: Run, transcripts: Path, broker_home: Home
) -> None:
    folder = transcripts / "claude" / "projects"
    (folder / "link.jsonl").symlink_to("/etc/passwd")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "other.jsonl").write_text('{"some": "thing"}\n')
    (folder / "empty.jsonl").touch()
    found = ingested(relay, folder)
    assert [found[name] for name in ("files", "links", "not_transcripts")] == [5, 2, 1]
    assert relay("ledger", "ingest", str(folder / "pipe.jsonl")).returncode == 2
    assert relay("ledger", "ingest", str(folder / "nothing")).returncode == 2


def test_a_file_that_was_replaced_is_read_anew_and_doubles_nothing(
    relay: Run, transcripts: Path
) -> None:
    whole = transcripts / "claude" / "projects" / "-srv-demo" / f"{MAIN}.jsonl"
    ingested(relay, whole)
    expected = everything(relay)
    whole.write_bytes(b"\n" * 10 + whole.read_bytes())  # the same inode, another content
    found = ingested(relay, whole)
    assert (found["turns"], found["bytes"]) == (0, whole.stat().st_size)
    assert everything(relay) == expected


def test_a_conversation_that_older_versions_went_on_with_in_a_second_file_is_one(
    relay: Run, transcripts: Path
) -> None:
    """They copied all of it, with the new conversation's id in each record."""
    whole = transcripts / "claude" / "projects" / "-srv-demo" / f"{MAIN}.jsonl"
    second = "0b0b0b0b-0000-4000-8000-000000000000"
    copied = whole.read_text().replace(MAIN, second)
    last = [json.loads(line) for line in copied.splitlines() if '"uuid"' in line][-1]
    asks = {"type": "user", "uuid": "p", "message": {"content": "go on"}}
    says = {"type": "assistant", "uuid": "a", "message": {"content": "I go on.", "id": "m"}}
    hangs = [{"parentUuid": last["uuid"]}, {"parentUuid": "p"}]
    common = {"sessionId": second, "timestamp": "2026-11-23T10:00:00Z"}
    added = [{**common, **one, **on} for one, on in zip((asks, says), hangs, strict=True)]
    whole.with_name(f"{second}.jsonl").write_text(
        copied + "".join(json.dumps(one) + "\n" for one in added)
    )
    ingested(relay, whole)
    assert ingested(relay, whole.parent / f"{second}.jsonl")["turns"] == 1
    rows = asked(relay)
    assert [
        (row["session"], row["parent"], row["after"]) for row in rows if row["asked"] == "go on"
    ] == [(second, MAIN, "and the hidden ones again")]
    counts = asked(relay, "SELECT count(*) AS n FROM agent_messages GROUP BY session")
    assert sorted(row["n"] for row in counts) == [2, 13]


def test_two_commands_at_once_do_not_both_store_the_same_bytes(broker_home: Home) -> None:
    batch: dict[str, Any] = {
        "path": "/t",
        "source": "claude",
        "inode": "1:1",
        "rows": {},
        "state": {},
    }
    with connect(broker_home) as client:
        assert client.request(INGEST, known=None, offset=7, **batch)["duplicate"] is False
        assert client.request(INGEST, known=None, offset=7, **batch)["duplicate"] is True
        with pytest.raises(RelayError) as refused:
            client.request(INGEST, known=None, offset=9, **batch)
        assert refused.value.code == "changed"
        assert client.request(INGEST, known=7, offset=9, **batch)["duplicate"] is False
        odd: list[dict[str, Any]] = [{"rows": {"turns": [[1]]}}, {"rows": []}, {"source": "x"}]
        for wrong in (*odd, {"offset": -1}):
            with pytest.raises(RelayError):
                client.request(INGEST, **{"known": 9, "offset": 9, **batch, **wrong})
