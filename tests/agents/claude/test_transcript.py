"""Reading a file that another program writes, and finding it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from relay.agents import base
from relay.agents.base import LOOK_BACK, FileTail
from relay.agents.claude.transcript import Whereabouts, whereabouts


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "t.jsonl"


def tail_of(file: Path) -> FileTail:
    tail = FileTail()
    tail.follow(str(file))
    return tail


def append(file: Path, text: str) -> None:
    with open(file, "a") as out:
        out.write(text)


def test_a_file_that_is_not_there_yet(file: Path) -> None:
    assert FileTail().poll() == []
    tail = tail_of(file)
    assert tail.poll() == []
    append(file, "one\n")
    assert tail.poll() == ["one"]
    assert tail.poll() == []


def test_half_lines_wait_for_the_rest(file: Path) -> None:
    tail = tail_of(file)
    append(file, "one\ntw")
    assert tail.poll() == ["one"]
    append(file, "o")
    assert tail.poll() == []
    append(file, "\n\nthree\n")
    assert tail.poll() == ["two", "three"]


def test_characters_that_are_cut_in_the_middle(file: Path) -> None:
    tail = tail_of(file)
    whole = "é€😀\n".encode()
    for at in range(len(whole)):
        with open(file, "ab") as out:
            out.write(whole[at : at + 1])
        assert tail.poll() == ([] if at < len(whole) - 1 else ["é€😀"])


def test_a_file_that_is_replaced_or_cut_short(file: Path) -> None:
    tail = tail_of(file)
    append(file, "one\n")
    tail.poll()
    other = file.with_name("other")
    other.write_text("a new file\n")
    os.replace(other, file)
    assert tail.poll() == ["a new file"]
    file.write_text("x\n")
    assert tail.poll() == ["x"]


def test_another_file_is_followed_from_its_beginning(file: Path, tmp_path: Path) -> None:
    tail = tail_of(file)
    append(file, "one\n")
    assert tail.poll() == ["one"]
    second = tmp_path / "second.jsonl"
    append(second, "two\n")
    tail.follow(str(second))
    tail.follow(str(second))
    assert tail.poll() == ["two"]


def test_of_a_long_history_only_the_end_is_read(file: Path) -> None:
    line = "x" * 1023
    append(file, f"{line}\n" * (2 * LOOK_BACK // 1024))
    lines = tail_of(file).poll()
    assert 0 < len(lines) <= LOOK_BACK // 1024
    assert set(lines) == {line}


def test_reading_is_bounded_and_a_line_that_is_too_long_is_passed_over(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "READ_MAX", 8)
    monkeypatch.setattr(base, "LINE_MAX", 16)
    tail = tail_of(file)
    append(file, "one\ntwo\nthree\n" + "x" * 40 + "\nfour\n")
    lines: list[str] = []
    for _ in range(12):
        lines += tail.poll()
    assert lines == ["one", "two", "three", "four"]


def test_a_restart_goes_on_where_it_was(file: Path) -> None:
    tail = tail_of(file)
    append(file, "one\ntw")
    tail.poll()
    again = FileTail()
    again.restore(json.loads(json.dumps(tail.state())))
    append(file, "o\n")
    assert again.poll() == ["two"]


def test_a_process_tells_where_its_things_are(tmp_path: Path) -> None:
    config = str(tmp_path)
    assert whereabouts(config, 7) == Whereabouts()
    sessions, project = tmp_path / "sessions", tmp_path / "projects" / "-home-me"
    sessions.mkdir()
    noted = {"sessionId": "7d4b7dce-d64b", "messagingSocketPath": "/run/7.sock"}
    (sessions / "7.json").write_text(json.dumps(noted))
    assert whereabouts(config, 7) == Whereabouts(None, "/run/7.sock")
    project.mkdir(parents=True)
    transcript = project / "7d4b7dce-d64b.jsonl"
    transcript.write_text("")
    assert whereabouts(config, 7) == Whereabouts(str(transcript), "/run/7.sock")


@pytest.mark.parametrize("noted", ["", "[]", "{}", '{"sessionId": "../../../etc/passwd"}', "\xff"])
def test_notes_that_make_no_sense(tmp_path: Path, noted: str) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "7.json").write_text(noted, encoding="latin-1")
    assert whereabouts(str(tmp_path), 7) == Whereabouts()
