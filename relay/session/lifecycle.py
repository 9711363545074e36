"""The lifecycle hooks of one wrapped agent: when each fires, and what becomes of what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from relay.hooks.events import HookEventName
from relay.hooks.model import Aggregated

#: Output that waits for a slow ``on_output``; beyond it the oldest is left out, and that is noted.
OUTPUT_WAITING_MAX = 64 * 1024
#: Lines that come within this time go to ``on_output`` together, in seconds.
OUTPUT_TOGETHER = 0.05


class Engine(Protocol):
    """The part of the hook engine that is used here (relay.hooks.handler)."""

    def has(self, event: HookEventName) -> bool: ...
    async def fire(self, event: HookEventName, fields: dict[str, Any]) -> Aggregated: ...


class Lifecycle:
    """Fires hooks; what they return is injected, what they do wrong is noted, nothing raises.

    ``inject(text)`` gives a text to the agent and returns the message's id.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        inject: Callable[[str], str],
        note: Callable[[str], None],
        spawn: Callable[[Awaitable[None]], None],
        idle_seconds: float,
    ) -> None:
        self._engine = engine
        self._inject = inject
        self._note = note
        self._spawn = spawn
        self._idle_seconds = idle_seconds
        self._waiting: list[str] = []
        self._size = 0
        self._flushing = False
        self._last_output: float | None = None
        self._idle_fired = False

    def has(self, event: HookEventName) -> bool:
        """Whether anybody listens to ``event``."""
        return self._engine.has(event)

    async def fire(
        self, event: HookEventName, *, deliver: bool = True, **fields: object
    ) -> list[str]:
        """Run the hooks of ``event``; the ids of what the agent is told because of it.

        Without ``deliver`` there is nobody any more who could be told.
        """
        if not self._engine.has(event):
            return []
        return self.conclude(await self._engine.fire(event, fields), deliver=deliver)

    def conclude(self, result: Aggregated, *, deliver: bool = True) -> list[str]:
        """Note what went wrong, and inject what was said for the agent."""
        for failure in result.errors:
            self._note(failure.message)
        for conflict in result.conflicts:
            self._note(conflict)
        if result.system_message and not result.suppress_output:
            self._note(result.system_message)
        texts = [*result.inject, *([result.context] if result.context else [])]
        return [self._inject(text) for text in texts] if deliver else []

    def later(self, event: HookEventName, **fields: object) -> None:
        """Fire ``event``, and wait for nothing."""
        if not self._engine.has(event):
            return

        async def fire() -> None:
            self.conclude(await self._engine.fire(event, fields))

        self._spawn(fire())

    def output(self, texts: list[str]) -> None:
        """The agent said these lines."""
        if not texts or not self._engine.has(HookEventName.OUTPUT):
            return
        self._waiting += texts
        self._size += sum(map(len, texts)) + len(texts)
        left_out = 0
        while self._size > OUTPUT_WAITING_MAX and left_out < len(self._waiting) - 1:
            self._size -= len(self._waiting[left_out]) + 1
            left_out += 1
        if left_out:
            del self._waiting[:left_out]
            self._note("on_output was too slow: some output was left out")
        if not self._flushing:
            self._flushing = True
            self._spawn(self._flush())

    def active(self, now: float) -> None:
        """The agent wrote something or got something: an idle period, if there was one, ends."""
        self._last_output = now
        self._idle_fired = False

    def idle_deadline(self) -> float | None:
        """When ``on_idle`` is due; None when it has fired or nobody listens."""
        if self._idle_fired or not self._engine.has(HookEventName.IDLE):
            return None
        return None if self._last_output is None else self._last_output + self._idle_seconds

    def tick(self, now: float) -> None:
        """Fire ``on_idle`` once per idle period."""
        deadline = self.idle_deadline()
        if deadline is not None and now >= deadline:
            self._idle_fired = True
            self.later(HookEventName.IDLE, idle_seconds=self._idle_seconds)

    async def _flush(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(OUTPUT_TOGETHER)
                text = "\n".join(self._waiting)
                self._waiting.clear()
                self._size = 0
                await self.fire(HookEventName.OUTPUT, output=text)
        finally:
            self._flushing = False
