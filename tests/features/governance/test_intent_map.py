"""The map: a row for each file of each intent, and what people wrote around it stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.core.errors import StorageError
from relay.features.governance.mutation import compare
from relay.features.governance.orchestration import update_map

NOW = 1_790_000_000_000


@pytest.fixture
def page(tmp_path: Path) -> Path:
    (tmp_path / ".orchestration").mkdir()
    return tmp_path / ".orchestration/intent_map.md"


def rows(page: Path) -> list[str]:
    return [line for line in page.read_text().splitlines() if line.startswith(("## ", "| `"))]


def update(page: Path, intent: str, path: str, after: bytes | None, moved: str = "") -> None:
    change = compare(path, b"one\ntwo\n", after, moved_from=moved)
    update_map(str(page.parent.parent), intent, "A name", [change], NOW, "abcdef0123456789")


def test_each_file_has_one_row_below_its_intent(page: Path) -> None:
    update(page, "INT-1", "a.py", b"one\n2\n")
    update(page, "INT-2", "a.py", b"1\ntwo\nthree\n")
    update(page, "INT-1", "b.py", b"one\n")
    page.write_text(page.read_text().replace("## INT-2", "my words\n\n## INT-2"))
    update(page, "INT-1", "a.py", None)
    update(page, "INT-1", "c.py", b"x\ntwo\n", moved="b.py")
    update(page, "INT-1", "c.py", b"one\ntwo\n")  # nothing is different
    first, a, b, c, second, other = rows(page)
    assert (first, second) == ("## INT-1: A name", "## INT-2: A name")
    assert a.startswith("| `a.py` | (gone) | - |") and b.startswith("| `b.py` | (gone) |")
    assert c.startswith("| `c.py` | ") and " | 1 | INTENT_EVOLUTION | abcdef0123 | 2026-" in c
    assert other.startswith("| `a.py` | ") and " | 1, 3 | " in other
    assert "my words" in page.read_text()


def test_names_make_no_other_rows_and_obey_no_terminal(page: Path) -> None:
    update(page, "INT-1", "a|b`\x1b[2J\n## INT-9: x", b"x")
    update_map(str(page.parent.parent), "INT-1", "x\n## INT-8: y", [compare("b", None, b"")], 0, "")
    assert [line[:8] for line in rows(page)] == ["## INT-1", "| `a¦b'^", "| `b` | "]
    assert "\x1b" not in page.read_text()


@pytest.mark.parametrize("kind", ["link", "fifo", "large"])
def test_what_is_no_map_is_left_alone(page: Path, tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    if kind == "link":
        os.symlink(victim, page)
    elif kind == "fifo":
        os.mkfifo(page)
    else:
        page.write_bytes(b"x" * (1024 * 1024 + 1))
    with pytest.raises(StorageError, match="cannot be used"):
        update(page, "INT-1", "a.py", b"x")
    assert victim.read_text() == "mine"


def test_the_rows_that_were_changed_longest_ago_make_room(page: Path) -> None:
    change = [compare(f"{number}.py", None, b"x") for number in range(1000)]
    update_map(str(page.parent.parent), "INT-1", "x", change[:1], NOW + 5000, "")
    update_map(str(page.parent.parent), "INT-2", "x", change[1:], NOW, "")
    update_map(str(page.parent.parent), "INT-1", "x", [compare("new", None, b"")], NOW + 9000, "")
    kept = rows(page)
    assert len(kept) == 2 + 1000 and kept[1].startswith("| `0.py`")
    assert kept[2].startswith("| `new`") and kept[4].startswith("| `2.py`")
