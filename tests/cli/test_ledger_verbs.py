"""Finding, reading and tidying what both ledgers hold, as a user or a script does."""

from __future__ import annotations

import json

from relay.core.paths import Home
from relay.ledger.store import Ledger
from tests.cli.conftest import Run
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
    assert ["[answer 11] yyy" in lines[0], "[ANSWER 11], was it?" in lines[1]] == [True, True]
    assert "atlas/000" in lines[0] and "turn" in lines[0]
    rows = json.loads(relay("history", "--grep", "answer 11", "--json").stdout)
    assert [(row["ledger"], row["from"]) for row in rows][0] == ("agents", "atlas")
    assert rows[1]["ledger"] == "events" and rows[1]["snippet"] == "it was [ANSWER 11], was it?"
    # Two characters are looked for without the index, in what was said to each other.
    assert len(json.loads(relay("history", "--grep", "R 1", "--json").stdout)) == 4
    assert relay("history", "--grep", "zz").returncode == 0
