"""The memory service: one process beside the broker that started it, one thread for each index.

It reads requests as lines of JSON on the socket that is its standard input::

    {"id": int, "until": seconds (time.monotonic), "agent": str|null, "run": str|null,
     "project": str|null, "now_ms": int, "request": {"n", "op", …}}

and writes, in whatever order, a line for each: the id, a blank, and the line that the broker's
client gets. What has not begun by ``until`` is not done; the broker has answered it. A store that
hangs holds up its own requests only; after HANG_MAX seconds the process ends, and the broker starts
another, which gets again what was not answered. It ends when the socket does.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from relay.core.child_process import give_up, take_input
from relay.core.errors import RelayError, StorageError
from relay.core.paths import Home
from relay.features.memory.extraction import Extractor
from relay.features.memory.ops import MEMORY_EXTRACT, MEMORY_STATS
from relay.features.memory.requests import Json, MemoryOps, MemoryRequest
from relay.features.memory.spec import StoreSpec
from relay.features.memory.store_access import StoreAccess
from relay.protocol.broker import encode, refusal

#: Stores that may be open; another one is refused.
STORES_MAX = 16
#: Seconds between two looks for what is new for an index, while nobody asks.
APPLY_EVERY = 15.0
#: Seconds for which one request may hold up its store. Then the process ends, to be started anew.
HANG_MAX = 120.0
#: Seconds for which what was asked may go on once the broker is gone.
LAST_MOMENTS = 20.0

_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(slots=True)
class StoreJob:
    """One request to a store, and the future that gets the answer's fields or a RelayError."""

    spec: StoreSpec
    ask: MemoryRequest
    until: float
    answer: Future[Mapping[str, object]] = field(default_factory=Future)


class StoreThread:
    """A thread that answers the requests of one store in the order in which they come."""

    def __init__(self, home: Home, extractor: Extractor) -> None:
        self.jobs: queue.SimpleQueue[StoreJob | None] = queue.SimpleQueue()
        #: When what is in hand was begun (monotonic): a request, or work for later ones. Or None.
        self.begun: float | None = None
        self._home = home
        self._extractor = extractor
        self._access: StoreAccess | None = None
        self._fingerprint = ""
        self._thread = threading.Thread(target=self._work, name="memory-store", daemon=True)
        self._thread.start()

    def retire(self) -> None:
        """Close the store after the requests that are here, then end."""
        self.jobs.put(None)

    def join(self, seconds: float) -> None:
        """Wait until it has ended, at most ``seconds``."""
        self._thread.join(seconds)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            if time.monotonic() <= job.until:
                self.begun = time.monotonic()
                self._do(job)
                self.begun = None
        self._close()

    def _next(self) -> StoreJob | None:
        """The next request; while there is none, what is new is made findable by meaning."""
        while True:
            try:
                return self.jobs.get_nowait()
            except queue.Empty:
                if not self._caught_up():
                    continue
            try:
                return self.jobs.get(timeout=APPLY_EVERY if self._access is not None else None)
            except queue.Empty:
                continue

    def _caught_up(self) -> bool:
        self.begun = time.monotonic()
        try:
            return self._access is None or self._access.caught_up()
        except BaseException:  # also SystemExit: a store may be anybody's code
            traceback.print_exc()
            return True
        finally:
            self.begun = None

    def _do(self, job: StoreJob) -> None:
        try:
            ops = MemoryOps(self._opened(job.spec), job.spec.masked(), self._home.memory)
            answer = ops.answer(job.ask)
            if job.ask.fields["op"] == MEMORY_STATS:
                answer = {**answer, "extractions": self._extractor.stats()}
            job.answer.set_result(answer)
        except RelayError as error:
            job.answer.set_exception(error)
        except BaseException as error:  # as above
            job.answer.set_exception(fault(error))

    def _opened(self, spec: StoreSpec) -> StoreAccess:
        """The store; anew when it is asked for with another embedder, or other keys."""
        if self._access is None or self._fingerprint != spec.fingerprint():
            self._close()
            self._access = StoreAccess(spec, self._home)
            self._fingerprint = spec.fingerprint()
        return self._access

    def _close(self) -> None:
        access, self._access = self._access, None
        try:
            if access is not None:
                access.close()
        except BaseException:  # as above
            traceback.print_exc()


