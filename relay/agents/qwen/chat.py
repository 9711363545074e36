"""Where Qwen Code keeps its own record of a chat.

It is read for one thing only: a message that reached the model within a turn stands there, and not
in the event file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

#: While the record is not there (recording can be turned off) it is looked for every so many times.
SELDOM = 10
_SESSION_ID = re.compile(r"[0-9A-Za-z-]{8,64}")


def home(env: dict[str, str]) -> str:
    """Where Qwen Code keeps what is the person's."""
    own = os.path.join(env.get("HOME") or os.path.expanduser("~"), ".qwen")
    return os.path.expanduser(env.get("QWEN_HOME") or own)


class ChatRecord:
    """The file of the session that ``session()`` names, once both are there."""

    def __init__(self, env: dict[str, str], session: Callable[[], str]) -> None:
        folder = os.path.expanduser(env.get("QWEN_RUNTIME_DIR") or home(env))
        self._projects = os.path.join(folder, "projects")
        self._session = session
        self._found: tuple[str, str] = "", ""
        self._asked = 0

    def path(self) -> str | None:
        """The record's file, or None."""
        session = self._session()
        if not _SESSION_ID.fullmatch(session):
            return None
        if self._found[0] != session:
            self._asked += 1
            if self._asked % SELDOM == 1:
                self._found = session, self._search(session)
        if self._found[1]:
            return self._found[1]
        self._found = "", ""
        return None

    def _search(self, session: str) -> str:
        try:
            projects = os.listdir(self._projects)
        except OSError:
            return ""
        for project in projects:
            path = os.path.join(self._projects, project, "chats", f"{session}.jsonl")
            if os.path.exists(path):
                return path
        return ""
