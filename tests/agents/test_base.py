"""Polling what an agent writes."""

from __future__ import annotations

import asyncio

from relay.agents.base import poll


def test_polling_ends_when_it_is_cancelled_as_it_wakes_up() -> None:
    async def nothing() -> bool:
        return False

    async def watch() -> None:
        wake = asyncio.Event()
        task = asyncio.ensure_future(poll(nothing, lambda: 60.0, wake, lambda: None))
        for _ in range(5):
            await asyncio.sleep(0)  # into its wait
        wake.set()
        await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        task.cancel()
        assert done

    asyncio.run(watch())
