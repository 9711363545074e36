"""Following what happens, through a kill of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from relay.core.paths import Home
from relay.ui.watching import AsyncWatching, Watching
from tests.broker.support import kill_broker, stop_broker

TOLD = ("message", "connection", "gap")


@pytest.fixture
def home(isolated_home: Path) -> Iterator[Home]:
    home = Home(str(isolated_home))
    yield home
    stop_broker(home)


def test_both_readers_go_on_with_the_next_broker_and_tell_of_the_gap(home: Home) -> None:
    async def follow() -> list[str]:
        told: list[str] = []
        async with AsyncWatching(home) as watching:
            send = partial(watching.client.send, "Bob", offline=True)
            await send("one")
            async for rows in watching.batches():
                new = [str(row.get("body") or row["what"]) for row in rows if row["what"] in TOLD]
                told += new
                if new == ["one"]:
                    await asyncio.to_thread(kill_broker, home)
                    await send("two")
                elif "two" in new:
                    break
        return told

    with Watching(home, kinds=["message"]) as watching:
        assert asyncio.run(follow()) == ["one", "connection", "connection", "gap", "two"]
        found = []
        while "two" not in found:
            found += [str(row.get("body") or row["what"]) for row in watching.next_rows(20)]
        assert found == ["one", "gap", "two"]
