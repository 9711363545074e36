"""The time that an agent has after its terminal has gone, to do what its last hooks say. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relay.core.message import AgentState, State
from relay.core.source_events import StateChange
from relay.session.session_commands import DriverCommand, KeepTerminal, PersonNote

#: An agent that tells its state is done once it is at rest and has written nothing for this many
#: seconds; one that tells nothing, after a longer silence.
QUIET = 1.0
QUIET_UNKNOWN = 4.0
#: The note to the person when the time was too short.
HOOKS_LATE = "the session-end hooks took too long: the agent was told nothing"
AGENT_LATE = "the agent was not done with what its last hooks told it"


class HangupTimer:
    """Gives an agent whose terminal has gone time to do what its last hooks tell it. Pure.

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
