"""What is said in either ledger is found again, whatever became of the index."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.core.errors import StorageError, Timeout
from relay.ledger import search_index
from relay.ledger.queries import Filter
from relay.ledger.search_index import SearchIndex, can_find, snippet
from relay.ledger.store import Ledger
from tests.ledger.rows import fill
from tests.ledger.test_queries import put


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(str(tmp_path / "ledger.db"))
    yield ledger
    ledger.close()


@pytest.fixture
def index(tmp_path: Path, ledger: Ledger) -> Iterator[SearchIndex]:
    index = SearchIndex(str(tmp_path / "search.db"), ledger.path)
    yield index
    index.close()


def found(index: SearchIndex, text: str, **filters: object) -> list[str]:
    rows = index.search(Filter(grep=text, **filters), 100)  # type: ignore[arg-type]
    return [str(row["body"]) for row in rows]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("deploy", ["redeploying", "Deploy now"]),
        ("ÄRGER", ["kein Ärger"]),
        ("0% _s", ["100% _sure"]),
        ('say "no"', ['they say "no" AND OR NOT *']),
        ("漢字か", ["漢字かな"]),
        ("after nul", ["before\0after nul"]),
        ("a\nb c", ["a\nb c"]),
        ("nowhere", []),
        ("Ärgernis", []),
    ],
    ids=["part", "case", "signs", "quotes", "cjk", "nul", "lines", "nothing", "longer"],
)
def test_any_part_of_a_text_is_found(
    ledger: Ledger, index: SearchIndex, text: str, expected: list[str]
) -> None:
    bodies = ("Deploy now", "kein Ärger", "100% _sure", 'they say "no" AND OR NOT *')
    for number, body in enumerate(
        (*bodies, "漢字かな", "before\0after nul", "a\nb c", "redeploying")
    ):
        put(ledger, number + 1, "Al", ["Bob"], body)
    assert can_find(text)
    assert found(index, text) == expected


def test_filters_hold_beside_the_text(ledger: Ledger, index: SearchIndex) -> None:
    put(ledger, 1, "Al", ["Bob"], "deploy one", "t1")
    put(ledger, 2, "Bob", ["Al", "Carol"], "deploy two")
    put(ledger, 3, "Carol", ["Dan"], "deploy three")
    assert found(index, "deploy", agent="carol") == ["deploy three", "deploy two"]
    assert found(index, "deploy", thread="t1") == ["deploy one"]
    assert found(index, "deploy", since_ms=3000) == ["deploy three"]
    assert found(index, "deploy", kind="note") == []


def test_both_ledgers_are_searched(ledger: Ledger, index: SearchIndex) -> None:
    fill(ledger, 3, "please look")
    [row] = index.search(Filter(grep="answer 1"), 10)
    assert (row["ledger"], row["from"], row["to"]) == ("agents", "atlas", "atlas/000")
    # What a turn was asked is found where it came from, once.
    rows = index.search(Filter(grep="look 1"), 10)
    assert [row["ledger"] for row in rows] == ["events"]
    assert found(index, "answer", agent="somebody") == []


def test_what_comes_later_is_found_too_and_nothing_twice(
    ledger: Ledger, index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "SLICE", 3)
    for number in range(1, 12):
        put(ledger, number, "Al", ["Bob"], f"needle {number}")
    monkeypatch.setattr(search_index, "SLICES", 2)
    assert [index.catch_up() for _ in range(3)] == [(6, True), (5, False), (0, False)]
    put(ledger, 12, "Al", ["Bob"], "needle 12")
    assert len(found(index, "needle")) == len(set(found(index, "needle"))) == 12


def test_in_the_place_of_another_ledger_nothing_of_the_former_is_found(
    tmp_path: Path, index: SearchIndex, ledger: Ledger
) -> None:
    put(ledger, 1, "Al", ["Bob"], "former")
    assert found(index, "former") == ["former"]
    ledger.close()
    for path in tmp_path.glob("ledger.db*"):
        os.rename(path, path.with_name("elsewhere" + path.name))
    other = Ledger(ledger.path)
    put(other, 2, "Al", ["Bob"], "latter")
    assert (found(index, "former"), found(index, "latter")) == ([], ["latter"])
    other.close()


@pytest.mark.parametrize("damage", ["gone", "cut", "overwritten"])
def test_an_index_that_is_damaged_is_made_anew(tmp_path: Path, ledger: Ledger, damage: str) -> None:
    path = tmp_path / "search.db"
    for number in range(1, 200):
        put(ledger, number, "Al", ["Bob"], f"needle {number}")
    index = SearchIndex(str(path), ledger.path)
    assert len(found(index, "needle")) == 100
    index.close()
    size = path.stat().st_size
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        os.truncate(path, size // 2)
    else:
        with open(path, "r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (size - 4096))
    index = SearchIndex(str(path), ledger.path)
    try:
        rows = found(index, "needle")
    except StorageError:  # it says so once; by then it is gone
        rows = found(index, "needle")
    assert len(rows) == 100
    index.close()


def test_a_file_of_somebody_elses_stays(tmp_path: Path, ledger: Ledger, index: SearchIndex) -> None:
    put(ledger, 1, "Al", ["Bob"], "needle")
    path = tmp_path / "search.db"
    path.write_bytes(b"something else" * 400)
    for call in (index.catch_up, index.make_anew):
        with pytest.raises(StorageError, match="is not a search index of relay"):
            call()
    assert path.read_bytes().startswith(b"something else")


def test_the_ledger_is_never_written_by_the_index(ledger: Ledger, index: SearchIndex) -> None:
    put(ledger, 1, "Al", ["Bob"], "needle")
    found(index, "needle")
    with index._reading() as db, pytest.raises(sqlite3.OperationalError, match="readonly"):
        db.execute("DELETE FROM ledger.deliveries")


def test_a_search_that_takes_too_long_is_given_up(
    ledger: Ledger, index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ledger, 400, "needle")
    index.catch_up()
    monkeypatch.setattr(search_index, "PATIENCE", -1.0)
    monkeypatch.setattr(search_index, "STEPS", 10)
    with pytest.raises(Timeout):
        found(index, "needle")
    monkeypatch.undo()
    assert found(index, "needle")


def test_a_snippet_shows_what_was_found_on_one_line() -> None:
    assert snippet("please deploy now", "DEPLOY") == "please [deploy] now"
    text = snippet("a " * 200 + "\x1b[31m\nneedle\n" + "b " * 200, "needle")
    assert text.startswith("…a a ") and text.endswith(" b b…") and "[needle]" in text
    assert "\n" not in text and len(text) < 120
    assert len(snippet("x" * 500, "x" * 300)) < 160


@pytest.mark.parametrize("indexed", [0, 2, 4], ids=["no-index", "partly", "all"])
def test_words_are_found_in_whatever_order_however_far_the_index_is(
    tmp_path: Path, ledger: Ledger, index: SearchIndex, indexed: int
) -> None:
    bodies = ["Flight UA 123 to Oslo", "the flight is late", "your code: 123", "Oslo, a 123 Flight"]
    ids = []
    for number, body in enumerate(bodies):
        ids.append(put(ledger, number + 1, "Al", ["Bob"], body))
        if number + 1 == indexed:
            index.catch_up()

    def words(text: str, **more: object) -> list[tuple[int, float]]:
        path = str(tmp_path / "search.db")
        rows = search_index.find_words(path, ledger.path, text.split(), **more)  # type: ignore[arg-type]
        return [(ids.index(id_), round(share, 2)) for id_, share in rows]

    assert words("flight oslo 123") == [(3, 1.0), (0, 1.0), (2, 0.33), (1, 0.33)]
    assert words("flight ua") == [(0, 1.0), (3, 0.5), (1, 0.5)]
    assert words("flight", limit=1, since_ms=2000) == [(3, 1.0)]
    assert words("flight", channels=["relay"], since_ms=4000) == [(3, 1.0)]
    assert words("flight", channels=["mail"]) == words("nowhere") == []
