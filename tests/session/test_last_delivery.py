"""When an agent has done what it was told at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from relay.core.message import AgentState, State
from relay.session import last_delivery
from relay.session.last_delivery import LastDelivery


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_delivery, "QUIET", 0.02)
    monkeypatch.setattr(last_delivery, "QUIET_UNKNOWN", 0.04)


def play(scenario: Callable[[LastDelivery], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario(LastDelivery(asyncio.get_running_loop().time))

    asyncio.run(limited())


def test_it_is_done_when_it_has_seen_all_and_rests_again() -> None:
    async def scenario(last_delivery: LastDelivery) -> None:
        last_delivery.state(AgentState.IDLE, tells=True)
        last_delivery.delivery("A", State.SEEN)
        waiting = asyncio.ensure_future(last_delivery.finished({"A", "B"}, 10))
        last_delivery.delivery("B", State.DELIVERING)
        done, _ = await asyncio.wait({waiting}, timeout=0.1)
        assert not done  # B is not seen
        last_delivery.state(AgentState.BUSY, tells=True)
        last_delivery.delivery("B", State.SEEN)
        done, _ = await asyncio.wait({waiting}, timeout=0.1)
        assert not done  # it is at work on it
        last_delivery.state(AgentState.IDLE, tells=True)
        assert await waiting

    play(scenario)


def test_one_that_tells_nothing_is_done_when_it_is_silent() -> None:
    async def scenario(last_delivery: LastDelivery) -> None:
        last_delivery.delivery("A", State.FAILED)
        assert await last_delivery.finished({"A"}, 10)

    play(scenario)


def test_nobody_waits_longer_than_the_given_time() -> None:
    async def scenario(last_delivery: LastDelivery) -> None:
        last_delivery.state(AgentState.BUSY, tells=True)
        assert not await last_delivery.finished(set(), 0.05)
        assert not await last_delivery.finished({"never"}, 0.05)

    play(scenario)


def test_the_agents_end_ends_the_wait() -> None:
    async def scenario(last_delivery: LastDelivery) -> None:
        waiting = asyncio.ensure_future(last_delivery.finished({"never"}, 10))
        await asyncio.sleep(0)
        last_delivery.gone()
        assert not await waiting

    play(scenario)
