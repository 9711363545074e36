"""A program's profile as in a run: the launch plan names the kind, the session looks it up."""

from __future__ import annotations

from relay.agents.known_agents import AgentProfile, profile_named
from relay.agents.launch import Run, plan


def profile_for(command: list[str]) -> AgentProfile:
    """The profile of the agent that ``command`` starts."""
    run = Run(name="R", run_id="1", token="t", port=None)
    return profile_named(plan(command, {}, run).profile)
