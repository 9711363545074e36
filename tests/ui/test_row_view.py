"""How each kind of row reads, for every view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.core import features
from relay.ui import row_view
from relay.ui.row_view import pieces, words

ITEM = {
    "agent": "Bob",
    "kind": "question",
    "what": "Run\n it?",
    "choices": [{"key": "1", "label": "Yes"}, {"key": "no", "label": "No"}],
}
DELIVERY = {"what": "delivery", "id": "01ABCDEFGHIJ", "to": "Bob", "state": "seen"}
TURN = {"what": "turn", "agent": "Bob", "state": "completed", "text": "Done.\nBye", "usage": None}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            {
                **{"what": "message", "id": "01ABCDEFGHIJ", "from": "Al", "to": ["Bob", "Cy"]},
                **{"body": "a\nb", "thread": "t", "channel": None},
            },
            "Al → Bob,Cy [t]  a b  CDEFGHIJ",
        ),
        ({**DELIVERY, "reason": None, "proof": "turn"}, "Bob: seen (turn)  CDEFGHIJ"),
        (
            {"what": "agent", "name": "Bob", "state": "idle", "was": None, "reason": None},
            "Bob joined, idle",
        ),
        (
            {"what": "agent", "name": "Bob", "state": "limited", "was": "busy", "reason": "21:00"},
            "Bob: busy → limited (21:00)",
        ),
        (
            {**TURN, "started_ms": 0, "ended_ms": 1500, "usage": {"input": 3, "output": None}},
            "Bob: turn completed after 1.5 s, 3 → 0 tokens  Done. Bye",
        ),
        ({"what": "item", "item": ITEM, "open": True}, "Bob asks: Run it?  [1 Yes · no]"),
        (
            {"what": "item", "item": ITEM, "open": False, "answer": "Yes", "by": "kim"},
            "kim answered Bob: Yes (Run it?)",
        ),
        ({"what": "item", "item": ITEM, "open": False}, "Bob: question is over  Run it?"),
        (
            {"what": "obligation", "id": "01ABCDEFGHIJ", "to": "Bob", "from": "Al", "why": "gone"},
            "Bob has gone without an answer to Al  CDEFGHIJ",
        ),
        (
            {"what": "gap", "lost": 7},
            "7 rows are missing here: too much came at once; relay history has the messages",
        ),
    ],
    ids=lambda value: value["what"] if isinstance(value, dict) else "",
)
def test_a_row_reads_the_same_everywhere(row: dict[str, Any], expected: str) -> None:
    assert words(row) == expected


def test_what_needs_somebody_has_its_own_tone() -> None:
    row = {"what": "agent", "name": "Bob", "state": "blocked", "was": "busy", "reason": None}
    assert ("blocked", "need") in pieces(row)
    assert ("failed", "need") in pieces({**DELIVERY, "state": "failed", "reason": "", "proof": ""})


def test_a_row_of_a_feature_looks_as_its_view_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it fails, or is not installed here, what is in the row is shown."""
    view = tmp_path / "loud" / "view.py"
    view.parent.mkdir()
    (view.parent / "__init__.py").touch()
    view.write_text(
        "ROWS = {'loud': lambda row: [(row['who'], 'bold'), ('\\nhey', '')],"
        " 'message': lambda row: [('not the kernel row', '')]}"
    )
    loud = features.Feature("loud", "loud", is_own=False)
    monkeypatch.setattr(features, "installed", lambda: iter([loud]))
    monkeypatch.syspath_prepend(tmp_path)
    row_view._views.cache_clear()
    head = {"seq": 1, "at_ms": 1, "names": ["Al"]}
    assert pieces({**head, "what": "loud", "who": "Al"}) == [("Al", "bold"), (" hey", "")]
    assert words({**head, "what": "loud", "n": 1, "word": "a\nb"}) == "loud: n 1, word a b"
    assert words({**head, "what": "quiet", "n": 1}) == "quiet: n 1"
    assert words({**DELIVERY, "reason": "", "proof": ""}) == "Bob: seen  CDEFGHIJ"
    row_view._views.cache_clear()
