"""Relay's own texts in an agent's context, never typed: by a hook's output, or by a file.

Some agents run a hook before each prompt, and give their model what it prints; the hook takes away
the file that :class:`ContextDoor` writes (relay.agents.hook_install.giver), so that its text is
told once. Others read a file with each request, to which the door adds. An agent without such a
door is told nothing but what somebody sent it: a text that is typed would be a turn of its own, or
the answer to a question that the program asks its person.

Messages may also go with the answer to a hook of a tool call (relay.session.steering). An
:class:`InjectionProof` knows whether the model has got them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from relay.agents.hook_codec import AgentHookCall
from relay.agents.structured_source import StructuredSource
from relay.core.files import make_private_folder, unlink_if_there, write_atomically

#: Characters that wait to be told, beyond which only the newest text does; and of what an agent
#: reads with each request, beyond which nothing is added.
TEXTS_MAX = 8000


class ContextDoor:
    """The door of one agent, as its launch plan's ``data["context"]`` describes it.

    ``file`` is what its hook for ``event`` prints; without an ``event`` the agent reads it.
    """

    def __init__(self, file: str, event: str = "") -> None:
        self._file = file
        self._event = event

    @property
    def tells_once(self) -> bool:
        """Whether a text is told once, and not with each request from then on."""
        return bool(self._event)

    def give(self, text: str) -> bool:
        """Have the agent told ``text`` with its next prompt; False where that cannot be had."""
        try:
            if self._event:
                self._put(text)
            else:
                self._add(text)
        except (OSError, ValueError):
            return False
        return True

    def _put(self, text: str) -> None:
        make_private_folder(os.path.dirname(self._file))
        before = self._taken_back()
        # What is said again at the end of each turn is told once, where no prompt came between.
        waits = text in before.split("\n\n")
        both = before if waits else f"{before}\n\n{text}".strip()
        output = {
            "hookEventName": self._event,
            "additionalContext": both if len(both) <= TEXTS_MAX else text,
        }
        write_atomically(self._file, json.dumps({"hookSpecificOutput": output}), durable=False)

    def _taken_back(self) -> str:
        """What has not been told yet. A hook that comes now finds nothing, or came first."""
        aside = f"{self._file}.back"
        try:
            os.rename(self._file, aside)
            with open(aside, encoding="utf-8") as file:
                return str(json.load(file)["hookSpecificOutput"]["additionalContext"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        finally:
            unlink_if_there(aside)

    def _add(self, text: str) -> None:
        with open(self._file, encoding="utf-8") as file:
            before = file.read()
        if len(before) + len(text) <= TEXTS_MAX:
            write_atomically(self._file, f"{before.rstrip()}\n\n{text}\n", durable=False)


def door_of(launch: Mapping[str, Any]) -> ContextDoor | None:
    """The door of the agent that was started by the plan with this ``data``; None: it has none."""
    named = launch.get("context")
    return ContextDoor(named["file"], named["event"]) if named else None


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
    """For an agent whose records, once they are read, show what a hook has added: ``room`` bytes of
    that reach its model."""

    def __init__(self, source: StructuredSource, room: int) -> None:
        self._source = source
        self._most = room

    @property
    def room(self) -> int:
        return self._most if self._source.transcript_path else 0

    async def own(self, call: AgentHookCall) -> bool:
        return not call.native.get("agent_id")

    def landed(self, marker: str) -> bool:
        return self._source.seen(marker)
