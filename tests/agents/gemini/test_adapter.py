"""How long Gemini CLI's session file is waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from relay.agents.base import AgentStart
from relay.agents.gemini.adapter import SHOW_ITSELF, GeminiAdapter
from relay.agents.profile import find_profile
from relay.screen.source import ScreenSource
from relay.session.detector import DirectiveDetector
from relay.session.driver import AdapterFeed
from relay.session.session_events import EventQueue
from relay.session.sources import SourceSelector

INPUT_LINE = ["─" * 60, " Shift+Tab to accept edits", " >   Type your message or @path/to/file"]


class Desk:
    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.gemini = GeminiAdapter(
            AgentStart(
                started_ms=0,
                pid=1,
                cwd=str(folder),
                folder=str(folder / "run"),
                launch={"heard": True, "session": "7c0af7f8-8a85-43de-b88f-3c9c0e06732e"},
                env={"HOME": str(folder)},
                checkpoint={},
                clock=lambda: self.now,
                profile=find_profile("gemini")[0],
            )
        )
        self.ears = SourceSelector(
            DirectiveDetector("run", 0, {"relay"}),
            ScreenSource(80, 24, now=self.now),
            self.gemini.source,
        )

    def look(self, after: float) -> str:
        """Which source is believed after so many seconds."""
        self.now += after

        async def once() -> None:
            changed = asyncio.Event()
            watching = asyncio.ensure_future(
                self.gemini.watch(
                    AdapterFeed(self.ears, EventQueue()), asyncio.Event(), changed.set
                )
            )
            await asyncio.sleep(0)
            watching.cancel()
            await asyncio.wait([watching])

        asyncio.run(once())
        return self.ears.source


def test_who_signs_in_at_its_start_is_given_the_time(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.gemini.entered(desk.now)
    assert desk.look(10 * SHOW_ITSELF) == "structured"
    desk.gemini.source.look(INPUT_LINE, "◇  Ready (demo)", desk.now)
    desk.gemini.entered(desk.now)
    assert desk.look(SHOW_ITSELF - 1) == "structured"
    assert desk.look(2) == "screen"
