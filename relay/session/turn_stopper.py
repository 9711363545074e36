"""Stopping the agent's running turn, for a message whose mode is interrupt.

By the agent's own interface if it has one, or else by the key that its profile names. That key is
pressed only while the screen shows a running turn, an empty input line and no question, and nothing
was drawn or pressed since: otherwise it would mean something else.
"""

from __future__ import annotations

from relay.agents.base import AgentAdapter, Blocked
from relay.agents.profile import Profile
from relay.core.errors import RelayError
from relay.core.message import AgentState, Message
from relay.session.agent_terminal import AgentTerminal, write_id
from relay.session.session_events import EventQueue, TurnStopped
from relay.session.typing_policy import DIALOG_WAITS

#: Seconds that an agent may take to stop before the next try, and the number of tries.
TAKES, TRIES = 3.0, 3
STOPPING = "the running turn is being stopped"
UNSTOPPED = "the running turn could not be stopped"
#: The remark of a receipt when the message goes in another mode.
CANNOT = "this agent cannot be interrupted, so it was delivered as steer"
#: The reason to stop a turn that is stopped for no message.
BY_PERSON = "the person"
UNSURE = "the agent does not show that its key would stop a turn"


class TurnStopper:
    """Stops the turns of one agent."""

    def __init__(
        self,
        at: AgentTerminal,
        adapter: AgentAdapter | None,
        profile: Profile,
        events: EventQueue,
    ) -> None:
        self._link, self._screen = at.link, at.screen
        self._guards, self._clock = at.guards, at.clock
        self._adapter = adapter
        self._profile = profile
        self._events = events
        self._for = ""  # the message for which the turn is stopped,
        self._tries = 0  # … the number of tries,
        self._at: float | None = None  # … and the time of the last one

    @property
    def can(self) -> bool:
        """Whether there is a way to stop this agent."""
        by_itself = self._adapter is not None and self._adapter.stops
        return by_itself or bool(self._profile.interrupt and self._profile.interrupt_shown)

    def hold(self, message: Message, now: float) -> Blocked | None:
        """Why the turn is not stopped for ``message`` now."""
        if self._for == message.id and self._at is not None and now < self._at + TAKES:
            return Blocked(STOPPING, 0.1)
        if self._guards.blocked():
            return Blocked(DIALOG_WAITS, 1.0)
        if self._adapter is not None and self._adapter.stops:
            return None
        rows, title = self._screen.visible(), self._screen.title
        profile = self._profile
        composer = "dialog" if profile.asks(rows, title) else profile.composer(rows)
        if held := self._guards.person(now, composer=composer):
            return held
        if composer != "empty" or not profile.stops(rows, title):
            return Blocked(UNSURE, 0.1)
        return None

    async def stop(self, message: Message) -> Blocked | None:
        """Try once to stop the running turn. Returns what to wait for; None: there is no way."""
        now = self._clock()
        if held := self.hold(message, now):
            return held
        if self._for != message.id:
            self._for, self._tries = message.id, 0
        if self._tries == TRIES:
            return None
        if not await self._told(message):
            return Blocked(UNSURE, 0.05)
        self._tries, self._at = self._tries + 1, self._clock()
        self._events.post(
            TurnStopped(f"another message ({message.id})" if message.body else BY_PERSON)
        )
        return Blocked(STOPPING, 0.1)

    async def _told(self, message: Message) -> bool:
        """Tell the agent to stop. False: something had changed, so no key was pressed."""
        if self._guards.state is not AgentState.BUSY:
            return False
        if self._adapter is not None and self._adapter.stops:
            try:
                await self._adapter.stop_turn()
            except (OSError, RelayError):
                self._tries, self._at = self._tries + 1, self._clock()
                return False
            return True
        sequence, heard = self._guards.sequence, self._guards.heard
        step = write_id(message, f"stop{self._tries}")
        key = self._profile.interrupt.encode()
        return bool(await self._link.write(key, write_id=step, sequence=sequence, offset=heard))
