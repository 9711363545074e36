"""The published table is of these behaviours, and says of relay what the tests say."""

from __future__ import annotations

from pathlib import Path

from tests.fidelity.behaviours import GROUPS, registered

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"


def _rows() -> dict[str, list[str]]:
    """The first cell of each row to the others."""
    rows = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("| "):
            cells = line.replace("\\|", "\0").strip("|").split("|")
            cells = [cell.replace("\0", "|").strip() for cell in cells]
            rows[cells[0]] = cells[1:]
    return rows


def test_every_behaviour_is_published_and_holds_in_relay() -> None:
    rows = _rows()
    assert rows[""][0] == "relay"
    behaviours = registered()
    assert len({one.sentence for one in behaviours}) == len(behaviours), "two rows read the same"
    assert {one.sentence: rows[one.sentence][0] for one in behaviours} == {
        one.sentence: "✓" for one in behaviours
    }, "make the table anew: python -m bench.fidelity --write"
    extra = rows.keys() - {one.sentence for one in behaviours}
    assert extra == {"", *(f"**{group}**" for group in GROUPS), f"**of {len(behaviours)}**"}
