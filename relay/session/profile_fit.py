"""Whether an agent's profile fits what it draws: its input line was seen once.

A program draws otherwise in another version, or in another terminal. If a profile's input line is
never seen, nothing would ever be typed into the program. So after some seconds of rest that part of
the profile is ignored, until the input line is seen. Once it was seen, the profile is right:
whatever hides the input line then is something else that reads keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from relay.agents.base import AgentAdapter
from relay.agents.profile import ComposerState, Profile
from relay.agents.structured_source import StructuredSource
from relay.core.source_events import Screen, Terminal
from relay.session.session_events import EventQueue, SourcesRead
from relay.session.sources import SourceSelector

#: Seconds between two checks, and of rest after which an input line should be visible.
LOOK, REST = 0.5, 5.0
#: The same for a screen that never rests.
RESTLESS = 60.0


class ProfileFit:
    """The state of the agent's input line: by its profile, or without it if it does not fit.

    ``adapter`` and ``source`` are the agent's, if it has them: they get the profile in use.
    ``seen``: an earlier session has seen the input line.
    """

    def __init__(
        self,
        profile: Profile,
        adapter: AgentAdapter | None,
        source: StructuredSource | None,
        screen: Screen,
        terminal: Terminal,
        *,
        seen: bool,
    ) -> None:
        self._whole = self._used = profile
        self._adapter = adapter
        self._source = source
        self._screen = screen
        self._terminal = terminal
        self._seen = seen or profile.input is None
        self._missing_since: float | None = None

    def composer(self, rows: list[str]) -> ComposerState:
        """The state of the input line, by the screen's rows."""
        if self._adapter is not None:
            return self._adapter.composer(rows)
        if not self._used.tells_of_screen:
            return "unknown"
        return self._used.composer_at_rest(rows, self._screen.title, self._screen.cursor[1])

    def state(self) -> dict[str, bool]:
        """Return a JSON-able checkpoint."""
        return {"seen": self._seen}

    def look(self, now: float) -> bool:
        """Check whether the profile fits. Returns whether that has changed."""
        whole, screen = self._whole, self._screen
        rows = screen.visible()
        if whole.input is not None and whole.input.find(rows) is not None:
            self._seen = True
            return self._use(whole)
        if self._seen or not any(map(str.strip, rows)):
            return False
        asks_or_works = whole.asks(rows, screen.title) or whole.shows_turn(rows, screen.title)
        starts = self._terminal.cooked() or self._terminal.waits() is False
        if asks_or_works or starts:
            self._missing_since = None
            return False
        if self._missing_since is None:
            self._missing_since = now
        # A screen with a clock on it never rests.
        rests = now - screen.changed_at >= REST or now - self._missing_since >= RESTLESS
        if not rests:
            return False
        return self._use(replace(whole, input=None))

    async def run(
        self, sources: SourceSelector, events: EventQueue, clock: Callable[[], float]
    ) -> None:
        """Check until the input line was seen; ``relay status`` says while it is not."""
        name = self._whole.name
        remark = (
            f"the profile of {name} does not fit: its input line is not seen, so the general rules"
            f" apply (relay agent check {name} tells what works)"
        )
        sources.forget(remark)  # of a session before this one
        while not self._seen:
            await asyncio.sleep(LOOK)
            if self.look(clock()):
                (sources.forget if self._seen else sources.note)(remark)
                events.post(SourcesRead())

    def _use(self, profile: Profile) -> bool:
        if (self._used.input is None) is (profile.input is None):
            return False
        self._used = profile
        for holder in (self._adapter, self._source):
            if holder is not None:
                holder.profile = profile
        return True
