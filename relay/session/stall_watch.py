"""Notices a busy agent that does nothing: no output, no new records, no CPU.

All three have to stand still before an agent counts as *wedged*. An agent whose tool runs (a
process that began in this turn) is only slow. ``Stall`` judges (pure). ``StallWatch`` watches, and
reads processes only if everything else stands still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from relay.core.message import AgentState
from relay.core.processes import ProcessUsage, usage_of
from relay.hooks.events import HookEventName
from relay.session.session_events import EventQueue, HooksObserved, SourcesRead
from relay.session.sources import SourceSelector
from relay.session.typing_policy import Guards

#: Seconds between two checks.
LOOK = 15.0
#: Seconds of standstill after which there is a verdict.
AFTER = 300.0
#: The share of a core that a waiting agent uses for its timers and animations.
RESTS = 0.01


@dataclass(frozen=True, slots=True)
class StallVerdict:
    """The verdict on an agent that stands still: for how long its ``tool`` has run or, without a
    tool, that it is wedged. Seconds."""

    tool: str
    seconds: float

    @property
    def text(self) -> str:
        """The reason for its state."""
        minutes = f"for {self.seconds / 60:.0f} min"
        if self.tool:
            return f"has run {self.tool} {minutes}, and shows nothing"
        return f"wedged: no output, no hook and no CPU {minutes}"


class Stall:
    """Judges by the changes between two checks. Times in seconds, of one clock."""

    def __init__(self) -> None:
        self._signs: Hashable = None
        self._since = 0.0  # since when nothing has changed
        self._rested: float | None = None  # when the agent was last not busy
        self._cpu: tuple[float, float] | None = None  # time and CPU seconds at the first check

    def still(self, now: float, busy: bool, signs: Hashable) -> bool:
        """Whether everything else stands still, so that processes should be checked."""
        if not busy:
            self._rested = now
        if not busy or signs != self._signs:
            self._signs, self._since, self._cpu = signs, now, None
            return False
        return True

    def judge(self, now: float, processes: Sequence[ProcessUsage]) -> StallVerdict | None:
        """The verdict, if the agent has stood still for long enough."""
        used = sum(one.cpu for one in processes)
        if self._cpu is None:
            self._cpu = (now, used)
        if now - self._since < AFTER or self._rested is None:
            return None  # the turn began before this session: a tool's age says nothing
        tools = [one for one in processes if now - one.age >= self._rested]
        if tools:
            tool = max(tools, key=lambda one: one.age)
            return StallVerdict(tool.name, tool.age)
        at, before = self._cpu
        if used - before > (now - at) * RESTS:
            return None
        return StallVerdict("", now - self._since)


class StallWatch:
    """Watches the agent with the process ``pid`` for as long as its session runs."""

    def __init__(
        self,
        guards: Guards,
        sources: SourceSelector,
        pid: int,
        events: EventQueue,
        clock: Callable[[], float],
    ) -> None:
        self._guards = guards
        self._sources = sources
        self._pid = pid
        self._events = events
        self._clock = clock
        self._stall = Stall()
        self._told: StallVerdict | None = None  # of this standstill

    async def run(self) -> None:
        """Check again and again."""
        while True:
            await asyncio.sleep(LOOK)
            await self.look()

    async def look(self) -> None:
        """Check once, and report a new verdict."""
        busy = self._guards.state is AgentState.BUSY
        signs = (self._guards.heard, self._sources.told)
        if not self._stall.still(self._clock(), busy, signs):
            self._told = None
            return
        processes = await asyncio.to_thread(usage_of, self._pid)
        now = self._clock()
        verdict = self._stall.judge(now, processes)
        if verdict is None or (self._guards.heard, self._sources.told) != signs:
            return
        if self._told is not None and self._told.tool == verdict.tool:
            return
        self._told = verdict
        self._guards.stalled(verdict.text)
        self._events.post(SourcesRead())  # which makes the session report the agent's state
        if not verdict.tool:
            self._events.post(HooksObserved(HookEventName.WEDGED, {"why": verdict.text}))
