"""Qwen Code's event files, the file that its messages go into, and words that it would look up."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import cast

import pytest

from relay.agents.base import ChannelClosed, FileTail
from relay.agents.qwen.adapter import (
    INPUT_MAX,
    ON_ITS_WAY,
    PART,
    EventFiles,
    QwenAdapter,
    QwenChannel,
    forget,
    spelled,
)
from relay.agents.qwen.source import QwenSource
from relay.core.message import AgentState


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "events.jsonl"


def test_a_file_gets_its_number_as_soon_as_it_is_there(base: Path) -> None:
    journal = EventFiles(str(base))
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
    journal, tail = EventFiles(str(base)), FileTail()

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
    first = EventFiles(str(base))
    path = first.path()
    base.write_text("two\n")
    first.path()
    later = EventFiles(str(base))
    later.restore(path)
    assert later.path() == f"{base}.2"
    unknown = EventFiles(str(base))
    unknown.restore(None)
    assert unknown.path() == f"{base}.1"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can forget a part of a file")
def test_what_was_read_before_the_last_checkpoint_is_forgotten(base: Path) -> None:
    base.write_bytes(b"x" * (PART + 8192) + b"\nlast\n")
    journal = EventFiles(str(base))
    path = Path(str(journal.path()))
    before = path.stat()
    journal.kept(str(path), PART + 4096)
    assert path.stat().st_blocks == before.st_blocks
    journal.kept(str(path), PART + 8192)
    after = path.stat()
    assert after.st_size == before.st_size
    assert after.st_blocks * 512 <= before.st_blocks * 512 - PART
    assert path.read_bytes().endswith(b"x\nlast\n")


def test_nothing_of_the_next_file_is_forgotten_while_the_one_before_is_read(base: Path) -> None:
    content = b"x" * (PART + 8192)
    base.write_bytes(content)
    journal = EventFiles(str(base))
    first = journal.path()
    base.write_bytes(content)
    journal.path()
    second = journal.path()
    assert second == f"{base}.2"
    journal.kept(first, PART + 8192)
    journal.kept(second, 0)
    assert Path(second).read_bytes() == content


def test_what_cannot_be_forgotten_is_let_be(tmp_path: Path) -> None:
    forget(str(tmp_path / "nothing"), 8192)


END = '(To answer, if needed: a line "@relay:Bob …". From an agent).'


@pytest.mark.parametrize(
    "text",
    [
        f"Write to me@example.org. {END}",
        f"No file is meant by (@this). {END}",
        f"Ask @carol and @dave @eve, please. {END}",
        f"class A:\n    @property\n    def x(self): ... {END}",
    ],
    ids=["address", "in-parentheses", "names", "decorator"],
)
def test_what_it_leaves_alone_stays_as_it_is(tmp_path: Path, text: str) -> None:
    assert spelled(text, str(tmp_path), str(tmp_path)) == text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("see @README.md", "see \\@README.md"),
        ("see @README and me@example.org", "see \\@README and me@example.org"),
        ("one\n@property\ntwo", "one\n\\@property\ntwo"),
        ("see @one  @two", "see \\@one  \\@two"),
        ("| @relay:Bob quoted", "| \\@relay:Bob quoted"),
        ("see @mcp:thing", "see \\@mcp:thing"),
        ("see @a\\ b", "see \\@a\\ b"),
    ],
)
def test_a_backslash_says_that_nothing_is_meant(tmp_path: Path, text: str, wanted: str) -> None:
    (tmp_path / "README").write_text("")
    assert spelled(f"{text} {END}", str(tmp_path), str(tmp_path)) == f"{wanted} {END}"


def test_a_server_named_relay_is_not_asked(tmp_path: Path) -> None:
    text = f"Ask @carol. {END}"
    (tmp_path / "settings.json").write_text('{"mcpServers": {"relay": {}}}')
    assert spelled(text, "/srv/demo", str(tmp_path)) == f"Ask \\@carol. {END}"


class Setting:
    """A door with a file, and what is known beside it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "input.jsonl"
        self.path.touch()
        self.source = QwenSource(0)
        self.source.saved.session, self.source.saved.state = "s", AgentState.IDLE
        self.now = 100.0
        self.door = QwenChannel(str(self.path), cast(QwenAdapter, self))

    def clock(self) -> float:
        return self.now

    def spell(self, text: str) -> str:
        return text.upper()

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
    it.source.saved.session = ""
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
    it.source.saved.accepted.append("[A]")
    assert not it.door.on_its_way(it.now + 1)
    it.submit("two", "[B]")
    assert not it.door.on_its_way(it.now + ON_ITS_WAY + 1)


def test_a_file_that_has_grown_begins_afresh_when_all_of_it_was_read(it: Setting) -> None:
    big = "x" * (INPUT_MAX // 2 + 1)
    for marker in ("[A]", "[B]"):
        it.submit(big, marker)
    it.submit("kept", "[C]")
    assert it.path.stat().st_size > INPUT_MAX
    it.source.saved.accepted.extend(["[A]", "[B]", "[C]"])
    it.submit("fresh", "[D]")
    assert [json.loads(line)["id"] for line in it.lines()[:-1]] == ["[D]"]
