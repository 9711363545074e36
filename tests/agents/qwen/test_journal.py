"""Event files that follow each other, and what of them is kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relay.agents.follow_file import FileTail
from relay.agents.qwen.journal import PART, Journal, forget


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_a_file_gets_its_number_as_soon_as_it_is_there(base: Path) -> None:
    journal = Journal(str(base))
    assert journal.path() is None
    with base.open("w") as writer:
        assert journal.path() == f"{base}.1"
        assert not base.exists()
        writer.write("one\n")
    assert Path(f"{base}.1").read_text() == "one\n"
    assert journal.path() == f"{base}.1"
    assert not journal.lost
    Path(f"{base}.1").unlink()
    assert journal.lost


def test_the_next_process_is_read_after_the_one_before_it(base: Path) -> None:
    journal, tail = Journal(str(base)), FileTail()

    def read() -> list[str]:
        path = journal.path()
        assert path is not None
        tail.follow(path)
        return tail.poll()

    base.write_text("one\n")
    assert read() == ["one"]
    Path(f"{base}.1").write_text("one\ntwo\n")
    base.write_text("three\n")
    assert read() == ["two"]
    assert read() == ["three"]
    assert read() == []


def test_a_session_goes_on_where_the_one_before_it_was(base: Path) -> None:
    base.write_text("one\n")
    first = Journal(str(base))
    path = first.path()
    base.write_text("two\n")
    first.path()
    later = Journal(str(base))
    later.restore(path)
    assert later.path() == f"{base}.2"
    unknown = Journal(str(base))
    unknown.restore(None)
    assert unknown.path() == f"{base}.1"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget a part of a file")
def test_what_was_read_before_the_last_checkpoint_is_forgotten(base: Path) -> None:
    base.write_bytes(b"x" * (PART + 8192) + b"\nlast\n")
    journal = Journal(str(base))
    path = Path(str(journal.path()))
    before = path.stat()
    journal.kept(PART + 4096)
    assert path.stat().st_blocks == before.st_blocks
    journal.kept(PART + 8192)
    after = path.stat()
    assert after.st_size == before.st_size
    assert after.st_blocks * 512 <= before.st_blocks * 512 - PART
    assert path.read_bytes().endswith(b"x\nlast\n")


def test_what_cannot_be_forgotten_is_let_be(tmp_path: Path) -> None:
    forget(str(tmp_path / "nothing"), 8192)