class MemoryServer:
    """Gives each request to its store's thread, and the broker its answer."""

    def __init__(self, home: Home, channel: socket.socket) -> None:
        self._home = home
        self._channel = channel
        self._sending = threading.Lock()
        self._choosing = threading.Lock()
        self._stores: dict[str, StoreThread] = {}
        self._extractor = Extractor(home, self._ask)

    def run(self) -> None:
        """Answer requests until the broker has no more; then finish those, and close the stores."""
        threading.Thread(target=self._watch, name="memory-watch", daemon=True).start()
        self._extractor.start()
        try:
            for line in self._channel.makefile("rb"):
                self._take(json.loads(line))
        except (OSError, ValueError):
            pass  # the broker was killed, in the middle of a line maybe
        self._extractor.close()
        end = time.monotonic() + LAST_MOMENTS
        with self._choosing:
            left = list(self._stores.values())
        for store in left:
            store.retire()
        for store in left:
            store.join(max(0.0, end - time.monotonic()))

    def _take(self, asked: Json) -> None:
        request = asked["request"]
        answered = partial(self._answered, asked["id"], request["n"])
        whose = (asked["agent"], asked["run"], asked["now_ms"], asked["project"])
        ask = MemoryRequest(request, *whose)
        try:
            if request["op"] == MEMORY_EXTRACT:
                self._extractor.take(ask).add_done_callback(answered)
            else:
                job = StoreJob(StoreSpec.from_json(request.get("store")), ask, asked["until"])
                job.answer.add_done_callback(answered)
                self._put(job)
        except RelayError as error:
            self._send(asked["id"], refusal(request["n"], error))
        except Exception as error:
            self._send(asked["id"], refusal(request["n"], fault(error)))

    def _ask(self, request: Json, agent: str, run: str) -> Mapping[str, object]:
        """The answer to a request of the service's own, for an agent's project. Raises
        RelayError."""
        now_ms = int(time.time() * 1000)
        ask = MemoryRequest(request, agent, run, now_ms, request.get("cwd"))
        job = StoreJob(StoreSpec.from_json(request.get("store")), ask, float("inf"))
        self._put(job)
        return job.answer.result()

    def _put(self, job: StoreJob) -> None:
        """Queue the request for its store. Raises RelayError of the code ``busy``."""
        key = thread_key(job.spec)
        with self._choosing:
            store = self._stores.get(key)
            if store is None:
                if len(self._stores) >= STORES_MAX and job.spec != StoreSpec():
                    raise RelayError(
                        f"{STORES_MAX} stores of memories are in use already",
                        hint="relay broker stop closes them",
                        code="busy",
                    )
                store = StoreThread(self._home, self._extractor)
                self._stores[key] = store
            store.jobs.put(job)

    def _answered(self, id_: int, n: int, answer: Future[Mapping[str, object]]) -> None:
        try:
            line = encode({"n": n, "ok": True, **answer.result()})
        except RelayError as error:
            line = refusal(n, error)
        except Exception as error:
            line = refusal(n, fault(error))
        self._send(id_, line)

    def _send(self, id_: int, line: bytes) -> None:
        try:
            with self._sending:
                self._channel.sendall(b"%d " % id_ + line)
        except OSError:
            return  # the broker is gone: run() sees it, too

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(HANG_MAX / 20):
            with self._choosing:
                begun = [store.begun for store in self._stores.values()]
            if any(at is not None and time.monotonic() - at > HANG_MAX for at in begun):
                print(f"a store has not answered for {HANG_MAX:g} s: the service ends", flush=True)
                give_up()


def thread_key(spec: StoreSpec) -> str:
    """Which thread answers: indexes with the same one are never open at once.

    That is one index whatever embeds and whichever key opens it; and any two of a backend that are
    not on a server, for they may have one folder. All share the store's files without harm.
    """
    if spec.backend == "local":
        return spec.fingerprint()
    store = spec.config.get("vector_store")
    if isinstance(store, dict) and not store.get("url"):
        return spec.backend
    return spec.key()


def fault(error: BaseException) -> StorageError:
    """What is told of an error that nobody has foreseen; the log gets its traceback."""
    traceback.print_exception(error)
    return StorageError(
        f"the store met a fault: {type(error).__name__}: {error}"[:1000],
        hint="the log of the memory's process in RELAY_HOME/log says more",
    )


def main() -> None:
    """Serve the broker at the other end of standard input, then end with all that was started
    here. Does not return."""
    try:
        _keep_local(os.environ)
        channel = take_input()
        MemoryServer(Home(sys.argv[1]), channel).run()
    except BaseException:
        traceback.print_exc()
    # Threads and children of a store may live on; nothing of them is needed any more.
    give_up()


def _keep_local(environ: Any) -> None:
    """Keep requests to this machine, and the keys in them, from the user's proxy."""
    given = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    hosts = [host for host in given.split(",") if host.strip()]
    value = "*" if given.strip() == "*" else ",".join([*hosts, *_LOCAL_HOSTS])
    environ["no_proxy"] = environ["NO_PROXY"] = value
    # More threads than one cost time rather than save it, on vectors of this size.
    environ.setdefault("OPENBLAS_NUM_THREADS", "1")
