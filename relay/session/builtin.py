"""The built-in ``@relay:`` and ``@memory:`` handlers, in the same registry as the user's."""

from __future__ import annotations

import os
import re
from typing import Any

from relay.config.memory_settings import MemorySettings
from relay.core.json_text import named
from relay.core.message import Mode
from relay.directive.grammar import Match
from relay.hooks.context import Context
from relay.hooks.registry import BUILTIN, Registry
from relay.session import memory_texts
from relay.session.memory_commands import ACTIONS
from relay.session.memory_scope import NoStore

_AWAIT = re.compile(r"(\d{1,5})(s|m|h)?")
_UNITS = {"s": 1, "m": 60, "h": 3600, None: 1}
#: The longest time that ``[await:…]`` may wait for an answer, in seconds.
AWAIT_MAX = 24 * 3600
DEFAULTS = MemorySettings()
#: Memories that are looked at for an agent that starts; how many fit is decided by their length.
RECALLED_MAX = 20
REMINDER = (
    "This session ends. If you learned something that later sessions should know, save it now, one"
    " line each, as @memory:save and the text, and nothing that is a secret. Otherwise do nothing."
)


def register(registry: Registry, memories: MemorySettings = DEFAULTS) -> None:
    """Add relay's own handlers; what the user's configuration overrides does not run."""
    registry.add_pattern("relay", "*", relay, source=BUILTIN)
    for action in ACTIONS:
        registry.add_pattern("memory", action, memory, source=BUILTIN)
    if memories.inject_on_start:
        registry.add_hook("session_start", recall, name="memory", source=BUILTIN)
    if memories.prompt_on_end:
        registry.add_hook("session_end", remind, name="memory", source=BUILTIN)


def relay(target: str, message: str, ctx: Context) -> None:
    """``@relay:Bob text``: send ``text`` to Bob. ``@relay:*`` is everyone else."""
    ctx.relay.send(target, message)


def memory(target: str, message: str, ctx: Context) -> None:
    """``@memory:save text``: save ``text``; and so on for the other ACTIONS."""
    ctx.memory.command(target, message)


async def recall(ctx: Context) -> str | None:
    """What was saved before that this agent may need, at its start."""
    try:
        return await _recalled(ctx)
    except NoStore:
        return None


async def _recalled(ctx: Context) -> str | None:
    # Bytes that are no Unicode, in the name of a folder say, cannot be asked for.
    words = (named(ctx.task or ""), named(os.path.basename(ctx.working_dir)))
    about = " ".join(filter(None, words)).strip()
    found = await ctx.memory.search(about, limit=RECALLED_MAX) if about else []
    newest = await ctx.memory.list(limit=RECALLED_MAX)
    # A slow store answers when this agent has saved something already.
    earlier = [memory for memory in (*found, *newest) if memory["session"] != ctx.session_id]
    return memory_texts.at_start(earlier) or None


def remind(ctx: Context) -> str:
    """The last chance to save something, where the agent still has a moment."""
    return REMINDER


def send_fields(match: Match, message_id: str) -> dict[str, Any]:
    """The broker's ``send`` for what an agent said, with its attributes."""
    mode = match.attributes.get("mode", "")
    return {
        "id": message_id,
        "to": [name for name in match.target.split(",") if name],
        "body": match.body,
        "mode": mode if mode in Mode.__members__.values() else Mode.FOLLOWUP.value,
        "thread": match.attributes.get("thread"),
    }


def await_seconds(match: Match) -> float | None:
    """``[await:30s]`` -> 30.0; None without it, or when it is no duration."""
    text = match.attributes.get("await", "")
    parsed = _AWAIT.fullmatch(text)
    if parsed is None:
        return None
    return float(min(int(parsed[1]) * _UNITS[parsed[2]], AWAIT_MAX))
