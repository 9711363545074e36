"""Tables that a feature brings along: what is applied, once, and what is refused whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.core.errors import RelayError, StorageError
from relay.ledger.feature_tables import migrate
from relay.ledger.store import Ledger

FIRST = ("CREATE TABLE loud_words (word TEXT)", "INSERT INTO loud_words VALUES ('first')")
SECOND = ("ALTER TABLE loud_words ADD COLUMN n INTEGER NOT NULL DEFAULT 0",)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(str(tmp_path / "ledger.db"))
    yield ledger
    ledger.close()


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
