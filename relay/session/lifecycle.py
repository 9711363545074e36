"""The lifecycle hooks of one wrapped agent: when each fires, and what becomes of what it says."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from relay.core.errors import RelayError
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated

#: Output that waits for a slow ``on_output``; beyond it the oldest is left out, and that is noted.
OUTPUT_WAITING_MAX = 64 * 1024
#: Lines that come within this time go to ``on_output`` together, in seconds.
OUTPUT_TOGETHER = 0.05
#: So many answers of ``on_output`` within so many seconds are a loop: what the agent is told, or
#: says to that, is output again. Further ones wait for the person.
ANSWERS_MAX = 10
ANSWERS_WITHIN = 60.0
#: Messages whose arrival was told of and that are not settled; beyond it the oldest are forgotten.
ANNOUNCED_MAX = 1000


class Engine(Protocol):
    """The part of the hook engine that is used here (relay.hooks.engine)."""

    def has(self, event: HookEventName) -> bool: ...
    async def fire(self, event: HookEventName, fields: dict[str, Any]) -> Aggregated: ...


class Lifecycle:
    """Fires hooks; what they return is injected, what they do wrong is noted, nothing raises.

    ``inject(text)`` gives a text to the agent and returns the message's id. ``changed()`` is called
    when ``state()`` has changed: what must not be fired again by a next session of this run.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        inject: Callable[[str], str],
        note: Callable[[str], None],
        spawn: Callable[[Awaitable[None]], None],
        idle_seconds: float,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._inject = inject
        self._note = note
        self._spawn = spawn
        self._idle_seconds = idle_seconds
        self._changed = changed
        self._gone = False
        self._open = 0  # events that are being fired in the background
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._announced: dict[str, None] = {}
        self.ended = False  # the session-end hooks have been fired
        self._answers: deque[float] = deque(maxlen=ANSWERS_MAX)
        self._muted = False  # on_output answers itself
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

    async def end(self, reason: str) -> list[str]:
        """Fire ``on_session_end``, once in the life of a run."""
        if self.ended:
            return []
        self.ended = True
        self._changed()
        return await self.fire(HookEventName.SESSION_END, reason=reason)

    def agent_gone(self) -> None:
        """The agent has ended: from now on nobody is told what hooks say.

        What they say of its last words would reach the next agent of that name.
        """
        self._gone = True

    async def settle(self, seconds: float) -> None:
        """Wait until the hooks of what has happened so far have run, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quiet.wait()

    def state(self) -> dict[str, Any]:
        """What has been fired already, for the checkpoint."""
        return {
            "idle": self._idle_fired,
            "ended": self.ended,
            "announced": list(self._announced),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where an earlier session of this run was."""
        self._idle_fired = bool(state.get("idle"))
        self.ended = bool(state.get("ended"))
        self._announced = dict.fromkeys(state.get("announced", ()))

    def begin(self, now: float) -> None:
        """From now on the agent's silence counts."""
        self._last_output = now

    def conclude(self, result: Aggregated, *, deliver: bool = True) -> list[str]:
        """Note what went wrong, and inject what was said for the agent."""
        for failure in result.errors:
            self._note(failure.message)
        for conflict in result.conflicts:
            self._note(conflict)
        if result.system_message and not result.suppress_output:
            self._note(result.system_message)
        told: list[str] = []
        for text in [*result.inject, result.context] if deliver and not self._gone else ():
            try:
                if text:
                    told.append(self._inject(text))
            except RelayError as error:  # too long, say; the others are no worse for it
                self._note(f"what a hook has for the agent cannot be sent: {error.message}")
        return told

    def later(self, event: HookEventName, **fields: object) -> None:
        """Fire ``event``, and wait for nothing."""
        if not self._engine.has(event):
            return

        async def fire() -> None:
            self.conclude(await self._engine.fire(event, fields))

        self.background(fire())

    def background(self, work: Awaitable[object]) -> None:
        """Do what fires hooks beside everything else; ``settle`` waits for it."""
        self._open += 1
        self._quiet.clear()

        async def counted() -> None:
            try:
                await work
            finally:
                self._open -= 1
                if not self._open:
                    self._quiet.set()

        self._spawn(counted())

    def message(self, identifier: str, sender: str, body: str) -> None:
        """A message for the agent has come; an earlier session may have told of it."""
        if not self._engine.has(HookEventName.MESSAGE_RECEIVED) or identifier in self._announced:
            return
        self._announced[identifier] = None
        while len(self._announced) > ANNOUNCED_MAX:
            del self._announced[next(iter(self._announced))]
        self._changed()
        self.later(HookEventName.MESSAGE_RECEIVED, sender=sender, body=body)

    def settled(self, identifier: str) -> None:
        """That message is seen, or has failed: it will not come again."""
        self._announced.pop(identifier, None)

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
            self.background(self._flush())

    def person(self) -> None:
        """The person has spoken to the agent: ``on_output`` may answer again."""
        self._muted = False
        self._answers.clear()

    def _may_answer(self, result: Aggregated) -> bool:
        """Whether what ``on_output`` says may go to the agent."""
        if self._muted or not (result.inject or result.context):
            return not self._muted
        now = self._last_output or 0.0
        if len(self._answers) == ANSWERS_MAX and now - self._answers[0] < ANSWERS_WITHIN:
            self._muted = True
            self._note(
                f"on_output has answered more than {ANSWERS_MAX} times within {ANSWERS_WITHIN:g} s,"
                " perhaps its own texts: what it says is left out until you write to the agent"
            )
            return False
        self._answers.append(now)
        return True

    def active(self, now: float) -> None:
        """The agent wrote something or got something: an idle period, if there was one, ends."""
        self._last_output = now
        self._idle_fired = False

    def idle_deadline(self) -> float | None:
        """When ``on_idle`` is due; None when it has fired, nobody listens or the end has begun."""
        if self._idle_fired or self.ended or not self._engine.has(HookEventName.IDLE):
            return None
        return None if self._last_output is None else self._last_output + self._idle_seconds

    def tick(self, now: float) -> None:
        """Fire ``on_idle`` once per idle period."""
        deadline = self.idle_deadline()
        if deadline is not None and now >= deadline:
            self._idle_fired = True
            self._changed()
            self.later(HookEventName.IDLE, idle_seconds=self._idle_seconds)

    async def _flush(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(OUTPUT_TOGETHER)
                text = "\n".join(self._waiting)
                self._waiting.clear()
                self._size = 0
                result = await self._engine.fire(HookEventName.OUTPUT, {"output": text})
                self.conclude(result, deliver=self._may_answer(result))
        finally:
            self._flushing = False
