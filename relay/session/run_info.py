"""Who a session is for, and whom it asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from relay.core.json_text import named
from relay.session.actions import TEXTS_MAX


class Broker(Protocol):
    """The part of the broker's client that a session needs."""

    async def request(self, op: str, **fields: Any) -> dict[str, Any]: ...


@dataclass
class Facts:
    """Who this session is for. Times in milliseconds since the epoch."""

    run_id: str
    name: str
    person: str
    started_ms: int
    cwd: str
    env: dict[str, str]
    task: str | None = None
    idle_seconds: float = 30.0
    handler_timeout: float = 30.0
    texts_max: int = TEXTS_MAX  # that handlers may give the agent within a minute; 0: any number
    end_seconds: float = 10.0  # for what the session-end hooks tell the agent
    offset: int = 0
    restarts: int = 0  # sessions of this run before this one
    notes: list[str] = field(default_factory=list)
    secrets: str = "redact"  # what is done with them in what is saved as a memory
    store: dict[str, Any] = field(default_factory=dict)  # fields that name it; of the default none

    @property
    def memory_fields(self) -> dict[str, Any]:
        """What every request about memories carries: the broker finds the project of the folder.

        One whose name is no Unicode cannot be named there: the user's and the agent's remain.
        """
        return {"cwd": named(self.cwd), "secrets": self.secrets, **self.store}
