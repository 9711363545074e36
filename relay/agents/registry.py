"""Which kinds of agents relay knows, and what it can do with each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from relay.agents.interpreters import comment_of, launches, refusal

Style = Literal["paste", "plain", "shell", "comment"]


@dataclass(frozen=True, slots=True)
class Profile:
    """How to talk with one kind of agent.

    ``kind`` is its name in ``relay agents``; ``style`` is how a message is worded when it has to
    be typed; ``structured`` tells that the agent reports its own words, so that the screen is only
    the fallback (see relay.agents.base). ``comment`` is what begins a comment line, in the style
    of that name. ``refusal`` is why nothing is ever typed, or empty.
    """

    kind: str
    style: Style = "plain"
    structured: bool = False
    comment: str = ""
    refusal: str = ""


SHELL = Profile("shell", style="shell")
#: Those with interfaces of their own; relay.agents.base has what belongs to each.
NATIVE = frozenset({"claude", "codex", "gemini", "aider", "qwen", "opencode"})


def profile_named(kind: str) -> Profile:
    """The profile whose ``kind`` a launch plan has named."""
    if kind in NATIVE:
        return Profile(kind, style="paste", structured=True)
    if kind == "shell":
        return SHELL
    comment = comment_of(kind)
    if comment:
        return Profile(kind, style="comment", comment=comment)
    if launches(kind):
        # Most often a shell is what it starts, and other programs can read the same words.
        return Profile(kind, style="shell")
    return Profile(kind or "unknown", refusal=refusal(kind))
