"""Looking at the traffic: pages of messages, the hooks on a message's way, figures for charts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.ledger import agent_ledger, reading
from relay.ledger.store import Ledger
from relay.protocol.turns import TurnResult, TurnState

PATH = "ledger.db"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """Ten messages of Alice's and Bob's in turn, a second apart; one of Bob's is for two."""
    ledger = Ledger(str(tmp_path / PATH))
    ledger.begin()
    for number in range(1, 11):
        seq, at = ledger.next_seq(), number * 1000
        sender, *to = ("Alice", "Bob") if number % 2 else ("Bob", "Alice")
        to += ["Carol"] if number == 6 else []
        body = f"number {number}" + (" Größe" if number == 3 else "")
        ledger.add(
            [(seq, f"M{number}", "message", sender, "agent", "followup", None, body, None, at)],
            [(seq, one, seq, 0, "seen", None, at, 0, 0) for one in to],
        )
        with ledger.guard() as db:
            db.execute("UPDATE deliveries SET submitted_ms=? WHERE event=?", (at + number, seq))
    with ledger.guard() as db:
        db.execute("INSERT INTO hook_evaluations VALUES (5,'user/mail',5001,9000,1,'{}',NULL)")
        for at, agent, event in ((5_500, "Bob", "Late"), (4_500, "Bob", "Soon"), (1, "Bob", "Old")):
            db.execute(
                "INSERT INTO hook_invocations VALUES (NULL,?,'r',?,?,'h','python','','',1,"
                "'allow',0.02,NULL,'','','')",
                (at, agent, event),
            )
    ledger.commit()
    ledger.close()
    yield str(tmp_path / PATH)


def test_pages_go_back_from_the_newest(path: str) -> None:
    rows, more = reading.page(path, before=None, limit=3)
    assert [(row["id"], row["seq"]) for row in rows] == [("M10", 10), ("M9", 9), ("M8", 8)]
    assert more
    rows, more = reading.page(path, before=3, limit=3)
    assert [row["id"] for row in rows] == ["M2", "M1"]
    assert not more


def test_an_answer_belongs_to_the_newest_message_that_its_turn_answers(path: str) -> None:
    ledger = Ledger(path)
    ledger.begin()
    session = agent_ledger.session_of(ledger, "Bob", "main", 1)
    for turn, events, text in (("T1", (1, 3), "Both done."), ("T2", (5,), "")):
        asked = [agent_ledger.TurnPrompt(event, "x", 1) for event in events]
        ended = TurnResult(TurnState.COMPLETED, text)
        agent_ledger.add_turn(ledger, session, turn, asked, ended, started_ms=1, now_ms=9_000)
    ledger.commit()
    ledger.close()
    answer = {"asked": "M3", "from": "Bob", "to": "Alice", "body": "Both done."}
    assert reading.answers(path, ["M1", "M3", "M5"]) == [answer | {"created_ms": 9_000}]
    assert reading.answers(path, ["M2"]) == []
    rows, _ = reading.page(path, before=None, limit=9, text="BOTH done")
    assert [row["id"] for row in rows] == ["M3", "M1"]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        pytest.param("NUMBER 3", ["M3"], id="words"),
        pytest.param("carol", ["M6"], id="receiver"),
        pytest.param("alice", ["M10", "M9", "M8", "M7", "M6"], id="either-side"),
        pytest.param("100%_'\"", [], id="no-pattern"),
    ],
)
def test_a_search_finds_words_and_names(path: str, text: str, ids: list[str]) -> None:
    rows, _ = reading.page(path, before=None, limit=100, text=text)
    assert list(dict.fromkeys(row["id"] for row in rows))[:5] == ids


def test_the_hooks_on_a_messages_way_are_its_own_and_its_agents_meanwhile(path: str) -> None:
    rows = reading.hooks_on_the_way(path, "M5", ["Alice", "Bob"], 5_006)
    assert [(row["event"], row["of"], row["decision"]) for row in rows] == [
        ("Soon", "Bob", "allow"),
        ("route", "", "fired"),
        ("Late", "Bob", "allow"),
    ]


def test_figures_count_what_was_said_since_then(path: str) -> None:
    found = reading.figures(path, since_ms=5_000, bucket_ms=3_000)
    assert sorted(found["sent"]) == [
        ["Alice", 0, 2],
        ["Alice", 1, 1],
        ["Bob", 0, 1],
        ["Bob", 1, 2],
    ]
    assert found["states"] == {"seen": 7}
    assert found["latency"]["Carol"] == {"number": 1, "median_ms": 6, "p95_ms": 6}
    assert found["latency"]["Bob"] == {"number": 3, "median_ms": 7, "p95_ms": 9}
