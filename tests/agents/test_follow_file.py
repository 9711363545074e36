"""Following a file that an agent writes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from relay.agents.follow_file import Follower


def test_watching_ends_when_it_is_cancelled_as_it_wakes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> bool:
        return False

    async def watch() -> None:
        follower = Follower(lambda: None, lambda: 60.0, lambda: 0.0)
        monkeypatch.setattr(follower, "read", nothing)
        wake = asyncio.Event()
        task = asyncio.get_running_loop().create_task(
            follower.watch(None, wake, lambda: None)  # type: ignore[arg-type]
        )
        for _ in range(5):
            await asyncio.sleep(0)  # into its wait
        wake.set()
        await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        task.cancel()
        assert done

    asyncio.run(watch())


def test_what_is_read_but_not_yet_heard_is_read_again_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "transcript"
    file.write_text("one\ntwo\n")
    places: list[dict[str, Any]] = []
    heard: list[str] = []

    class FakeEars:
        def transcript(self, line: str, now: float) -> None:
            heard.append(line)

    follower = Follower(lambda: str(file), lambda: 60.0, lambda: 0.0)
    poll = follower._tail.poll

    def polled() -> list[str]:
        lines = poll()
        places.append(follower.state())  # a checkpoint at the worst moment
        return lines

    follower._tail.poll = polled  # type: ignore[method-assign]
    ears: Any = FakeEars()
    assert asyncio.run(follower.read(ears))
    again = Follower(lambda: str(file), lambda: 60.0, lambda: 0.0)
    again.restore(places[0])
    assert asyncio.run(again.read(ears))
    assert heard == ["one", "two", "one", "two"]
    again.restore(follower.state())
    assert not asyncio.run(again.read(ears))
