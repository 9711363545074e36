"""What people ask the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from relay.broker.delivery_states import advance
from relay.core import sqlite
from relay.core.message import State
from relay.ledger import queries
from relay.ledger.queries import SLICE, Filter
from relay.ledger.schema import SCHEMA
from relay.ledger.store import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(str(tmp_path / "ledger.db"))
    yield ledger
    ledger.close()


def put(
    ledger: Ledger, number: int, sender: str, to: list[str], body: str, thread: str | None = None
) -> str:
    id_ = f"01{number:024d}"
    seq = ledger.next_seq()
    ledger.begin()
    ledger.add(
        [(seq, id_, "message", sender, "agent", "followup", thread, body, None, number * 1000)],
        [(seq, one, ledger.next_number(one), 1, "queued", None, number * 1000, 0, 0) for one in to],
    )
    ledger.commit()
    return id_


def found(ledger: Ledger, wanted: Filter, limit: int = 100) -> list[tuple[str, str]]:
    """(body, to) of everything that matches, newest first, over all slices."""
    top = queries.last_event(ledger)
    rows = []
    while top:
        part, top = queries.slice_of(ledger, top, wanted, limit)
        rows += part
    return [(str(row["body"]), str(row["to"])) for row in rows]


def test_filters(ledger: Ledger) -> None:
    put(ledger, 1, "Al", ["Bob"], "Deploy now", "t1")
    put(ledger, 2, "Bob", ["Al", "Carol"], "done")
    put(ledger, 3, "Carol", ["Dan"], "100% _sure")
    assert found(ledger, Filter(agent="bob")) == [
        ("done", "Carol"),
        ("done", "Al"),
        ("Deploy now", "Bob"),
    ]
    assert found(ledger, Filter(sender="BOB")) == [("done", "Carol"), ("done", "Al")]
    assert found(ledger, Filter(thread="t1")) == [("Deploy now", "Bob")]
    assert found(ledger, Filter(grep="dEPLOY")) == [("Deploy now", "Bob")]
    assert found(ledger, Filter(grep="0% _s")) == [("100% _sure", "Dan")]
    assert found(ledger, Filter(grep="%")) == [("100% _sure", "Dan")]
    assert found(ledger, Filter(since_ms=3000)) == [("100% _sure", "Dan")]
    assert found(ledger, Filter(kind="other")) == []


def test_a_search_goes_through_all_slices(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "SLICE", 3)
    for number in range(1, 11):
        put(ledger, number, "Al", ["Bob"], f"{number}", "odd" if number % 2 else "even")
    assert [body for body, _ in found(ledger, Filter(thread="odd"))] == ["9", "7", "5", "3", "1"]
    assert [body for body, _ in found(ledger, Filter(since_ms=7000))] == ["10", "9", "8", "7"]


def crowd(ledger: Ledger, count: int) -> None:
    """As many messages from Al to Cy."""
    ledger.begin()
    events, deliveries = [], []
    for number in range(1, count + 1):
        seq = ledger.next_seq()
        event = (seq, f"02{seq:024d}", "message", "Al", "agent", "followup", None)
        events.append((*event, "x", None, number))
        way = (seq, "Cy", ledger.next_number("Cy"), 1, "queued", None)
        deliveries.append((*way, number, 0, 0))
    ledger.add(events, deliveries)
    ledger.commit()


@pytest.mark.parametrize(
    "wanted", [Filter(sender="rare"), Filter(agent="RARE"), Filter(agent="bob")]
)
def test_a_search_skips_where_somebody_did_not_speak(ledger: Ledger, wanted: Filter) -> None:
    crowd(ledger, 3)
    put(ledger, 1, "Rare", ["Bob"], "here")
    crowd(ledger, 2 * SLICE)
    rows, top = queries.slice_of(ledger, queries.last_event(ledger), wanted, 10)
    assert [row["body"] for row in rows] == ["here"]
    assert top == 0


def test_somebody_whose_words_were_rolled_back_is_found_later(ledger: Ledger) -> None:
    ledger.begin()
    seq = ledger.next_seq()
    ledger.add([(seq, "0" * 26, "note", "Al", "agent", None, None, None, None, 1)], [])
    ledger.rollback()
    put(ledger, 1, "Al", ["Bob"], "again")
    assert found(ledger, Filter(sender="Al")) == [("again", "Bob")]


def test_what_an_older_version_stored_is_found(tmp_path: Path) -> None:
    path = str(tmp_path / "old.db")
    database = sqlite.connect(path, replace(SCHEMA, migrations=SCHEMA.migrations[:1]))
    database.execute(
        "INSERT INTO events (seq, id, kind, agent, origin, mode, body, created_ms)"
        " VALUES (5000, 'X', 'message', 'Al', 'agent', 'steer', 'old', 1)"
    )
    database.close()
    ledger = Ledger(path)
    crowd(ledger, SLICE)
    rows, top = queries.slice_of(ledger, 5000, Filter(sender="AL"), 10)
    assert [row["body"] for row in rows] == ["old"]
    ledger.close()


def test_inbox(ledger: Ledger) -> None:
    ids = [put(ledger, number, "Al", ["Bob"], f"{number}") for number in range(1, 6)]
    seen = ledger.delivery(ids[1], "Bob")
    assert seen is not None
    ledger.begin()
    ledger.update_delivery(seen[0], "Bob", advance(seen[2], State.SEEN, 9))
    ledger.commit()

    def inbox(**options: object) -> list[str]:
        chosen = {"everything": False, "after": 0, "limit": 100, **options}
        rows = queries.inbox(ledger, "bob", **chosen)  # type: ignore[arg-type]
        return [row["body"] for row in rows]

    assert inbox() == ["1", "3", "4", "5"]
    assert inbox(limit=2) == ["1", "3"]
    assert inbox(everything=True) == ["1", "2", "3", "4", "5"]
    assert inbox(everything=True, limit=2) == ["4", "5"]
    assert inbox(everything=True, after=3) == ["4", "5"]
    assert queries.unread(ledger, "BOB") == 4
    assert queries.counts(ledger)["queued"] == 4


def test_ids_are_found_by_a_part(ledger: Ledger) -> None:
    one = put(ledger, 1111, "Al", ["Bob"], "a")
    two = put(ledger, 1112, "Al", ["Bob"], "b")
    assert queries.matching_ids(ledger, one.lower()) == [one]
    assert queries.matching_ids(ledger, "1112") == [two]
    assert queries.matching_ids(ledger, "0100") == [one, two]
    assert queries.matching_ids(ledger, f"[{two[-8:]}_7K2QXD]") == [two]
    assert queries.matching_ids(ledger, "9999") == queries.matching_ids(ledger, "[_") == []
    assert queries.matching_ids(ledger, "%___") == []


def test_one_message_with_all_its_deliveries(ledger: Ledger) -> None:
    id_ = put(ledger, 5, "Al", ["Bob", "Carol"], "both")
    row = queries.message(ledger, id_)
    assert row is not None and row["body"] == "both" and "state" not in row
    assert [(d["to"], d["state"]) for d in row["deliveries"]] == [
        ("Bob", "queued"),
        ("Carol", "queued"),
    ]
    assert queries.message(ledger, "01" + "9" * 24) is None
