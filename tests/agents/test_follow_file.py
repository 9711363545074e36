"""Following a file that an agent writes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from relay.agents.base import FileFollower


def test_what_is_read_but_not_yet_heard_is_read_again_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "transcript"
    file.write_text("one\ntwo\n")
    places: list[dict[str, Any]] = []
    heard: list[str] = []

    class FakeEars:
        def transcript(self, line: str, now: float) -> None:
            heard.append(line)

    follower = FileFollower(lambda: 0.0)
    poll = follower._tail.poll

    def polled() -> list[str]:
        lines = poll()
        places.append(follower.state())  # a checkpoint at the worst moment
        return lines

    follower._tail.poll = polled  # type: ignore[method-assign]
    ears: Any = FakeEars()
    assert asyncio.run(follower.read(str(file), ears))
    again = FileFollower(lambda: 0.0)
    again.restore(places[0])
    assert asyncio.run(again.read(str(file), ears))
    assert heard == ["one", "two", "one", "two"]
    again.restore(follower.state())
    assert not asyncio.run(again.read(str(file), ears))
