"""Who speaks: decides from a process's ancestors whether it belongs to a wrapped run. Pure.

A file of its own, because who may do what hangs on these few lines. A run's monitor becomes known
when its session registers, and is believed only if the kernel says so: the agent's parent, started
by the same pump as the session. Whatever stands below it is that agent, and the nearest run wins.
Nobody can register a process above itself: a session and the monitor that it names must be
children of one process, and only ``relay wrap`` has both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from relay.core.bounded import BoundedDict
from relay.core.errors import RelayError
from relay.core.processes import MARKS, SESSION, Process

#: Runs whose monitors are known; the longest known is forgotten first, and then is *unregistered*.
RUNS_MAX = 4096

Key = tuple[int, str]


class Membership(Enum):
    """Where a process stands."""

    OUTSIDE = "outside"  # below no run: the person, or what the person lets run
    RUN = "run"  # below a run that is registered
    UNREGISTERED = "unregistered"  # below one that is not, or not yet, or with another RELAY_HOME
    UNKNOWN = "unknown"  # it had gone before it was looked at, or nothing can be said of it


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a process stands; ``run`` is the id of a registered one."""

    place: Membership
    run: str = ""


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
        # A broker that an agent started for itself, in a RELAY_HOME of its own, is the person's
        # there as far as that agent is the person.
        self._around = frozenset(process.key for process in around)
        self._runs: BoundedDict[str, _Run] = BoundedDict(RUNS_MAX)
        self._monitors: BoundedDict[Key, str] = BoundedDict(RUNS_MAX)
        self._leaders: BoundedDict[int, str] = BoundedDict(RUNS_MAX)  # by pid: of sessions
        self._sessions: BoundedDict[Key, str] = BoundedDict(RUNS_MAX)

    def standing(self, ancestors: Sequence[Process]) -> Standing:
        """Where the first of ``ancestors`` stands; they are as relay.core.processes has them."""
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
        """Below no monitor: where orphans leave it, the session of the agent's terminal tells."""
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
        """The run whose session started the first of ``ancestors``, a program of the person's that
        was called for it; "" for none."""
        for process in ancestors[1:]:
            run = self._sessions.get(process.key)
            if run is not None:
                return run
        return ""

    def is_called(self, ancestors: Sequence[Process]) -> bool:
        """Whether a session or the broker has started the first of ``ancestors``: a handler, a
        hook, a worker. It is the person's program, and acts on what others say."""
        return bool(self.served_by(ancestors)) or any(
            process.name == SESSION or process.key == self._broker for process in ancestors[1:]
        )

    def is_proven(self, run: str) -> bool:
        """Whether the monitor of ``run`` is known, so that the kernel says who belongs to it."""
        return run in self._runs

    def register(
        self, run: str, session: Sequence[Process], agent: Sequence[Process], *, known: bool
    ) -> None:
        """The ``session`` of ``run`` registers, and names its ``agent``; each with its ancestors.

        ``known``: the broker knows the run of before. Raises RelayError when another process than
        its session has asked.
        """
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
    """The monitor, if session and agent are of one run: its parent is the session's as well."""
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
