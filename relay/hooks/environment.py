"""The environment of a hook that is a program: the agent's, without what is for relay only. Pure.

A hook is the person's program, not the agent's. So it has no token and no door of the agent's run:
`relay send` in a hook speaks as the person, through the broker of the same RELAY_HOME.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Command, Dialect

#: Of relay's own variables, those that a hook inherits. All others stay behind, also new ones.
KEPT = frozenset(
    {"RELAY_HOME", "RELAY_AGENT", "RELAY_BROKER_IDLE", "RELAY_HOPS_MAX", "RELAY_RATE_MAX"}
)
#: Gemini CLI sets Claude Code's variable, too, for hooks that have moved.
_PROJECT = {
    Dialect.RELAY: (),
    Dialect.CLAUDE: ("CLAUDE_PROJECT_DIR",),
    Dialect.GEMINI: ("GEMINI_PROJECT_DIR", "CLAUDE_PROJECT_DIR"),
}


def hook_environment(
    base: Mapping[str, str],
    command: Command,
    *,
    event: HookEventName,
    dialect: Dialect,
    project: str,
    cwd: str,
) -> dict[str, str]:
    """``base`` (the agent's) for one hook; what ``command`` itself sets wins.

    ``project`` is the agent's working directory, ``cwd`` the one that the hook starts in.
    """
    env = {key: value for key, value in base.items() if _inherited(key)}
    env["PWD"] = cwd
    env["RELAY_HOOK_EVENT"] = event.value
    for name in _PROJECT[dialect]:
        env[name] = project
    env.update(command.env)
    return env


def _inherited(name: str) -> bool:
    return not name.startswith("RELAY_") or name in KEPT
