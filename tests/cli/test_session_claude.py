"""Following Claude Code's transcript."""

from __future__ import annotations

import asyncio

import pytest

from relay.cli.session_claude import Claude


def test_watching_ends_when_it_is_cancelled_as_it_wakes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> bool:
        return False

    async def watch() -> None:
        claude = Claude(started_ms=0, pid=0, launch={}, env={}, checkpoint={}, clock=lambda: 0.0)
        monkeypatch.setattr(claude, "_search", lambda *_: None)
        monkeypatch.setattr(claude, "read", nothing)
        wake = asyncio.Event()
        task = asyncio.get_running_loop().create_task(
            claude.watch(None, wake, lambda: None)  # type: ignore[arg-type]
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
