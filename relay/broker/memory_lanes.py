"""One lane for each store of memories: a queue, a thread, and whoever answers in it.

So no store waits for another one: a save to the local store is done while mem0 is imported.
Everything but the lane's thread runs in the loop's.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from relay.broker.batch import ClientRequest
from relay.core.errors import RelayError
from relay.protocol.broker import Json, encode, refusal

if TYPE_CHECKING:
    from relay.config.memory_spec import StoreSpec

#: Lanes beside that of the default store.
LANES_MAX = 4
#: How long a lane waits for those that must have ended first; then its jobs are refused. Seconds.
BEFORE_MAX = 20.0


class Job:
    """One request. ``agent`` and ``run`` are None for a person's. ``more``: what the answer has
    beside what the store says."""

    __slots__ = (
        *("request", "agent", "run", "now_ms", "more"),
        *("spec", "lane", "timer", "begun", "over"),
    )

    def __init__(self, request: ClientRequest, spec: StoreSpec | None, now_ms: int) -> None:
        self.request = request
        self.spec = spec
        self.agent: str | None = None
        self.run: str | None = None
        self.now_ms = now_ms
        self.more: Json = {}
        self.lane: Lane | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.begun = False
        self.over = False

    @property
    def size(self) -> int:
        """Characters of the request's line."""
        return self.request.size


class Clerk(Protocol):
    """Who answers for a store: relay.memory.desk.Desk, or a worker process."""

    def answer(self, request: Json, agent: str | None, run: str | None, now_ms: int) -> Json:
        """The answer's fields. Raises RelayError."""

    def caught_up(self, now_ms: int) -> bool:
        """Do some of what can be done while nobody asks; whether there is nothing more to do."""

    def close(self) -> None:
        """Close the store, if it is open."""

    def kill(self) -> None:
        """Give up, from any thread, as soon as possible."""


class Lane:
    """Answers its jobs in the order in which they come. ``spec`` None: the default store.

    ``make`` makes the clerk, in the lane's thread; ``done`` gets each answer, in the loop's;
    ``before`` are lanes that must have ended first. While one of them has not, although
    ``before_max`` seconds are over, each job is refused.
    """

    def __init__(
        self,
        spec: StoreSpec | None,
        make: Callable[[], Clerk],
        *,
        before: Iterable[Lane],
        done: Callable[[Job, bytes], None],
        on_end: Callable[[Lane], None],
        fault: Callable[[], RelayError],
        log: Callable[[str], None],
        before_max: float = BEFORE_MAX,
    ) -> None:
        self.spec = spec
        self.pending = 0  # jobs that are not over
        self.ended = threading.Event()
        self._make = make
        self._before = list(before)
        self._begins_by = time.monotonic() + before_max
        self._done = done
        self._on_end = on_end
        self._fault = fault
        self._log = log
        self._killed = False
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._clerk: Clerk | None = None
        threading.Thread(target=self._work, name="relay-memory", daemon=True).start()

    def put(self, job: Job) -> None:
        """One more job."""
        self._jobs.put(job)

    def close(self) -> None:
        """End after the jobs that are here."""
        self._jobs.put(None)

    def kill(self) -> None:
        """End soon: who waits is refused."""
        self._killed = True
        if self._clerk is not None:
            self._clerk.kill()

    # -- the thread

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                blocked = self._blocked()
                if job.over:
                    continue
                job.begun = blocked is None
                line = refusal(job.request.n, blocked) if blocked else self._answer(job)
                self._in_loop(partial(self._done, job, line))
        finally:
            try:
                if self._clerk is not None:
                    self._clerk.close()
            except Exception:
                self._fault()
            self.ended.set()
            self._in_loop(partial(self._on_end, self))

    def _blocked(self) -> RelayError | None:
        """Why nothing can be asked yet: a lane that must have ended first may hang for ever."""
        while self._before:
            left = max(0.0, self._begins_by - time.monotonic())
            if not self._before[0].ended.wait(left):
                return RelayError(
                    "another store of memories, which must be closed first, is busy still",
                    hint="try again in a while; if it stays so: relay broker stop",
                    code="busy",
                )
            del self._before[0]
        return None

    def _next(self) -> Job | None:
        """The next job; while there is none, vectors that are missing are made."""
        while True:
            try:
                return self._jobs.get_nowait()
            except queue.Empty:
                if not self._caught_up():
                    continue
                return self._jobs.get()

    def _caught_up(self) -> bool:
        try:
            return self._clerk is None or self._clerk.caught_up(int(time.time() * 1000))
        except RelayError as error:
            self._log(f"the memory's vectors wait: {error.message}")
        except Exception:
            self._fault()
        return True

    def _answer(self, job: Job) -> bytes:
        n = job.request.n
        try:
            if self._killed:
                raise RelayError("the broker stops", hint="try again", code="busy")
            fields = self._at_desk().answer(job.request.fields, job.agent, job.run, job.now_ms)
            return encode({"n": n, "ok": True, **fields, **job.more})
        except RelayError as error:
            return refusal(n, error)
        except Exception:
            return refusal(n, self._fault())

    def _at_desk(self) -> Clerk:
        """What answers. That it cannot be imported (relay was updated while the broker ran, say) is
        told to whoever asks, and does not end the thread."""
        if self._clerk is None:
            self._clerk = self._make()
        return self._clerk

    def _in_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return


