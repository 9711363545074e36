"""Features beside messages that are added to a session, such as memory: what one is told and keeps.

An add-on registers its patterns and hooks as a user does. Only what outlives a handler is here:
commands that are done in order and again after a kill, and what is left to do at the agent's end.
A file of its own because sessions and add-ons, which import nothing of each other, both need it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from relay.core.message import AgentState


@dataclass(frozen=True)
class AddOnCommand:
    """One ``@NAMESPACE:action text``."""

    id: str  # stays the same when it is heard again
    action: str
    text: str
    attributes: dict[str, str] = field(default_factory=dict)


class AddOn(Protocol):
    """One add-on of one session. All is called in the session's loop."""

    def begin(self) -> None:
        """The run begins, and its session-start hooks have run: called once in a run."""

    def take(self, command: AddOnCommand) -> None:
        """Do it, after those that came before it."""

    def said(self, texts: list[str]) -> None:
        """The agent said these lines."""

    def state_changed(self, state: AgentState) -> None:
        """The agent does something else now."""

    def agent_gone(self) -> None:
        """Nobody can be told anything any more."""

    async def settle(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until no command is pending; whether that is so."""

    async def end(self) -> None:
        """Do what is left to do after the last command."""

    def state(self) -> Any:
        """What an add-on of the next session of this run has to go on with, as JSON."""
