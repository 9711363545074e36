"""Who speaks: decides from a process's ancestors whether it belongs to a wrapped run. Pure.

A session names its run's monitor when it registers. It is believed only if the kernel confirms it:
the monitor is the agent's parent, and the same pump started it and the session. Every process below
a monitor belongs to that run; the nearest monitor counts. Nobody can register a process above
itself: a session and its monitor must be children of one process, and only ``relay wrap`` has both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from relay.core.bounded import BoundedDict
from relay.core.errors import RelayError
from relay.core.processes import MARKS, SESSION, Process

#: Runs whose monitors are remembered. The oldest is forgotten first and is *unregistered* then.
RUNS_MAX = 4096

Key = tuple[int, str]


class Membership(Enum):
    """Where a process stands."""

    OUTSIDE = "outside"  # below no run: the person, or a program of theirs
    RUN = "run"  # below a registered run
    UNREGISTERED = "unregistered"  # below one that is not registered here, or not yet
    UNKNOWN = "unknown"  # it ended before it was looked at, or its ancestors are hidden


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a process stands; ``run`` is the id of a registered one."""

    place: Membership
    run: str = ""


@dataclass(frozen=True, slots=True)
class Ancestry:
    """What the kernel says of a client by its ancestors: see the methods of ``WrappedRuns``."""

    standing: Standing
    above: Sequence[str]
    served_by: str
    is_called: bool


@dataclass(slots=True)
class _Run:
    pump: Key
    session: Key
    monitor: Key


_OUTSIDE, _UNREGISTERED = Standing(Membership.OUTSIDE), Standing(Membership.UNREGISTERED)
_UNKNOWN = Standing(Membership.UNKNOWN)


class WrappedRuns:
    """The runs whose monitors are known. ``around``: the marked ancestors of the broker itself,
    which is the process ``broker``."""

    def __init__(self, around: Sequence[Process] = (), broker: Process | None = None) -> None:
        self._broker = None if broker is None else broker.key
        # In a RELAY_HOME of its own, whose broker it has started itself, an agent counts as the
        # person.
        self._around = frozenset(process.key for process in around)
        self._runs: BoundedDict[str, _Run] = BoundedDict(RUNS_MAX)
        self._monitors: BoundedDict[Key, str] = BoundedDict(RUNS_MAX)
        self._leaders: BoundedDict[int, str] = BoundedDict(RUNS_MAX)  # by the pid of the session
        self._sessions: BoundedDict[Key, str] = BoundedDict(RUNS_MAX)
        #: Counts registrations: what was found out of a client before holds no longer.
        self.changes = 0

    def ancestry(self, ancestors: Sequence[Process]) -> Ancestry:
        """All of it; it holds until the next registration."""
        above = tuple(self.above(ancestors))
        called = self.is_called(ancestors)
        return Ancestry(self.standing(ancestors), above, self.served_by(ancestors), called)

    def standing(self, ancestors: Sequence[Process]) -> Standing:
        """Where the first of ``ancestors`` stands; see relay.core.processes for their order."""
        if not ancestors:
            return _UNKNOWN
        for process in ancestors:
            if process.is_marked or not MARKS:
                run = self._monitors.get(process.key)
                if run is not None:
                    return Standing(Membership.RUN, run)
                if process.is_marked and process.key not in self._around:
                    return _UNREGISTERED
        return self._by_session(ancestors)

    def _by_session(self, ancestors: Sequence[Process]) -> Standing:
        """The standing by the terminal's session, where orphans do not stay below the monitor."""
        leader = ancestors[0].session
        run = self._leaders.get(leader)
        if run is None or any(process.pid == leader for process in ancestors):
            return _OUTSIDE
        return Standing(Membership.RUN, run)

    def above(self, ancestors: Sequence[Process]) -> list[str]:
        """The registered runs below which the first of ``ancestors`` stands, the nearest first."""
        runs = (self._monitors.get(process.key) for process in ancestors)
        return [run for run in runs if run is not None]

    def served_by(self, ancestors: Sequence[Process]) -> str:
        """The run whose session started the first of ``ancestors``, as it calls the person's
        programs; "" for none."""
        for process in ancestors[1:]:
            run = self._sessions.get(process.key)
            if run is not None:
                return run
        return ""

    def is_called(self, ancestors: Sequence[Process]) -> bool:
        """Whether a session or the broker has started the first of ``ancestors``: a handler, a hook
        or a worker, which is the person's program but acts on the words of others."""
        return bool(self.served_by(ancestors)) or any(
            process.name == SESSION or process.key == self._broker for process in ancestors[1:]
        )

    def is_proven(self, run: str) -> bool:
        """Whether the monitor of ``run`` is known, so that the kernel decides who belongs to it."""
        return run in self._runs

    def register(
        self, run: str, session: Sequence[Process], agent: Sequence[Process], *, known: bool
    ) -> None:
        """Register ``run``: its ``session`` and its ``agent``, each with its ancestors.

        ``known``: the run has registered before. Raises RelayError unless its session asks.
        """
        self.changes += 1
        before = self._runs.get(run)
        if before is not None:
            if not session or (
                session[0].key != before.session
                and (len(session) < 2 or session[1].key != before.pump)
            ):
                raise _not_its_session()
            before.session = session[0].key
            self._sessions[session[0].key] = run
            return
        monitor = _monitor(session, agent)
        if monitor is None:
            # Without proof: its agent has ended, or this system cannot tell.
            if known and self.standing(session).place is not Membership.OUTSIDE:
                raise _not_its_session()
            return
        if monitor.key in self._monitors:
            raise _not_its_session()
        self._monitors[monitor.key] = self._leaders[monitor.pid] = run
        self._runs[run] = _Run(session[1].key, session[0].key, monitor.key)
        self._sessions[session[0].key] = run


def _monitor(session: Sequence[Process], agent: Sequence[Process]) -> Process | None:
    """The monitor, if session and agent are of one run: then both have the same parent."""
    if len(session) < 2 or len(agent) < 3:
        return None
    monitor, pump = agent[1], agent[2]
    if pump.key != session[1].key or pump.pid <= 1:
        return None
    return monitor if monitor.is_marked or not MARKS else None


def _not_its_session() -> RelayError:
    return RelayError(
        "only the session that relay started for a run can register it", code="forbidden"
    )
