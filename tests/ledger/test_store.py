"""What is written comes back as it was; what is rolled back never was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from relay.broker.delivery_states import advance, nobody
from relay.core import sqlite
from relay.core.errors import RelayError, StorageError
from relay.core.ids import new_ulid
from relay.core.message import HeldFor, State
from relay.ledger import queries
from relay.ledger.feature_tables import migrate
from relay.ledger.schema import SCHEMA, AgentRecord
from relay.ledger.store import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(str(tmp_path / "ledger.db"))
    yield ledger
    ledger.close()


def put(
    ledger: Ledger, to: str, body: str = "text", *, waiting: bool = False, at: int = 1000
) -> str:
    """Store one message in the open transaction; returns its id."""
    id_ = new_ulid(at)
    seq = ledger.next_seq()
    state = State.WAITING if waiting else State.QUEUED
    ledger.begin()
    ledger.add(
        [(seq, id_, "message", "Al", "agent", "followup", None, body, None, at)],
        [
            (
                seq,
                to,
                ledger.next_number(to),
                1,
                state.value,
                nobody(to) if waiting else None,
                at,
                0,
                0,
            )
        ],
    )
    return id_


def bodies(ledger: Ledger, to: str, after: int = 0, **limits: int) -> list[str]:
    limits = {"limit": 1000, "max_bytes": 10**9, **limits}
    rows, _ = ledger.open_deliveries(to, after, **limits)
    return [row["body"] for _, row in rows]


@pytest.mark.parametrize("body", ["a\x00b", "\x1b[201~\x1b]0;x\x07", "päh 漢字 🙂", " \n x"])
def test_bodies_are_kept_as_they_are(ledger: Ledger, body: str) -> None:
    put(ledger, "Bob", body)
    ledger.commit()
    assert bodies(ledger, "Bob") == [body]


def test_what_is_rolled_back_leaves_no_gap(ledger: Ledger) -> None:
    put(ledger, "Bob", "1")
    ledger.commit()
    put(ledger, "Bob", "lost")
    ledger.rollback()
    put(ledger, "Bob", "2")
    ledger.commit()
    rows, _ = ledger.open_deliveries("Bob", 0, 10, 10**9)
    assert [(seq, row["delivery"], row["body"]) for seq, row in rows] == [(1, 1, "1"), (2, 2, "2")]


def test_numbers_go_on_after_everything_was_seen_and_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "again.db")
    for round_ in (1, 2, 3):
        ledger = Ledger(path)
        id_ = put(ledger, "Bob")
        found = ledger.delivery(id_, "BOB")
        assert found is not None
        rows, _ = ledger.open_deliveries("bob", 0, 10, 10**9)
        assert [row["delivery"] for _, row in rows] == [round_]
        ledger.update_delivery(found[0], "Bob", advance(found[2], State.SEEN, 5))
        ledger.commit()
        ledger.close()


def test_an_id_can_be_stored_only_once(ledger: Ledger) -> None:
    id_ = put(ledger, "Bob")
    ledger.commit()
    assert ledger.known([id_, new_ulid(1)]) == {id_}
    ledger.begin()
    with pytest.raises(StorageError):
        ledger.add(
            [(ledger.next_seq(), id_, "message", "A", "agent", None, None, "x", None, 1)], []
        )
    ledger.rollback()
    assert bodies(ledger, "Bob") == ["text"]


def test_an_old_id_is_known_after_newer_ones_and_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "again.db")
    ledger = Ledger(path)
    newer = put(ledger, "Bob", at=9000)
    older = put(ledger, "Bob", at=8000)
    ledger.commit()
    ids = [new_ulid(1), older, newer, new_ulid(8500), new_ulid(9999)]
    assert ledger.known(ids) == {older, newer}
    ledger.close()
    ledger = Ledger(path)
    assert ledger.known(ids) == {older, newer}
    put(ledger, "Bob", at=20_000)
    ledger.rollback()
    assert ledger.known(ids) == {older, newer}
    ledger.close()


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_many_messages_are_stored_like_one(ledger: Ledger, count: int) -> None:
    ledger.begin()
    events, deliveries = [], []
    for number in range(1, count + 1):
        seq = ledger.next_seq()
        event = (seq, new_ulid(number), "message", "Al", "agent", "followup", None)
        events.append((*event, f"{number}", None, number))
        way = (seq, "Bob", ledger.next_number("bob"), 1, "queued", None)
        deliveries.append((*way, number, 0, 0))
    ledger.add(events, deliveries)
    put(ledger, "Bob", "last", at=50)
    ledger.commit()
    rows = [row for _, row in ledger.open_deliveries("Bob", 0, 1000, 10**9)[0]]
    assert [row["delivery"] for row in rows] == list(range(1, count + 2))
    assert [row["body"] for row in rows] == [*map(str, range(1, count + 1)), "last"]
    different = {"id", "body", "delivery", "created_ms", "updated_ms"}
    assert len({str({k: v for k, v in row.items() if k not in different}) for row in rows}) == 1


def test_a_delivery_comes_back_as_it_was_stored(ledger: Ledger) -> None:
    id_ = put(ledger, "Bob")
    found = ledger.delivery(id_, "Bob")
    assert found is not None
    event, sender, delivery = found
    assert sender == "Al"
    for state, more in (
        (State.DELIVERING, {}),
        (State.QUEUED, {"reason": "a draft"}),
        (State.DELIVERING, {}),
        (State.SUBMITTED, {}),
        (State.SEEN, {"proof": "hook"}),
    ):
        delivery = advance(delivery, state, delivery.updated_ms + 7, **more)  # type: ignore[arg-type]
        ledger.update_delivery(event, "Bob", delivery)
        again = ledger.delivery(id_, "Bob")
        assert again is not None and again[2] == delivery
    ledger.commit()
    assert bodies(ledger, "Bob") == []


def test_reading_on_is_bounded_by_rows_and_by_bytes(ledger: Ledger) -> None:
    for number in range(10):
        put(ledger, "Bob", f"{number}" * 100)
    ledger.commit()
    rows, left = ledger.open_deliveries("Bob", 0, 3, 10**9)
    assert [row["body"][0] for _, row in rows] == ["0", "1", "2"] and left
    rows, left = ledger.open_deliveries("Bob", rows[-1][0], 100, 250)
    assert [row["body"][0] for _, row in rows] == ["3", "4", "5"] and left
    rows, left = ledger.open_deliveries("Bob", rows[-1][0], 100, 10**9)
    assert len(rows) == 4 and not left


def test_what_waited_is_released_for_that_name_only(ledger: Ledger) -> None:
    for_bob = put(ledger, "Bob", waiting=True)
    put(ledger, "Carol", waiting=True)
    ledger.commit()
    ledger.begin()
    assert ledger.release_waiting("BOB", 9) == [(for_bob, "Al")]
    ledger.commit()
    found = ledger.delivery(for_bob, "Bob")
    assert found is not None and found[2].state is State.QUEUED and found[2].reason is None
    rows, _ = ledger.open_deliveries("Carol", 0, 10, 10**9)
    assert rows[0][1]["state"] == "waiting"


def test_only_old_messages_for_unknown_names_expire(ledger: Ledger) -> None:
    old = put(ledger, "Ghost", waiting=True, at=1000)
    put(ledger, "Ghost", waiting=True, at=5000)
    put(ledger, "Carol", at=1000)
    ledger.commit()
    assert [row[1:3] for row in queries.waiting_for_nobody(ledger, 2000, 10)] == [("Ghost", old)]


def test_agents_come_back(ledger: Ledger) -> None:
    record = AgentRecord("Bob", False, "claude", "busy", 3, 4, "run", "hash", 7, "/", "claude")
    ledger.begin()
    ledger.save_agent(record)
    record.name, record.state = "BOB", "idle"
    ledger.save_agent(record)
    ledger.commit()
    assert ledger.agents() == [record]


def test_a_nonce_cannot_be_told_from_the_id(ledger: Ledger, tmp_path: Path) -> None:
    id_ = new_ulid(0)
    nonce = ledger.nonce(id_, "Bob")
    assert len(nonce) == 6 and nonce == ledger.nonce(id_, "bob") != ledger.nonce(id_, "Al")
    other, again = (Ledger(str(tmp_path / name)) for name in ("other.db", "ledger.db"))
    assert (again.nonce(id_, "Bob") == nonce) and other.nonce(id_, "Bob") != nonce
    other.close()
    again.close()


def test_what_an_older_version_held_is_waiting_queued_or_held(tmp_path: Path) -> None:
    path = str(tmp_path / "old.db")
    older = replace(SCHEMA, migrations=SCHEMA.migrations[:6])
    old = sqlite.connect(path, older)
    old.execute(
        "INSERT INTO agents (name, person, kind, state, since_ms, last_seen_ms)"
        " VALUES ('Bob', 0, 'screen', 'gone', 1, 1)"
    )
    for number, (to, parked) in enumerate([("Ghost", 0), ("bob", 0), ("Bob", 1)], start=1):
        old.execute(
            "INSERT INTO events VALUES (?,?,'message','Al','agent','followup',NULL,'x',NULL,1)",
            (number, str(number)),
        )
        old.execute(
            "INSERT INTO deliveries (event, recipient, n, open, state, reason, updated_ms, parked)"
            " VALUES (?,?,?,1,'held','why',1,?)",
            (number, to, number, parked),
        )
    old.close()
    ledger = Ledger(path)
    states = [ledger.delivery(str(n), to) for n, to in ((1, "Ghost"), (2, "Bob"), (3, "Bob"))]
    assert [one[2].state for one in states if one] == [State.WAITING, State.QUEUED, State.HELD]
    ledger.close()


def test_what_an_older_version_held_has_its_cause_from_then_on(tmp_path: Path) -> None:
    """Until then only the words of the reason told it."""
    causes = {one.name.lower(): int(one) for one in HeldFor}
    path = str(tmp_path / "old.db")
    old = sqlite.connect(path, replace(SCHEMA, migrations=SCHEMA.migrations[:16]))
    reasons = {
        "more than 60 messages a minute between Al and Bob": "rate",
        "21 messages followed from one another without a person": "hops",
        "a shell showed it, and nobody typed it at its prompt": "shown",
        "the cap of $5.00 a day for Bob is used up ($5.10)": "cap",
    }
    for number, reason in enumerate(reasons, start=1):
        old.execute(
            "INSERT INTO events (seq, id, kind, agent, origin, mode, body, created_ms)"
            " VALUES (?,?,'message','Al','agent','followup','x',1)",
            (number, str(number)),
        )
        old.execute(
            "INSERT INTO deliveries (event, recipient, n, open, state, reason, updated_ms, parked)"
            " VALUES (?,'Bob',?,1,'held',?,1,1)",
            (number, number, reason),
        )
    old.close()
    ledger = Ledger(path)
    parked = dict(ledger.rows("SELECT reason, parked FROM deliveries"))
    assert parked == {reason: causes[cause] for reason, cause in reasons.items()}
    [pair] = queries.parked_pairs(ledger, 10)
    assert (pair.sender, pair.to, pair.count, pair.rate) == ("Al", ("Bob",), 4, True)
    assert queries.parked_count(ledger) == 4
    ledger.close()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE events SET body='other'",
        "DELETE FROM events",
        "INSERT OR REPLACE INTO events (seq, id, kind, origin, created_ms)"
        " VALUES (1,'X','n','a',1)",
    ],
    ids=["update", "delete", "replace"],
)
def test_an_event_that_is_stored_is_never_changed(ledger: Ledger, sql: str) -> None:
    put(ledger, "Bob", "as it was")
    ledger.commit()
    ledger.begin()
    with pytest.raises(StorageError, match="events are never changed"), ledger.guard() as db:
        db.execute(sql)
    ledger.rollback()
    assert bodies(ledger, "Bob") == ["as it was"]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO deliveries (event, recipient, n, open, state, updated_ms)"
        " VALUES (9,'Bob',1,1,'queued',1)",
        "INSERT INTO agent_turns (id, session, state, started_ms) VALUES ('T','none','running',1)",
    ],
    ids=["delivery", "turn"],
)
def test_a_row_that_refers_to_nothing_is_refused(ledger: Ledger, sql: str) -> None:
    ledger.begin()
    with pytest.raises(StorageError, match="FOREIGN KEY"), ledger.guard() as db:
        db.execute(sql)


def test_a_large_ledger_of_the_version_before_the_broker_is_taken_over_in_place(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.db"
    old = sqlite.connect(str(path), replace(SCHEMA, migrations=SCHEMA.migrations[:8]))
    old.execute("BEGIN")
    old.execute(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
        " INSERT INTO events (seq, id, kind, agent, origin, mode, body, created_ms)"
        " SELECT i, printf('01%024d', i), 'message', 'Al', 'agent', 'followup', 'body ' || i, i"
        " FROM n"
    )
    old.execute(
        "INSERT INTO deliveries (event, recipient, n, open, state, updated_ms)"
        " SELECT seq, 'Bob', seq, 1, 'queued', seq FROM events"
    )
    old.execute("COMMIT")
    old.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    old.close()
    before = path.stat().st_size
    ledger = Ledger(str(path))
    assert bodies(ledger, "Bob")[:2] == ["body 1", "body 2"]
    # No row is written anew, so it takes as long for a million.
    assert os.path.getsize(f"{path}-wal") < before / 5
    with ledger.guard() as db:
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    ledger.close()


def test_what_was_due_to_handlers_in_an_older_version_is_due_in_the_same_state(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "old.db")
    old = sqlite.connect(path, replace(SCHEMA, migrations=SCHEMA.migrations[:18]))
    due = {
        1: ["user", "automation/M1"],
        2: ["held/user", "held/automations", "held/automations/blocking"],
        3: ["user", "automations", "automations/blocking"],
        4: ["automations/blocking"],
    }
    for number, keys in due.items():
        old.execute(
            "INSERT INTO events (seq, id, kind, agent, origin, mode, body, created_ms)"
            " VALUES (?,?,'message','Al','agent','followup','x',1)",
            (number, str(number)),
        )
        for key in keys:
            old.execute("INSERT INTO evaluations_due VALUES (?,?,2)", (key, number))
    old.close()
    ledger = Ledger(path)
    rows = ledger.rows("SELECT event, handler, state, hops, tries FROM due ORDER BY event, handler")
    assert rows == [
        (1, "automation/M1", "ready", 2, 0),
        (1, "user", "ready", 2, 0),
        (2, "automations", "held", 2, 0),
        (2, "user", "held", 2, 0),
        (3, "automations", "blocked", 2, 0),
        (3, "user", "blocked", 2, 0),
        (4, "automations", "blocked", 2, 0),
    ]
    ledger.close()


FIRST = ("CREATE TABLE loud_words (word TEXT)", "INSERT INTO loud_words VALUES ('first')")
SECOND = ("ALTER TABLE loud_words ADD COLUMN n INTEGER NOT NULL DEFAULT 0",)


def words(ledger: Ledger) -> list[tuple[object, ...]]:
    return ledger.rows("SELECT * FROM loud_words")


def test_each_migration_is_applied_once(ledger: Ledger) -> None:
    for _ in range(2):
        migrate(ledger, "loud", [FIRST])
    assert words(ledger) == [("first",)]
    again = Ledger(ledger.path)
    migrate(again, "loud", [FIRST, SECOND])
    assert words(again) == [("first", 0)]
    with pytest.raises(RelayError, match="its tables are of version 2, and it knows 1"):
        migrate(again, "loud", [FIRST])
    again.close()


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (("INSERT INTO loud_words VALUES ('half')", "CREATE TABEL loud_b (x)"), "syntax error"),
        (("CREATE TABLE quiet_words (x)",), "makes or drops quiet_words"),
        (("DROP TABLE originals",), "makes or drops originals"),
        (("DELETE FROM events",), "events are never changed"),
        (("COMMIT",), "ends the transaction"),
    ],
    ids=["syntax", "another's name", "the ledger's table", "events", "commit"],
)
def test_a_wrong_migration_leaves_nothing(
    ledger: Ledger, statements: tuple[str, ...], why: str
) -> None:
    ledger.tell("an event")
    migrate(ledger, "loud", [FIRST])
    with pytest.raises(RelayError, match=why) as raised:
        migrate(ledger, "loud", [FIRST, statements])
    assert not isinstance(raised.value, StorageError)  # the broker goes on without the feature
    assert words(ledger) == [("first",)] and not ledger.in_transaction
    migrate(ledger, "loud", [FIRST, SECOND])
    assert words(ledger) == [("first", 0)]
