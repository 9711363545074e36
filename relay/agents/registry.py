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
    the fallback; ``door`` that it has a channel for messages besides the keyboard. ``comment`` is
    what begins a comment line, in the style of that name. ``refusal`` is why nothing is ever typed,
    or empty.
    """

    kind: str
    style: Style = "plain"
    structured: bool = False
    door: bool = False
    comment: str = ""
    refusal: str = ""


CLAUDE = Profile("claude", style="paste", structured=True, door=True)
SHELL = Profile("shell", style="shell")


def profile_named(kind: str) -> Profile:
    """The profile whose ``kind`` a launch plan has named."""
    known = {"claude": CLAUDE, "shell": SHELL}.get(kind)
    if known:
        return known
    comment = comment_of(kind)
    if comment:
        return Profile(kind, style="comment", comment=comment)
    if launches(kind):
        # Most often a shell is what it starts, and other programs can read the same words.
        return Profile(kind, style="shell")
    return Profile(kind or "unknown", refusal=refusal(kind))
