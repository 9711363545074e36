"""The input file: one complete line for each message, and nothing twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from relay.agents.base import ChannelClosed
from relay.agents.qwen.adapter import INPUT_MAX, ON_ITS_WAY, QwenChannel


class Setting:
    """A door with a file, and what is known beside it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "input.jsonl"
        self.path.touch()
        self.ready = True
        self.seen: set[str] = set()
        self.now = 100.0
        self.door = QwenChannel(
            str(self.path),
            lambda: self.ready,
            lambda marker: marker in self.seen,
            lambda: self.now,
            str.upper,
        )

    def submit(self, text: str, marker: str) -> None:
        asyncio.run(self.door.submit(text, marker))

    def lines(self) -> list[bytes]:
        return self.path.read_bytes().split(b"\n")


@pytest.fixture
def it(tmp_path: Path) -> Setting:
    return Setting(tmp_path)


def test_a_message_is_one_line(it: Setting) -> None:
    it.submit("one\ntwo ü", "[A]")
    line, rest = it.lines()
    assert json.loads(line) == {"type": "submit", "text": "ONE\nTWO Ü", "id": "[A]"}
    assert rest == b""
    assert it.door.handed_over("[A]")
    assert not it.door.handed_over("[B]")


def test_before_it_reads_nothing_is_written(it: Setting) -> None:
    it.ready = False
    assert not it.door.available
    with pytest.raises(ChannelClosed):
        it.submit("early", "[A]")
    assert it.path.read_bytes() == b""


def test_a_file_that_is_gone_is_said(it: Setting) -> None:
    assert it.door.available
    it.path.unlink()
    assert not it.door.available
    with pytest.raises(ChannelClosed, match="No such file"):
        it.submit("late", "[A]")


def test_half_a_line_of_a_session_that_was_killed_spoils_nothing(it: Setting) -> None:
    it.path.write_bytes(b'{"type":"submit","text":"half of it')
    assert not it.door.handed_over("[A]")
    it.submit("whole", "[A]")
    half, line, rest = it.lines()
    assert half.endswith(b"half of it")
    assert json.loads(line)["text"] == "WHOLE"
    assert it.door.handed_over("[A]")
    assert rest == b""


def test_the_next_one_waits_until_the_last_has_arrived(it: Setting) -> None:
    assert not it.door.on_its_way(it.now)
    it.submit("one", "[A]")
    assert it.door.on_its_way(it.now + 1)
    it.seen.add("[A]")
    assert not it.door.on_its_way(it.now + 1)
    it.submit("two", "[B]")
    assert not it.door.on_its_way(it.now + ON_ITS_WAY + 1)


def test_a_file_that_has_grown_begins_afresh_when_all_of_it_was_read(it: Setting) -> None:
    big = "x" * (INPUT_MAX // 2 + 1)
    for marker in ("[A]", "[B]"):
        it.submit(big, marker)
    it.submit("kept", "[C]")
    assert it.path.stat().st_size > INPUT_MAX
    it.seen |= {"[A]", "[B]", "[C]"}
    it.submit("fresh", "[D]")
    assert [json.loads(line)["id"] for line in it.lines()[:-1]] == ["[D]"]
