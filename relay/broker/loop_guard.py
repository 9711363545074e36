"""The loop guard: agents that only answer each other stop and wait for the person. Pure.

Two agents that thank each other can run up a bill overnight. Every message of an agent's is one hop
further than what made it speak; a person's word begins again at nought. A chain that is too long,
or a pair that exchanges too much, is *parked*: stored, shown to the person, and offered to nobody
before the person lets it go on.
"""

from __future__ import annotations

from collections import OrderedDict, deque

#: Messages that may follow from one another without a person.
HOPS_MAX = 20
#: Messages between two agents, in both directions together, within ``RATE_WINDOW_MS``.
RATE_MAX = 60
RATE_WINDOW_MS = 60_000
#: Pairs whose messages are counted; the one that was quiet longest is forgotten first.
PAIRS_MAX = 4096

Pair = tuple[str, str]


def pair_of(one: str, other: str) -> Pair:
    """The same for both directions."""
    a, b = one.lower(), other.lower()
    return (a, b) if a <= b else (b, a)


class LoopGuard:
    """Decides which messages between agents are parked. Times in milliseconds.

    ``hops_max`` and ``rate_max`` are the limits; 0 for none.
    """

    def __init__(self, hops_max: int = HOPS_MAX, rate_max: int = RATE_MAX) -> None:
        self._hops_max = hops_max
        self._rate_max = rate_max
        self._times: OrderedDict[Pair, deque[int]] = OrderedDict()
        self._closed: dict[Pair, str] = {}

    def check(self, sender: str, to: str, hops: int, now_ms: int) -> str | None:
        """Why this message must wait for the person; None when it may go, which then counts."""
        pair = pair_of(sender, to)
        if pair in self._closed:
            return self._closed[pair]
        if self._hops_max and hops > self._hops_max:
            return f"{hops} messages followed from one another without a person"
        if not self._rate_max:
            return None
        times = self._times.pop(pair, None) or deque(maxlen=self._rate_max)
        self._times[pair] = times
        if len(self._times) > PAIRS_MAX:
            self._times.popitem(last=False)
        if len(times) == self._rate_max and now_ms - times[0] < RATE_WINDOW_MS:
            reason = f"more than {self._rate_max} messages a minute between {sender} and {to}"
            self.close(sender, to, reason)
            return reason
        times.append(now_ms)
        return None

    def uncount(self, sender: str, to: str, now_ms: int) -> None:
        """A message that was let go at ``now_ms`` has not been stored: it does not count."""
        times = self._times.get(pair_of(sender, to))
        if times and times[-1] == now_ms:
            times.pop()

    def close(self, one: str, other: str, reason: str) -> None:
        """Park everything between these two from now on."""
        self._closed[pair_of(one, other)] = reason

    def reopen(self, one: str, other: str) -> None:
        """The person lets these two go on; they begin to count anew."""
        pair = pair_of(one, other)
        self._closed.pop(pair, None)
        self._times.pop(pair, None)
