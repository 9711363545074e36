"""What agents let know of messages that were given with the answers to their hooks.

See relay.session.steering: ``TranscriptProof`` is for an agent whose records show what a hook has
added; ``TurnProof`` for one that only shows that its model was asked again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable

from relay.agents.hook_codec import AgentHookCall
from relay.core.files import write_atomically

#: Messages that are remembered as given; the oldest are forgotten first.
GIVEN_MAX = 256


class TranscriptProof:
    """``room()``: bytes that fit into what a hook adds, 0 while the records are not read;
    ``seen(marker)``: whether they show a text with it."""

    def __init__(self, room: Callable[[], int], seen: Callable[[str], bool]) -> None:
        self._room = room
        self._seen = seen

    @property
    def room(self) -> int:
        """See Records."""
        return self._room()

    async def own(self, call: AgentHookCall) -> bool:
        """See Records."""
        return not call.native.get("agent_id")

    def landed(self, marker: str) -> bool:
        """See Records."""
        return self._seen(marker)

    @property
    def shows(self) -> bool:
        """See Records."""
        return True

    def giving(self, markers: list[str]) -> None:
        """See Records: what is not in the agent's records did not get in."""

    def kept(self, markers: list[str]) -> None:
        """See Records."""


class TurnProof:
    """``asked()`` counts the answers that the model has begun, ``went_on(count)`` tells whether
    another one followed that one in the same turn; ``own(id)`` whether a tool call of this id is
    the agent's own. What is given stands in the file ``path``, which lasts as long as the run."""

    def __init__(
        self,
        path: str,
        room: Callable[[], int],
        asked: Callable[[], int],
        went_on: Callable[[int], bool],
        own: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._path = path
        self._room = room
        self._asked = asked
        self._went_on = went_on
        self._own = own
        self._given: dict[str, int] = _read(path)

    @property
    def room(self) -> int:
        """See Records."""
        return self._room()

    async def own(self, call: AgentHookCall) -> bool:
        """See Records."""
        return await self._own(str(call.fields.get("tool_use_id") or ""))

    def landed(self, marker: str) -> bool:
        """See Records."""
        return marker in self._given and self._went_on(self._given[marker])

    @property
    def shows(self) -> bool:
        """See Records."""
        return False

    def giving(self, markers: list[str]) -> None:
        """See Records."""
        self._given |= dict.fromkeys(markers, self._asked())
        for marker in list(self._given)[:-GIVEN_MAX]:
            del self._given[marker]
        self._write()

    def kept(self, markers: list[str]) -> None:
        """See Records."""
        for marker in markers:
            self._given.pop(marker, None)
        with contextlib.suppress(OSError):  # the next session may have to guess
            self._write()

    def _write(self) -> None:
        write_atomically(self._path, json.dumps(self._given), durable=False)


def _read(path: str) -> dict[str, int]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return {str(k): int(v) for k, v in found.items()} if isinstance(found, dict) else {}
