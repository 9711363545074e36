"""One line of the console's traffic: what happened, and how far its deliveries are. Pure."""

from __future__ import annotations

from relay.core.visible import visible, visible_lines

#: Characters of one message that the console shows; ``/show ID`` prints all of it.
BODY_SHOWN = 8000


class TrafficLine:
    """One thing that happened. ``kind``: message, turn, agent, owed (an answer), gap, note."""

    __slots__ = ("n", "at_ms", "kind", "sender", "to", "text", "id", "thread", "states", "said_by")

    def __init__(
        self,
        at_ms: int,
        kind: str,
        text: str,
        *,
        sender: str = "",
        to: tuple[str, ...] = (),
        id_: str = "",
        thread: str | None = None,
        said_by: str = "",
    ) -> None:
        self.n = 0  # its place in the traffic
        self.at_ms = at_ms
        self.kind = kind
        self.sender = visible(sender)
        self.to = tuple(map(visible, to))
        shown = text if len(text) <= BODY_SHOWN else f"{text[:BODY_SHOWN]} … (/show {id_[-8:]})"
        self.text = visible_lines(shown)
        self.id = id_
        self.thread = thread
        #: agent, person, relay or channel.
        self.said_by = said_by
        #: By receiver: the state of its delivery, and the reason for it.
        self.states: dict[str, tuple[str, str]] = {}

    def about(self, name: str) -> bool:
        """Whether ``name`` said it, gets it, or is who it is about."""
        return name == self.sender or name in self.to

    def state(self) -> str:
        """The state of all its deliveries together: of the one that is least far."""
        states = [state for state, _ in self.states.values()]
        for state in ("failed", "held", "waiting", "queued", "delivering", "submitted", "seen"):
            if state in states:
                return state
        return "cancelled" if states else "queued"

    def why(self) -> str:
        """Why deliveries do not go on, or failed; "" where they do."""
        stuck = (
            (name, state, reason)
            for name, (state, reason) in self.states.items()
            if state in ("failed", "held", "waiting") and reason
        )
        return "; ".join(f"{name}: {state} ({reason})" for name, state, reason in stuck)


def age(ms: int) -> str:
    """A duration in a few characters."""
    seconds = max(0, ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
