"""Finding, reading and tidying what both ledgers hold, as a user or a script does."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.core.paths import Home
from relay.ledger.store import Ledger
from tests.cli.fixtures import Run
from tests.ledger.rows import fill


def worked(home: Home, count: int, words: str = "please look") -> None:
    """A broker has worked here, and has ended."""
    home.create()
    ledger = Ledger(home.ledger)
    fill(ledger, count, words)
    ledger.close()


def test_history_finds_a_text_in_both_ledgers_and_shows_where(
    relay: Run, broker_home: Home
) -> None:
    worked(broker_home, 12)
    relay("send", "Bob", "it was ANSWER 11, was it?", "--offline")
    done = relay("history", "--grep", "answer 11")
    assert done.returncode == 0
    lines = done.stdout.splitlines()[1:]
    # All of the text as it is: only a terminal shows a part of it, with what was found marked.
    assert "answer 11 yyy" in lines[0] and lines[1].endswith("  it was ANSWER 11, was it?")
    assert "atlas/000" in lines[0] and "turn" in lines[0]
    rows = json.loads(relay("history", "--grep", "answer 11", "--json").stdout)
    assert [(row["ledger"], row["from"]) for row in rows][0] == ("agents", "atlas")
    assert rows[1]["ledger"] == "events" and rows[1]["snippet"] == "it was [ANSWER 11], was it?"
    shown = relay("show", rows[0]["id"][-8:])
    assert "session:    atlas/000" in shown.stdout and "answer 11 yyy" in shown.stdout
    assert json.loads(relay("show", rows[0]["id"], "--json").stdout)["turn"]
    # Two characters are looked for without the index, in what was said to each other.
    assert len(json.loads(relay("history", "--grep", "R 1", "--json").stdout)) == 4
    nothing = relay("history", "--grep", "zz")
    assert nothing.returncode == 0
    assert "turns were not searched: that needs at least 3 characters" in nothing.stderr


# -- query


def asked(relay: Run, sql: str, *options: str) -> list[dict[str, Any]]:
    done = relay("ledger", "query", sql, "--json", *options)
    assert done.returncode == 0, done.stdout
    rows = json.loads(done.stdout)
    assert isinstance(rows, list)
    return rows


def test_a_query_reads_both_ledgers_while_the_broker_works(relay: Run, broker_home: Home) -> None:
    worked(broker_home, 3)
    relay("send", "Bob", "here\x1b[31m", "--offline")
    sql = (
        "SELECT s.label, count(*) AS n, s.label FROM agent_turns t"
        " JOIN agent_sessions s ON s.id = t.session GROUP BY 1"
    )
    assert asked(relay, sql) == [{"label": "000", "n": 3, "label_2": "000"}]
    done = relay("ledger", "query", "SELECT seq, body, thread FROM events ORDER BY seq DESC")
    assert done.stdout.splitlines()[:2] == ["seq  body           thread", "4    here^[[31m     -"]
    odd = "SELECT x'00ff' AS b, 9e999 AS f, CAST(x'61ff' AS TEXT) AS t, 1e3 AS n, NULL AS z"
    assert asked(relay, odd) == [{"b": "x'00ff'", "f": "inf", "t": "a\ufffd", "n": 1000, "z": None}]


def test_a_large_answer_is_cut_and_says_so(relay: Run, broker_home: Home) -> None:
    worked(broker_home, 1)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT i FROM n"
    assert len(asked(relay, endless, "--limit", "5")) == 5
    assert "there are more rows: --limit N" in relay("ledger", "query", endless).stderr


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH '{}/other.db' AS other",
        "DETACH main",
        "VACUUM INTO '{}/other.db'",
        "INSERT INTO threads VALUES ('mail', 'x', NULL, 0, NULL, 1)",
        "UPDATE persons SET type='owner'",
        "DELETE FROM deliveries",
        "DROP TABLE events",
        "CREATE TABLE x (a)",
        "CREATE TEMP TABLE x (a)",
        "WITH x AS (SELECT 1) DELETE FROM persons",
        "EXPLAIN DELETE FROM persons",
        "PRAGMA journal_mode=DELETE",
        "PRAGMA query_only=OFF",
        "PRAGMA writable_schema=ON",
        "PRAGMA hard_heap_limit=0",
        "BEGIN IMMEDIATE",
        "SAVEPOINT x",
        "ANALYZE",
        "REINDEX",
        "SELECT load_extension('{}/x.so')",
        "SELECT fts3_tokenizer('simple')",
        "SELECT key FROM nonce_key",
        "SELECT count(*) FROM nonce_key",
        "SELECT 1; DELETE FROM persons",
        "SELECT randomblob(1000000000)",
        "SELECT hex(zeroblob(8000000)) || hex(zeroblob(8000000))",
        "SELECT " + "(" * 200 + "1" + ")" * 200,
        "SELECT 1\0",
        "SELEC 1",
        "",
        "-- nothing",
    ],
    ids=lambda sql: sql[:24].replace("/", "") or "empty",
)
def test_hostile_sql_is_refused_and_changes_nothing(
    relay: Run, broker_home: Home, tmp_path: Path, sql: str
) -> None:
    worked(broker_home, 1)
    before = Path(broker_home.ledger).read_bytes()
    done = relay("ledger", "query", sql.replace("{}", str(tmp_path)))
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("relay: ") and "Traceback" not in done.stderr
    assert Path(broker_home.ledger).read_bytes() == before
    assert not (tmp_path / "other.db").exists()


def test_the_hashes_of_tokens_are_not_shown(relay: Run, broker_home: Home) -> None:
    worked(broker_home, 1)
    with closing(sqlite3.connect(broker_home.ledger)) as db, db:
        db.execute(
            "INSERT INTO agents (name, person, kind, token_hash, state, since_ms, last_seen_ms)"
            " VALUES ('Ann', 0, 'x', 'secret', 'gone', 1, 1)"
        )
    assert asked(relay, "SELECT name, token_hash FROM agents") == [
        {"name": "Ann", "token_hash": None}
    ]
    assert asked(relay, "SELECT 1 AS n FROM agents WHERE token_hash LIKE 's%'") == []
    assert "secret" not in relay("ledger", "export").stdout


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT count(*) FROM n",
        "SELECT instr(replace(hex(zeroblob(3900000)), '0', 'a'),"
        " replace(hex(zeroblob(1900000)), '0', 'a') || 'b')",
    ],
    ids=["recursion", "one function"],
)
def test_a_query_that_never_ends_is_ended(spawned: Run, broker_home: Home, sql: str) -> None:
    worked(broker_home, 1)
    done = spawned("ledger", "query", sql, "--timeout", "0.2")
    assert done.returncode == 5 and "the query took more than 0.2 s" in done.stderr


def test_a_query_cannot_take_all_memory(relay: Run, broker_home: Home) -> None:
    worked(broker_home, 1)
    done = relay(
        *("ledger", "query"),
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n)"
        " SELECT hex(zeroblob(3900000)) || i FROM n ORDER BY 1",
    )
    assert done.returncode == 2 and "256 MiB of memory" in done.stderr


def test_without_a_ledger_it_says_so(relay: Run) -> None:
    done = relay("ledger", "query", "SELECT 1")
    assert done.returncode == 3 and "there is no ledger yet" in done.stderr


def test_an_agent_does_not_read_the_whole_ledger(
    relay: Run, broker_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_RUN", "run-1")
    for words in (("query", "SELECT body FROM events"), ("export",)):
        done = relay("ledger", *words)
        assert done.returncode == 1 and "please" not in done.stdout
        assert "only the person may read the whole ledger" in done.stderr
        assert "relay history and relay show read an agent's own" in done.stderr


# -- export


def test_an_export_has_every_row_of_both_ledgers(
    relay: Run, broker_home: Home, tmp_path: Path
) -> None:
    worked(broker_home, 3)
    file = tmp_path / "all.jsonl"
    assert relay("ledger", "export", str(file)).returncode == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    names = {row["table"] for row in rows}
    assert {"events", "dispatches", "agent_turns", "agent_tool_calls", "persons"} <= names
    assert not {"nonce_key", "senders"} & names
    [first] = [row for row in rows if row["table"] == "events" and row["seq"] == 1]
    assert first["body"] == "please look 0" and first["channel"] == "relay"
    assert "already exists" in relay("ledger", "export", str(file)).stderr
    assert "please look 2" in relay("ledger", "export").stdout


# -- reindex, compact


def test_the_index_can_be_made_anew(relay: Run, broker_home: Home) -> None:
    worked(broker_home, 4)
    assert relay("ledger", "reindex").stdout == "12 texts are indexed\n"
    assert "please look 3" in relay("history", "--grep", "look 3").stdout


TREE = "SELECT id, session, parent_turn, state, tool_call_count FROM agent_turns ORDER BY rowid"
SAID = "SELECT content FROM agent_messages WHERE role='assistant' ORDER BY seq"


def test_compacting_keeps_the_turns_and_the_beginning_of_what_was_said(
    relay: Run, broker_home: Home
) -> None:
    worked(broker_home, 30)
    events = asked(relay, "SELECT * FROM events")
    tree = asked(relay, TREE)
    done = relay("ledger", "compact", "--before", "1d", "--yes")
    assert done.returncode == 0 and done.stdout.startswith("10 turns are compacted, by ")
    assert asked(relay, TREE) == tree and asked(relay, "SELECT * FROM events") == events
    said = [row["content"] for row in asked(relay, SAID)]
    assert said[0] == "answer 0 " + "y" * 151 + "… [compacted: 409 characters]"
    assert said[10] == "answer 10 " + "y" * 400
    calls = asked(relay, "SELECT name, result_json FROM agent_tool_calls")
    assert [bool(row["result_json"]) for row in calls] == [False] * 10 + [True] * 20
    assert {row["name"] for row in calls} == {"read"}
    again = relay("ledger", "compact", "--before", "1d", "--yes")
    assert again.stdout == "0 turns are compacted, by 0 characters\n"


def test_compacting_asks_first(relay: Run, broker_home: Home) -> None:
    worked(broker_home, 30)
    done = relay("ledger", "compact", "--before", "1d", stdin="y\n")
    assert done.returncode == 2 and "Of 10 turns" in done.stderr
    assert "--yes" in done.stderr
    assert relay("ledger", "compact").returncode == 2
    assert "compacted" not in "".join(row["content"] for row in asked(relay, SAID))
