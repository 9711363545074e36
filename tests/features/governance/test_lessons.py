"""Lessons: one line each, said once, inert for whoever reads them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relay.core.errors import StorageError, UsageError
from relay.features.governance.orchestration import add_lesson, read_lessons

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
