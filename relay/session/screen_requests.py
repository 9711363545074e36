"""What others may see of an agent, and what the person has typed there from elsewhere.

The session's answers to requests of the kind ``screen`` (see docs/answering.md). A file of its own,
as whoever is not at the terminal comes in here; the broker has checked who asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from relay.screen.styled_rows import styled_rows
from relay.session.remote_hooks import AddOnAnswer

Json = dict[str, Any]


class ShownScreen(Protocol):
    """What is seen of the agent."""

    @property
    def title(self) -> str: ...

    @property
    def columns(self) -> int: ...

    @property
    def cursor(self) -> tuple[int, int]: ...

    @property
    def cursor_shown(self) -> bool: ...

    def visible(self, *, styled: bool = False) -> list[str]: ...


class ScreenRequests:
    """Answers for one session."""

    def __init__(self, screen: ShownScreen) -> None:
        self._screen = screen

    def answers(self) -> dict[str, AddOnAnswer]:
        """What answers requests, by their kinds."""
        return {"screen": self.screen}

    async def screen(self, request: Mapping[str, Any], by_person: bool) -> Json:
        """The screen as it is now."""
        screen = self._screen
        lines = screen.visible()
        shown: Json = {
            "lines": lines,
            "cols": screen.columns,
            "rows": len(lines),
            "cursor": list(screen.cursor) if screen.cursor_shown else None,
            "title": screen.title,
        }
        if request.get("styled"):
            shown["spans"] = styled_rows(screen.visible(styled=True))
        return shown
