"""The lifecycle hooks of one wrapped agent: when each fires, and what becomes of its result.

After its terminal has gone, an agent has time to do what its last hooks say (``HangupTimer``).
Pure: times and results go in, commands come out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from relay.core.bounded import RecentSet
from relay.core.message import AgentState, State
from relay.core.source_events import StateChange
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated
from relay.hooks.registry import Registry
from relay.session.session_commands import (
    DriverCommand,
    FireHooks,
    InjectText,
    KeepTerminal,
    PersonNote,
    ReportEvent,
)
from relay.session.session_events import HooksFired

#: Output that waits for a slow ``on_output``; beyond it the oldest is dropped, and that is noted.
OUTPUT_WAITING_MAX = 64 * 1024
#: Lines that come within so many seconds go to ``on_output`` together.
OUTPUT_TOGETHER = 0.05
#: So many answers of ``on_output`` within so many seconds are a loop: the text and the agent's
#: reply are output again. Further ones wait for the person.
ANSWERS_MAX = 10
ANSWERS_WITHIN = 60.0
#: Events that go to the event ledger, with hooks or without.
TOLD = frozenset(
    {
        HookEventName.SESSION_END,
        HookEventName.IDLE,
        HookEventName.NOTIFICATION,
        HookEventName.PRE_COMPRESS,
        HookEventName.WEDGED,
    }
)
#: Unsettled messages whose arrival was reported; beyond it the oldest are forgotten.
ANNOUNCED_MAX = 1000


class Lifecycle:
    """Fires hooks, injects their results, and notes their mistakes."""

    def __init__(
        self, registry: Registry, new_id: Callable[[], str], *, idle_seconds: float
    ) -> None:
        self._registry = registry
        self._new_id = new_id
        self._idle_seconds = idle_seconds
        self._gone = False
        self._wanted: frozenset[str] = frozenset()
        self._open = 0  # number of events whose hooks run now
        self._announced: RecentSet[str] = RecentSet(ANNOUNCED_MAX)
        self._ended = False  # the session-end hooks have been fired
        self.ending = False  # the session-end hooks run now
        self._observed: set[HookEventName] = set()  # events that the agent does not wait for
        self._unheeded: set[HookEventName] = set()  # … that hooks wanted to stop: the note was made
        self._answers: deque[float] = deque(maxlen=ANSWERS_MAX)
        self._muted = False  # on_output seems to answer itself
        self._waiting: list[str] = []
        self._size = 0
        self._flush_at: float | None = None  # when the waiting lines go to on_output
        self._flushing = False  # on_output runs now
        self._last_output: float | None = None
        self._idle_fired = False

    @property
    def quiet(self) -> bool:
        """Whether the hooks of all events so far have run."""
        return not self._open and not self._waiting

    def tell_of(self, kinds: frozenset[str]) -> None:
        """Report events of these kinds even if there is no hook for them."""
        self._wanted = kinds

    def _kind(self, event: HookEventName) -> str:
        return event.registration.removeprefix("on_")

    def has(self, event: HookEventName) -> bool:
        """Whether there is a hook for ``event``, or the broker wants it."""
        return bool(self._registry.hooks(event))

    def fire(
        self, event: HookEventName, fields: dict[str, Any], seconds: float | None = None
    ) -> Iterator[DriverCommand]:
        """Report ``event``, and run its hooks, if there are any, for at most ``seconds``."""
        if event in TOLD or self._kind(event) in self._wanted:
            body = str(fields.get("output") or fields.get("message") or "")
            meta = {name: one for name, one in fields.items() if name not in ("output", "message")}
            yield ReportEvent(self._kind(event), body, meta)
        if self.has(event):
            self._open += 1
            yield FireHooks(event, fields, seconds)

    def start(self) -> Iterator[DriverCommand]:
        """Begin the run: its start is handled once, with hooks or without."""
        self._open += 1
        yield FireHooks(HookEventName.SESSION_START, {"source": "startup"})

    def observe(self, event: HookEventName, fields: dict[str, Any]) -> Iterator[DriverCommand]:
        """Run the hooks of an event that the agent reports and does not wait for."""
        self._observed.add(event)
        yield from self.fire(event, fields)

    def fired(self, fired: HooksFired, now: float) -> Iterator[DriverCommand]:
        """Hooks have run: note what went wrong, and inject their texts for the agent."""
        self._open -= 1
        deliver = not self._gone
        if fired.hook is HookEventName.OUTPUT:
            self._flushing = False
            if self._waiting:
                self._flush_at = now + OUTPUT_TOGETHER
        if fired.hook is HookEventName.SESSION_END:
            self.ending = False
        result = fired.result
        if result is None:
            return
        for failure in result.errors:
            yield PersonNote(failure.message)
        for conflict in result.conflicts:
            yield PersonNote(conflict)
        # A hook of an agent's own event may print something at each turn: that is no notice.
        shown = fired.hook not in self._observed and not result.suppress_output
        if result.system_message and shown:
            yield PersonNote(result.system_message)
        if fired.hook in self._observed - self._unheeded and (result.blocked or result.stop):
            self._unheeded.add(fired.hook)
            yield PersonNote(
                f"{fired.hook.registration}: this agent does not wait for these hooks, so it"
                " cannot be kept from going on"
            )
        if fired.hook is HookEventName.OUTPUT:
            yield from self._count_answer(result)
            deliver &= not self._muted
        for text in [*result.inject, result.context] if deliver else ():
            if text:
                yield InjectText(self._new_id(), text)

    def end(self, reason: str, seconds: float) -> Iterator[DriverCommand]:
        """Fire ``on_session_end``, once in the life of a run."""
        if not self._ended:
            self._ended = True
            self.ending = self.has(HookEventName.SESSION_END)
            yield from self.fire(HookEventName.SESSION_END, {"reason": reason}, seconds)

    def agent_gone(self) -> None:
        """The agent has ended: from now on texts of hooks are dropped.

        They would reach the next agent of that name.
        """
        self._gone = True

    def state(self) -> dict[str, Any]:
        """The events that were fired already, for the checkpoint."""
        return {
            "idle": self._idle_fired,
            "ended": self._ended,
            "announced": list(self._announced),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where an earlier session of this run was."""
        self._idle_fired = bool(state.get("idle"))
        self._ended = bool(state.get("ended"))
        self._announced = RecentSet(ANNOUNCED_MAX, state.get("announced", ()))

    def begin(self, now: float) -> None:
        """Start to measure the agent's silence."""
        self._last_output = now

    def message(self, identifier: str, sender: str, body: str) -> Iterator[DriverCommand]:
        """A message for the agent has come; an earlier session may have reported it."""
        if not self.has(HookEventName.MESSAGE_RECEIVED) or identifier in self._announced:
            return
        self._announced.add(identifier)
        yield from self.fire(HookEventName.MESSAGE_RECEIVED, {"sender": sender, "body": body})

    def settled(self, identifier: str) -> None:
        """That message is seen or has failed: it will not come again."""
        self._announced.discard(identifier)

    def output(self, texts: list[str], now: float) -> Iterator[DriverCommand]:
        """The agent said these lines."""
        wanted = self._kind(HookEventName.OUTPUT) in self._wanted
        if not texts or not (wanted or self.has(HookEventName.OUTPUT)):
            return
        self._waiting += texts
        self._size += sum(map(len, texts)) + len(texts)
        left_out = 0
        while self._size > OUTPUT_WAITING_MAX and left_out < len(self._waiting) - 1:
            self._size -= len(self._waiting[left_out]) + 1
            left_out += 1
        if left_out:
            del self._waiting[:left_out]
            yield PersonNote("on_output was too slow: some output was left out")
        if not self._flushing and self._flush_at is None:
            self._flush_at = now + OUTPUT_TOGETHER

    def person(self) -> None:
        """The person has spoken to the agent: ``on_output`` may answer again."""
        self._muted = False
        self._answers.clear()

    def active(self, now: float) -> None:
        """The agent wrote or got something: an idle period ends."""
        self._last_output = now
        self._idle_fired = False

    def deadline(self) -> float | None:
        """When ``tick`` is due."""
        due = (self._flush_at, self._idle_at())
        return min((one for one in due if one is not None), default=None)

    def tick(self, now: float) -> Iterator[DriverCommand]:
        """Fire ``on_output`` with the waiting lines, and ``on_idle`` once per idle period."""
        if self._flush_at is not None and now >= self._flush_at:
            self._flush_at, self._flushing = None, self.has(HookEventName.OUTPUT)
            text = "\n".join(self._waiting)
            self._waiting.clear()
            self._size = 0
            yield from self.fire(HookEventName.OUTPUT, {"output": text})
        idle_at = self._idle_at()
        if idle_at is not None and now >= idle_at:
            self._idle_fired = True
            yield from self.fire(HookEventName.IDLE, {"idle_seconds": self._idle_seconds})

    def _idle_at(self) -> float | None:
        """When the agent will count as idle; None if it does already, or the end has begun."""
        if self._idle_fired or self._ended:
            return None
        return None if self._last_output is None else self._last_output + self._idle_seconds

    def _count_answer(self, result: Aggregated) -> Iterator[DriverCommand]:
        """Mute ``on_output`` when it seems to answer itself."""
        if self._muted or not (result.inject or result.context):
            return
        now = self._last_output or 0.0
        if len(self._answers) == ANSWERS_MAX and now - self._answers[0] < ANSWERS_WITHIN:
            self._muted = True
            yield PersonNote(
                f"on_output has answered more than {ANSWERS_MAX} times within {ANSWERS_WITHIN:g} s,"
                " perhaps its own texts: what it says is left out until you write to the agent"
            )
        self._answers.append(now)


