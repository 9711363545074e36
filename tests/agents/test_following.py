"""Following a file that an agent writes."""

from __future__ import annotations

import asyncio

import pytest

from relay.agents.following import Follower


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
