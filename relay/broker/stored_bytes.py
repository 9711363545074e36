"""What one agent can have stored: so many bytes at once, and so many a minute.

An agent that repeats itself in a loop would fill the person's disk. Each request of an agent, of
its session and of its processes costs the bytes of its line. Beyond its room a request is refused,
with the reason; only reports that end something are still taken. The room belongs to the outermost
run around the client: agents that start agents share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

from relay.broker.batch import AnyRequest, Batch, Handler, Served
from relay.broker.directory import Directory
from relay.core.bounded import BoundedDict
from relay.core.errors import RelayError
from relay.core.visible import age
from relay.protocol.broker import Json

MIB = 1024 * 1024
#: Bytes a minute, and how many minutes' worth may come at once: 3 GB a day, and 64 MiB.
STORED_MAX = 2 * MIB
MINUTES = 32
#: The cost of a request beside its line: its rows and their indexes.
ROW = 256
#: Runs whose room is remembered; the one that asked longest ago is forgotten first.
RUNS_MAX = 1000
#: Reports of a session on its deliveries: they are bounded by these, and end them.
_ALWAYS = frozenset(("hello", "agent_state", "state", "turn", "person", "read", "answer", "wait"))
#: How long ``relay status`` says that something was refused. Milliseconds.
NOTED_MS = 3_600_000
#: What a person calls what a request would have stored; "request" for all others.
_CALLED = {"send": "message", "event": "event", "hooks_ran": "hook report"}
#: relay's own notices have as much room again, so that an agent learns why it is refused.
_NOTICES = 2


class StoredBytes:
    """The room of each run. Pure; times in milliseconds. ``per_minute``: bytes; 0 for no limit."""

    def __init__(self, per_minute: int = STORED_MAX) -> None:
        self.per_minute = per_minute
        self._used: BoundedDict[str, tuple[float, int]] = BoundedDict(RUNS_MAX)
        self._lost: BoundedDict[str, _Lost] = BoundedDict(RUNS_MAX)

    def take(self, run: str, op: str, size: int, now_ms: int, *, share: int = 1) -> bool:
        """Use so many bytes of the room of ``run`` for a request; False if they do not fit.
        ``share``: a factor for that room."""
        used, at_ms = self._used.get(run, (0.0, now_ms))
        used = max(0.0, used - max(0, now_ms - at_ms) * self.per_minute / 60_000)
        fits = used + size <= share * self.per_minute * MINUTES
        self._used[run] = (used + size if fits else used, now_ms)
        if not fits:
            lost = self._lost.get(run)
            if lost is None or now_ms - lost.at_ms > NOTED_MS:
                lost = self._lost[run] = _Lost()
            lost.counts[_CALLED.get(op, "request")] += 1
            lost.size += size
            lost.at_ms = now_ms
        return fits

    def note(self, run: str, now_ms: int) -> str:
        """What of a run was refused within the last hour; "" for nothing."""
        lost = self._lost.get(run)
        if lost is None or now_ms - lost.at_ms > NOTED_MS:
            return ""
        what = ", ".join(
            f"{number:,} {name}{'' if number == 1 else 's'}" for name, number in lost.counts.items()
        )
        when = age(now_ms - lost.at_ms)
        return (
            f"lost, as too much came: {what} ({_bytes(lost.size)}), the last {when} ago; {self.why}"
        )

    @property
    def why(self) -> str:
        """The limit, in words."""
        burst = _bytes(self.per_minute * MINUTES)
        return f"one agent can have {burst} stored at once, and {_bytes(self.per_minute)} a minute"


class _Lost:
    """What of a run was refused."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.size = self.at_ms = 0


class StorageGuard:
    """Asks ``StoredBytes`` before each op of an agent."""

    def __init__(self, directory: Directory, stored: StoredBytes) -> None:
        self._directory = directory
        self._stored = stored

    def guarded(self, table: Mapping[str, Served]) -> dict[str, Served]:
        """The same ops, with the limit."""
        if not self._stored.per_minute:
            return dict(table)
        return {
            name: served
            if name in _ALWAYS
            else Served(served.op, partial(self._ask, served.handler))
            for name, served in table.items()
        }

    def note(self, run: str, now_ms: int) -> str:
        """What ``relay status`` says of a run; "" where nothing of it was refused."""
        return self._stored.note(run, now_ms)

    def _ask(self, handler: Handler, request: AnyRequest, batch: Batch) -> Json | None:
        run = self._payer(request)
        share = _NOTICES if request.fields.get("notice") else 1
        if run and not self._stored.take(
            run, request.op, request.size + ROW, batch.now_ms, share=share
        ):
            if request.op == "hooks_ran":
                return {"stored": 0}  # nobody waits for it; status shows the count
            raise RelayError(
                f"too much is stored: {self._stored.why}",
                hint="wait a minute, or put it in a file and send its path",
                code="too_much",
            )
        answer: Json | None = handler(request, batch)
        return answer

    def _payer(self, request: AnyRequest) -> str:
        """The outermost run around the client; "" for the person."""
        if above := self._directory.ancestry_of(request.client).above:
            return above[-1]
        try:
            member = self._directory.speaker(request)
        except RelayError:  # the op itself says what is wrong
            return ""
        return "" if member is None else member.record.run or ""


def _bytes(size: float) -> str:
    """``size`` bytes in the largest unit that it fills: "512 B", "2.4 KiB", "4 MiB"."""
    if size < 1024:
        return f"{size:.0f} B"
    return f"{size / 1024:.4g} KiB" if size < MIB else f"{size / MIB:.4g} MiB"
