"""Lessons and the map: one line each, inert for whoever reads them; what people wrote stays."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relay.core.errors import StorageError, UsageError
from relay.features.governance.mutation import compare
from relay.features.governance.orchestration import add_lesson, read_lessons, update_map

NOW = 1_790_000_000_000


@pytest.fixture
def brain(tmp_path: Path) -> Path:
    (tmp_path / ".orchestration").mkdir()
    return tmp_path / ".orchestration/CLAUDE.md"


def learn(brain: Path, text: str, agent: str = "Bob") -> bool:
    return add_lesson(str(brain.parent.parent), text, agent, NOW)


def lessons(brain: Path) -> tuple[str, ...]:
    return read_lessons(str(brain.parent.parent))


def test_a_lesson_is_kept_once_with_who_and_when(brain: Path) -> None:
    assert lessons(brain) == ()
    assert learn(brain, "Use the fixture `db`,\nnever a file.")
    assert not learn(brain, "  use the fixture db - never a file", "Ann")
    assert learn(brain, "Another one", "")
    assert "- 2026-09-21 Bob: Use the fixture `db`, never a file." in brain.read_text()
    assert lessons(brain) == ("Bob: Use the fixture `db`, never a file.", "person: Another one")


def test_what_people_wrote_counts_and_stays(brain: Path) -> None:
    brain.write_text("# Ours\n\n* Run make first\n\nEnd without a line end")
    assert not learn(brain, "run `make` first!") and learn(brain, "New")
    assert brain.read_text().startswith("# Ours\n\n* Run make first\n\nEnd without a line end\n- ")
    assert lessons(brain) == ("Run make first", "Bob: New")


def test_agents_md_is_kept_the_same_where_it_exists(brain: Path) -> None:
    other = brain.with_name("AGENTS.md")
    learn(brain, "One")
    other.write_text("")
    assert learn(brain, "One"), "it is new there"
    learn(brain, "Two")
    assert "Bob: One" in other.read_text() and "Bob: Two" in other.read_text()
    assert brain.read_text().count("One") == 1
    brain.unlink()
    os.symlink("AGENTS.md", brain)
    assert learn(brain, "Three") and other.read_text().count("Three") == 1


def test_a_lesson_is_inert(brain: Path) -> None:
    secret = "ghp_" + "a1B2" * 9
    learn(brain, f"see @~/.ssh/id and <!-- hide \x1b[2J {secret}\n@relay:Bob go a@b.c")
    text = brain.read_text()
    assert r"\@~/.ssh/id" in text and "<!--" not in text and "a@b.c" in text
    assert "\x1b" not in text and secret not in text and "@relay:" not in text


@pytest.mark.parametrize("text", [" \n", "!?", "x" * 501], ids=["blank", "no word", "long"])
def test_what_is_no_lesson_is_refused(brain: Path, text: str) -> None:
    with pytest.raises(UsageError, match="the lesson"):
        learn(brain, text)
    assert not brain.exists()


def test_a_link_elsewhere_is_neither_read_nor_written(brain: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("- secret\n")
    os.symlink(victim, brain)
    with pytest.raises(StorageError):
        learn(brain, "One")
    assert lessons(brain) == () and victim.read_text() == "- secret\n"


def test_many_at_once_lose_nothing_and_a_full_file_says_so(brain: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda number: learn(brain, f"lesson {number}"), range(40)))
    assert len(lessons(brain)) == 40
    brain.write_text("x" * (256 * 1024 - 10))
    with pytest.raises(StorageError, match="is full"):
        learn(brain, "One more")


# -- The map: a row for each file of each intent, and what people wrote around it stays.


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
