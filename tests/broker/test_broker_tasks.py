"""Work of the broker that waits between its steps."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from relay.broker import broker_tasks
from relay.broker.broker_tasks import BrokerTasks


async def test_work_that_has_lost_its_cancellation_is_cancelled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_tasks, "_AGAIN", 0.01)
    kernel: Any = SimpleNamespace(log=None)
    tasks = BrokerTasks(kernel)
    began = asyncio.Event()
    lost = 0

    async def deaf() -> None:
        nonlocal lost
        began.set()
        while lost < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
        await asyncio.Event().wait()

    tasks.start(deaf())
    await began.wait()
    await tasks.close()
    assert lost == 2
    assert not tasks
