"""What a session hears of Claude Code beside the terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from relay.agents.claude_transcript import Whereabouts
from relay.cli.session_claude import Claude


class FakeEars:
    """Takes lines; one of them is more than it can bear."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.notes: list[str] = []

    def transcript(self, line: str, now: float) -> None:
        if line == "odd":
            raise KeyError("uuid")
        self.lines.append(line)

    def note(self, text: str) -> None:
        self.notes.append(text)


def claude(path: Path) -> Claude:
    made = Claude(started_ms=0, pid=1, launch={}, env={"HOME": str(path.parent)}, checkpoint={})
    made.source.found(Whereabouts(str(path), None))
    return made


def test_all_of_the_transcript_is_heard_when_the_agent_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text("one\nodd\ntwo\n")
    ears: Any = FakeEars()
    assert asyncio.run(claude(path).read(ears))
    assert ears.lines == ["one", "two"]
    assert "KeyError" in ears.notes[0]


def test_two_readers_at_a_time_hear_each_line_once(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text("".join(f"{number}\n" for number in range(100)))
    ears: Any = FakeEars()

    async def scenario() -> None:
        one = claude(path)
        await asyncio.gather(*(one.read(ears) for _ in range(4)))

    asyncio.run(scenario())
    assert ears.lines == [str(number) for number in range(100)]