class Lanes:
    """The lane of each store: at most LANES_MAX, beside that of the default one.

    ``make`` makes a lane, given its spec and those that must have ended before it begins.
    """

    def __init__(self, make: Callable[[StoreSpec | None, list[Lane]], Lane]) -> None:
        self._make = make
        self._open: dict[str, Lane] = {}  # the least recently used first
        self._closing: set[Lane] = set()
        self._none_left = asyncio.Event()
        self._none_left.set()

    def lane(self, spec: StoreSpec | None) -> Lane:
        """The lane of the store. Raises RelayError of the code ``busy``."""
        key = "" if spec is None else spec.fingerprint()
        lane = self._open.pop(key, None)
        if lane is None:
            lane = self._make(spec, [] if spec is None else self._make_room(spec))
            self._none_left.clear()
        self._open[key] = lane
        return lane

    def ended(self, lane: Lane) -> None:
        """A lane's thread is over."""
        self._closing.discard(lane)
        for key in [key for key, one in self._open.items() if one is lane]:
            del self._open[key]
        if not self._open and not self._closing:
            self._none_left.set()

    async def close(self, seconds: float, at_last: float) -> bool:
        """Close all; whether they end within ``seconds``. Then they are killed, and ``at_last`` is
        waited for that."""
        for key in list(self._open):
            self._retire(key)
        try:
            await asyncio.wait_for(self._none_left.wait(), seconds)
            return True
        except TimeoutError:
            for lane in self._closing:
                lane.kill()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._none_left.wait(), at_last)
        return False

    def _make_room(self, spec: StoreSpec) -> list[Lane]:
        """Close whatever must give way; the lanes that must have ended first."""
        if len(self._closing) >= LANES_MAX:
            raise _busy()
        rivals = [key for key, lane in self._open.items() if _exclude(lane.spec, spec)]
        others = [key for key in self._open if key and key not in rivals]
        if len(others) >= LANES_MAX:
            idle = next((key for key in others if not self._open[key].pending), None)
            if idle is None:
                raise _busy()
            rivals.append(idle)
        for key in rivals:
            self._retire(key)
        if len(self._closing) + sum(1 for key in self._open if key) >= LANES_MAX:
            return list(self._closing)
        return [lane for lane in self._closing if _exclude(lane.spec, spec)]

    def _retire(self, key: str) -> None:
        lane = self._open.pop(key)
        self._closing.add(lane)
        lane.close()


def _exclude(one: StoreSpec | None, other: StoreSpec) -> bool:
    """Whether two stores cannot be open at once: they keep saves in one file, or have one folder.

    Of two that are not on a server it is taken for granted that they have.
    """
    if one is None or one.backend == "local" or one.backend != other.backend:
        return False
    return one.key() == other.key() or _on_disk(one) and _on_disk(other)


def _on_disk(spec: StoreSpec) -> bool:
    store = spec.config.get("vector_store")
    return isinstance(store, dict) and not (store.get("url") or store.get("host"))


def _busy() -> RelayError:
    return RelayError(
        f"{LANES_MAX} other stores of memories are in use already", hint="try again", code="busy"
    )
