"""A program's profile as in a run: the launch plan names the kind, the session looks it up."""

from __future__ import annotations

from relay.agents.launch import Run, plan
from relay.agents.registry import Profile, profile_named


def profile_for(command: list[str]) -> Profile:
    """The profile of the agent that ``command`` starts."""
    run = Run(name="R", run_id="1", token="t", port=None)
    return profile_named(plan(command, {}, run).profile)
