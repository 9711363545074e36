"""What a source has said so far, by kind."""

from __future__ import annotations

from relay.core.message import AgentState
from relay.core.source_events import End, Line, Proof, SourceEvent, StateChange


class Heard:
    """Collects in ``events`` what comes out of a source; ``now`` moves only when told."""

    def __init__(self) -> None:
        self.events: list[SourceEvent] = []
        self.now = 100.0

    @property
    def lines(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Line)]

    @property
    def ends(self) -> list[End]:
        return [event for event in self.events if isinstance(event, End)]

    @property
    def states(self) -> list[AgentState]:
        return [event.state for event in self.events if isinstance(event, StateChange)]

    @property
    def proofs(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Proof)]
