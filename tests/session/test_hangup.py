"""An agent's farewell, from its last hooks to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import pytest

from relay.core.message import AgentState, State
from relay.session import last_delivery as module
from relay.session.hangup import HangUp
from relay.session.last_delivery import LastDelivery

LONG = 30.0
NOT_DONE = "the agent was not done with what its last hooks told it"


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET", 0.01)


class Farewell:
    """One, whose hooks end once they are let and have the agent told ``told``."""

    def __init__(self, told: Collection[str] = (), seconds: float = LONG) -> None:
        clock = asyncio.get_running_loop().time
        self.told = told
        self.go_on = asyncio.Event()
        self.begun = 0
        self.over = 0
        self.notes: list[str] = []
        self.goodbye = LastDelivery(clock)
        self.goodbye.state(AgentState.IDLE, tells=True)
        self.leaving = HangUp(
            self.goodbye,
            self.hooks,
            over=self.ended,
            note=self.notes.append,
            clock=clock,
            seconds=seconds,
        )

    async def hooks(self) -> Collection[str]:
        self.begun += 1
        await self.go_on.wait()
        return self.told

    def ended(self) -> None:
        self.over += 1


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


def test_it_is_over_when_the_agent_has_done_what_it_was_told() -> None:
    async def scenario() -> None:
        farewell = Farewell(told={"A"})
        saying = asyncio.ensure_future(farewell.leaving.say())
        farewell.go_on.set()
        done, _ = await asyncio.wait({saying}, timeout=0.1)
        assert not done and farewell.over == 0  # it has not seen A
        farewell.goodbye.delivery("A", State.SEEN)
        await saying
        assert (farewell.over, farewell.notes) == (1, [])

    play(scenario)


def test_who_was_told_nothing_is_not_waited_for() -> None:
    async def scenario() -> None:
        farewell = Farewell()
        farewell.goodbye.state(AgentState.BUSY, tells=True)
        farewell.go_on.set()
        await farewell.leaving.say()
        assert (farewell.over, farewell.notes) == (1, [])

    play(scenario)


def test_it_is_said_once() -> None:
    async def scenario() -> None:
        farewell = Farewell()
        saying = asyncio.ensure_future(farewell.leaving.say())
        while not farewell.begun:
            await asyncio.sleep(0)
        await farewell.leaving.say()  # does not wait either
        assert farewell.over == 0
        farewell.go_on.set()
        await saying
        assert (farewell.begun, farewell.over) == (1, 1)

    play(scenario)


def test_the_agents_end_is_the_end_of_it() -> None:
    async def scenario() -> None:
        farewell = Farewell(told={"never"})
        await farewell.leaving.agent_gone()  # there is none yet
        saying = asyncio.ensure_future(farewell.leaving.say())
        farewell.go_on.set()
        while not farewell.begun:
            await asyncio.sleep(0)
        await farewell.leaving.agent_gone()
        assert (farewell.over, farewell.notes) == (1, [NOT_DONE])
        await saying

    play(scenario)


@pytest.mark.parametrize(
    ("hooks_end", "note"),
    [(True, NOT_DONE), (False, "the session-end hooks took too long: the agent was told nothing")],
)
def test_it_has_its_time_and_that_is_said(hooks_end: bool, note: str) -> None:
    async def scenario() -> None:
        farewell = Farewell(told={"never"}, seconds=0.05)
        if hooks_end:
            farewell.go_on.set()
        await farewell.leaving.say()
        assert (farewell.over, farewell.notes) == (1, [note])

    play(scenario)
