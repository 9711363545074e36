"""What opencode's screen says about the agent that a message would go to. Pure.

A file of its own: it is tested by itself, on captured screens.
"""

from __future__ import annotations

from relay.agents.profile import Profile


def agent_shown(rows: list[str], profile: Profile) -> str:
    """The agent that the input line names (``Build``, ``Plan``), empty where none is seen."""
    place = profile.input.find(rows) if profile.input else None
    if profile.input is None or place is None:
        return ""
    agent, dot, _ = profile.input.text(rows[place[1] - 1]).partition(" · ")
    return agent.strip() if dot else ""
