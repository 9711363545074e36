"""Proofs of what became of messages that were given with the answers to an agent's hooks.

relay.session.steering gives them and asks here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable

from relay.agents.hook_codec import AgentHookCall
from relay.core.files import write_atomically

#: Messages that are remembered as given; the oldest are forgotten first.
GIVEN_MAX = 256


class InjectionProof:
    """Tells what became of messages that went with the answers to an agent's hooks."""

    #: Whether its records show the words that were given (a Proof comes); else only ``landed``.
    shows = True

    @property
    def room(self) -> int:
        """Bytes that reach the model whole; 0 where nothing can be given now."""
        raise NotImplementedError

    async def own(self, call: AgentHookCall) -> bool:
        """Whether this is a call of the agent's, not of one that works for it."""
        raise NotImplementedError

    def landed(self, marker: str) -> bool:
        """Whether a text with ``marker`` that was given has got in."""
        raise NotImplementedError

    def giving(self, markers: list[str]) -> None:
        """Note that these go over now, for a session that follows this one.

        Raises OSError; then they do not go.
        """

    def kept(self, markers: list[str]) -> None:
        """Note that these did not go over."""


class TranscriptProof(InjectionProof):
    """For an agent whose records show what a hook has added.

    ``room()`` is 0 while they are not read; ``seen(marker)`` whether they show a text with it.
    """

    def __init__(self, room: Callable[[], int], seen: Callable[[str], bool]) -> None:
        self._room = room
        self._seen = seen

    @property
    def room(self) -> int:
        return self._room()

    async def own(self, call: AgentHookCall) -> bool:
        return not call.native.get("agent_id")

    def landed(self, marker: str) -> bool:
        return self._seen(marker)


class TurnProof(InjectionProof):
    """For an agent that only shows that its model was asked again.

    ``asked()`` counts the answers that the model has begun, ``went_on(count)`` tells whether
    another one followed that one in the same turn; ``own(id)`` whether a tool call of this id is
    the agent's own. What is given stands in the file ``path``, which lasts as long as the run.
    """

    shows = False

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
        return self._room()

    async def own(self, call: AgentHookCall) -> bool:
        return await self._own(str(call.fields.get("tool_use_id") or ""))

    def landed(self, marker: str) -> bool:
        return marker in self._given and self._went_on(self._given[marker])

    def giving(self, markers: list[str]) -> None:
        self._given |= dict.fromkeys(markers, self._asked())
        for marker in list(self._given)[:-GIVEN_MAX]:
            del self._given[marker]
        self._write()

    def kept(self, markers: list[str]) -> None:
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
