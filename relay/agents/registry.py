"""Which kinds of agents relay knows, and what it can do with each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relay.agents.launch import program
from relay.agents.shell import is_interactive_shell

Style = Literal["paste", "plain", "shell"]


@dataclass(frozen=True, slots=True)
class Profile:
    """How to talk with one kind of agent.

    ``kind`` is its name in ``relay agents``; ``style`` is how a message is worded when it has to
    be typed; ``structured`` tells that the agent reports its own words, so that the screen is only
    the fallback; ``door`` that it has a channel for messages besides the keyboard.
    """

    kind: str
    style: Style = "plain"
    structured: bool = False
    door: bool = False


CLAUDE = Profile("claude", style="paste", structured=True, door=True)
SHELL = Profile("shell", style="shell")


def profile_for(argv: list[str]) -> Profile:
    """The profile for a command; an unknown program gets a plain one under its own name."""
    name = program(argv)
    if name == "claude":
        from relay.agents.claude_launch import converses

        return CLAUDE if converses(argv) else Profile(name)
    if is_interactive_shell(argv):
        return SHELL
    return Profile(name or "unknown")


def profile_named(kind: str) -> Profile:
    """The profile whose ``kind`` a launch plan has named."""
    return {"claude": CLAUDE, "shell": SHELL}.get(kind) or Profile(kind or "unknown")