#: An agent that tells its state is done once it is at rest and has written nothing for this many
#: seconds; one that tells nothing, after a longer silence.
QUIET = 1.0
QUIET_UNKNOWN = 4.0
#: The note to the person when the time was too short.
HOOKS_LATE = "the session-end hooks took too long: the agent got no message"
AGENT_LATE = "the agent was not done with what its last hooks told it"


class HangupTimer:
    """Gives an agent whose terminal has gone time to do what its last hooks tell it.

    The order is: ``begin`` (the hooks are fired), ``told`` (they have run), and over when the
    agent has seen what they said and is at rest, when it is gone, or when the time is up.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds  # for all of it
        self._end: float | None = None  # None until it has begun
        self._unseen: set[str] | None = None  # ids of messages to the agent; None: hooks run
        self._own: set[str] = set()  # ids of what the hooks inject while they run
        self._over = False
        self._state = AgentState.IDLE
        self._tells = False  # whether the agent reports its state itself
        self._last = 0.0  # when something last happened

    @property
    def begun(self) -> bool:
        """Whether the person's terminal has gone."""
        return self._end is not None

    @property
    def running(self) -> bool:
        """Whether the agent has time left."""
        return self._end is not None and not self._over

    def begin(self, now: float) -> None:
        """The person's terminal has gone, and the last hooks are fired."""
        self._end = now + self._seconds

    def shown(self, change: StateChange) -> StateChange:
        """The agent's state for others: *ending* once its terminal has gone."""
        return StateChange(AgentState.ENDING, "its terminal is closed") if self.begun else change

    def sends(self, fields: dict[str, Any], name: str, *, asked: bool) -> None:
        """Something is sent while the last hooks run, if ``asked``: to the agent called ``name``
        it is what they inject themselves."""
        if asked and fields["to"] == [name]:
            self._own.add(fields["id"])

    def told(self, identifiers: set[str] | None, now: float) -> Iterator[DriverCommand]:
        """The last hooks have run, with these messages to the agent. None: they timed out."""
        if not self.running:
            return
        identifiers = None if identifiers is None else identifiers | self._own
        if identifiers is None:
            yield from self._finish(HOOKS_LATE)
        elif not identifiers:
            yield from self._finish()
        else:
            self._unseen = set(identifiers)
            yield from self.tick(now)

    def delivery(self, identifier: str, state: State, now: float) -> None:
        """A delivery has reached ``state``."""
        if state.final:
            self._last = now
            self._own.discard(identifier)
            if self._unseen is not None:
                self._unseen.discard(identifier)

    def agent_state(self, state: AgentState, now: float, *, tells: bool) -> None:
        """The agent is idle, busy or blocked now."""
        self._state, self._tells, self._last = state, tells, now

    def output(self, now: float) -> None:
        """The agent wrote something."""
        self._last = now

    def agent_gone(self) -> Iterator[DriverCommand]:
        """The agent is gone."""
        if self.running and self._unseen is not None:
            yield from self._finish(AGENT_LATE)

    def deadline(self) -> float | None:
        """When ``tick`` is due."""
        if not self.running or self._unseen is None:
            return None  # the hooks have a time limit of their own
        assert self._end is not None
        rest = self._rests_at()
        return self._end if rest is None else min(self._end, rest)

    def tick(self, now: float) -> Iterator[DriverCommand]:
        """Time has passed."""
        if not self.running or self._unseen is None:
            return
        rest = self._rests_at()
        if rest is not None and now >= rest:
            yield from self._finish()
        elif self._end is not None and now >= self._end:
            yield from self._finish(AGENT_LATE)

    def _rests_at(self) -> float | None:
        """When the agent counts as done, if nothing more happens; None while it is busy."""
        if self._unseen is None or self._unseen:
            return None
        if self._tells:
            return None if self._state is AgentState.BUSY else self._last + QUIET
        return self._last + QUIET_UNKNOWN

    def _finish(self, note: str = "") -> Iterator[DriverCommand]:
        self._over = True
        if note:
            yield PersonNote(note)
        yield KeepTerminal(0)
