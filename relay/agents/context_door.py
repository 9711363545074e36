"""The door by which relay's own texts reach an agent: beside what the person asks, never typed.

Some agents run a hook before each prompt, and give their model what it prints; the hook takes the
file away that is put here (relay.agents.hook_scripts.giver), so that its text is told once. Others
read a file with each request, to which is added here. An agent without such a door is told
nothing but what somebody sent it: a text that is typed would be a turn of its own, or the answer
to a question that the program asks its person.

A file of its own because the launch plans name the door, and sessions and memories use it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

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
