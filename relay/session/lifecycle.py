"""The lifecycle hooks of one wrapped agent: when each fires, and with what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from relay.hooks.context import Context
from relay.hooks.events import HookEventName
from relay.hooks.functions import FunctionRunner, Outcome
from relay.hooks.registry import Registry
from relay.hooks.results import Result

#: Output that waits for a slow ``on_output``; beyond it the oldest is left out, and that is noted.
OUTPUT_WAITING_MAX = 64 * 1024
#: Lines that come within this time go to ``on_output`` together, in seconds.
OUTPUT_TOGETHER = 0.05


class Lifecycle:
    """Fires hooks; what they return is injected, what they do wrong is noted, nothing raises."""

    def __init__(
        self,
        registry: Registry,
        runner: FunctionRunner,
        context: Context,
        *,
        inject: Callable[[str], object],
        note: Callable[[str], None],
        spawn: Callable[[Awaitable[None]], None],
        idle_seconds: float,
    ) -> None:
        self._registry = registry
        self._runner = runner
        self._context = context
        self._inject = inject
        self._note = note
        self._spawn = spawn
        self._idle_seconds = idle_seconds
        self._waiting: list[str] = []
        self._size = 0
        self._flushing = False
        self._last_output: float | None = None
        self._idle_fired = False

    async def fire(self, event: HookEventName, *arguments: object) -> None:
        """Run the handlers of ``event``."""
        if not self._registry.hooks(event):
            return
        outcomes = await self._runner.run_hook(event, *arguments, self._context)
        for outcome in outcomes:
            self._conclude(outcome)

    def output(self, texts: list[str]) -> None:
        """The agent said these lines."""
        if not texts or not self._registry.hooks(HookEventName.OUTPUT):
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
        if self._idle_fired or not self._registry.hooks(HookEventName.IDLE):
            return None
        return None if self._last_output is None else self._last_output + self._idle_seconds

    def tick(self, now: float) -> None:
        """Fire ``on_idle`` once per idle period."""
        deadline = self.idle_deadline()
        if deadline is not None and now >= deadline:
            self._idle_fired = True
            self._spawn(self.fire(HookEventName.IDLE))

    async def _flush(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(OUTPUT_TOGETHER)
                text = "\n".join(self._waiting)
                self._waiting.clear()
                self._size = 0
                await self.fire(HookEventName.OUTPUT, text)
        finally:
            self._flushing = False

    def _conclude(self, outcome: Outcome[Result]) -> None:
        if outcome.result is not None:
            for text in outcome.result.inject:
                self._inject(text)
        elif not outcome.ok:
            self._note(f"{outcome.handler}: {outcome.error}")
