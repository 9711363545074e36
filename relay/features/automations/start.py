"""Automations at the start of a run: an agent whose tool calls one listens for gets the hooks that
report them.

The broker keeps a file of the folders whose agents these are. Read before the agent starts, so
little is imported.
"""

from __future__ import annotations

import os

from relay.agents.launch import TOOL_EVENTS
from relay.app.start_door import StartFeature
from relay.config.manifest import Known
from relay.core.files import read_file
from relay.core.paths import is_within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.app.wrapped_run import Choices
    from relay.core.paths import Home

#: Bytes of the file that are read.
_READ = 1024 * 1024


def hearers_file(home: Home) -> str:
    """One folder a line; ``/``: all agents. Whoever forges it has tool calls reported to the
    broker, or not: nobody learns more by that, and nothing is refused or allowed."""
    return os.path.join(home.root, "tool_calls")


def feature(choices: Choices, cwd: str) -> AutomationsStart:
    """The feature, in any folder."""
    return AutomationsStart(cwd)


class AutomationsStart(StartFeature):
    """A start in the folder ``cwd``."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._is_heard = False

    def begin(self, home: Home) -> None:
        try:
            folders = os.fsdecode(read_file(hearers_file(home), _READ)).splitlines()
        except OSError:
            return
        self._is_heard = any(is_within(self._cwd, one) for one in folders if one[:1] == "/")

    def known(self, known: Known) -> Known:
        after = TOOL_EVENTS[1]
        if not self._is_heard or after in known.hooks:
            return known
        return Known(known.namespaces, (*known.hooks, after), known.without, known.mcp)
