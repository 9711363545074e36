"""Following a file that an agent writes, and polling."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, cast

import pytest

from relay.agents import base
from relay.agents.base import LOOK_BACK, FileFollower, FileTail, SourceFeed, poll
from relay.agents.structured_source import SourceState, StructuredSource
from relay.core.source_events import Line, SourceEvent


async def test_polling_ends_when_it_is_cancelled_as_it_wakes_up() -> None:
    async def nothing() -> bool:
        return False

    wake, feed = asyncio.Event(), cast(SourceFeed, None)  # there is nothing to hand over
    task = asyncio.ensure_future(poll(nothing, lambda: 60.0, wake, feed))
    for _ in range(5):
        await asyncio.sleep(0)  # into its wait
    wake.set()
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=5)
    task.cancel()
    assert done


def test_what_is_read_but_not_yet_heard_is_read_again_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "transcript"
    file.write_text("one\ntwo\n")
    places: list[dict[str, Any]] = []
    heard: list[str] = []

    class Records(StructuredSource):
        def transcript(self, line: str, now: float) -> list[SourceEvent]:
            return [Line("s", line)]

    class FakeFeed:
        def reported(self, events: list[Line]) -> None:
            heard.extend(event.text for event in events)

    source = Records(SourceState())
    follower = FileFollower(source, lambda: 0.0)
    poll = follower._tail.poll

    def polled() -> list[str]:
        lines = poll()
        places.append(follower.state())  # a checkpoint at the worst moment
        return lines

    follower._tail.poll = polled  # type: ignore[method-assign]
    ears: Any = FakeFeed()
    assert asyncio.run(follower.read(str(file), ears))
    again = FileFollower(source, lambda: 0.0)
    again.restore(places[0])
    assert asyncio.run(again.read(str(file), ears))
    assert heard == ["one", "two", "one", "two"]
    again.restore(follower.state())
    assert not asyncio.run(again.read(str(file), ears))


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
