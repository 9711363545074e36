"""The workers of the trusted configurations (relay.features.personas.worker_main), as the broker
sees them.

A worker is started when its configuration is first needed, and again after its end, though not
more than ``STARTS_MAX`` times in ``START_SPAN`` seconds. When it does not answer in time it is
killed; what it was asked then fails, and who asked decides whether to ask the next one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from relay.broker.service_process import ServiceProcess, Starts
from relay.broker.trusted_configs import TrustedConfig
from relay.core.child_process import python
from relay.core.environment import own_environment
from relay.core.errors import RelayError, error_fields
from relay.core.log import Log
from relay.core.paths import Home
from relay.protocol.broker import Json, error_from

#: What starts a worker.
WORKER = python("relay.features.personas.worker_main")
#: Starts of one configuration's worker within START_SPAN seconds.
STARTS_MAX, START_SPAN = 5, 60.0
#: Seconds that a worker has to load its configuration, and without a word of it while it is asked.
START_LIMIT, SILENCE_MAX = 30.0, 20.0
#: Seconds without a question after which a worker is ended.
IDLE = 600.0
#: Seconds that workers have to end when the broker stops.
CLOSE_DEADLINE = 3.0

#: Answers what a worker asks: (its configuration's key, the question) -> the answer.
Asked = Callable[[str, Json], Awaitable[Json]]


class RouteAnswer(NamedTuple):
    """What a worker said of one function. ``latency_us``: microseconds."""

    name: str
    latency_us: int
    result: Json | None
    error: str | None


class EventAnswer(NamedTuple):
    """What a worker said of one event; ``quiet``: the functions that said nothing; ``hung``: those
    that were given up and still run."""

    started_ms: int
    said: list[RouteAnswer]
    quiet: str  # JSON of microseconds by name
    hung: Sequence[str] = ()

    @classmethod
    def of(cls, given: Json) -> EventAnswer:
        """Read it. Raises TypeError or ValueError: the code that runs there may write anything."""
        said = [RouteAnswer(*one) for one in given["said"]]
        found = cls(given["started_ms"], said, given["quiet"], given["hung"])
        for one in found.said:
            texts = isinstance(one.name, str) and (one.error is None or isinstance(one.error, str))
            if not texts or type(one.latency_us) is not int:
                raise ValueError("not an evaluation")
        hung = isinstance(found.hung, list) and all(isinstance(one, str) for one in found.hung)
        if type(found.started_ms) is not int or type(found.quiet) is not str or not hung:
            raise ValueError("not an answer")
        return found


class ConfigWorker:
    """One running worker. Raises OSError when it cannot be started."""

    def __init__(
        self,
        config: TrustedConfig,
        home: Home,
        command: Sequence[str],
        asked: Asked,
        ended: Callable[[ConfigWorker, str], None],
    ) -> None:
        self.config = config
        #: What it said when it had loaded its configuration; None until then.
        self.ready: Json | None = None
        #: Of its route functions, by their names, as it said.
        self.priorities: dict[str, int] = {}
        #: Why it cannot use its configuration.
        self.problem = ""
        #: A function that was given up still runs in it: it is asked nothing more.
        self.spent = False
        self.used = time.monotonic()
        self._asked = asked
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        folder = os.path.dirname(config.path)
        self._process = ServiceProcess(
            [*command, home.root, config.path, config.sha256],
            cwd=folder,
            log=os.path.join(home.logs, f"worker-{config.key}.log"),
            received=self._received,
            ended=partial(ended, self),
            env=own_environment(folder),
        )
        self._process.kill_after("start", START_LIMIT)

    @property
    def idle(self) -> bool:
        """Whether nothing that it was asked waits for an answer."""
        return self._process.idle

    def ask(self, fields: Json) -> asyncio.Future[Json]:
        """Ask it. The future gets the answer, or a RelayError: ServiceEnded where there will be
        none."""
        number = next(self._numbers)
        self.used = time.monotonic()
        return self._process.ask(number, _line({"id": number, **fields}))

    def finish(self) -> None:
        """Nothing more will be asked; after CLOSE_DEADLINE it is killed."""
        self._process.finish()
        self._process.kill_after("end", CLOSE_DEADLINE)

    async def finish_answered(self) -> None:
        """End it once it has answered, or SILENCE_MAX is over: what it sends is not cut off."""
        await self._process.answered(SILENCE_MAX)
        self.finish()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    async def close(self) -> None:
        """End it; after CLOSE_DEADLINE it is killed."""
        await self._process.close(CLOSE_DEADLINE)

    # -- what it says

    def _received(self, line: bytes) -> tuple[int, object] | None:
        said = json.loads(line)
        if not isinstance(said, dict):
            raise ValueError("not an object")
        if isinstance(said.get("ready"), dict):
            self.ready = said["ready"]
            self.priorities = {one["name"]: one["priority"] for one in said["ready"]["routes"]}
            self._process.lift("start")
        elif "failed" in said:
            self.problem = str(said["failed"])
        elif "ask" in said:
            self.start(self._answer(said))
        if self.ready is not None:  # from then on it tells that it lives
            self._process.kill_after("silence", SILENCE_MAX)
        if "id" not in said:
            return None
        error = said.get("error")
        return int(said["id"]), error_from(error) if isinstance(error, dict) else said

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done for it."""
        task = self._loop.create_task(work)
        self._tasks.add(task)  # a loop holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, said: Json) -> None:
        try:
            answer = await self._asked(self.config.key, said)
        except RelayError as error:
            answer = {"error": error_fields(error)}
        self._process.send(_line({"ask": said["ask"], **answer}))


class ConfigWorkers:
    """The workers that run, by their configurations' keys."""

    def __init__(
        self,
        home: Home,
        *,
        log: Log,
        asked: Asked,
        command: Sequence[str] = WORKER,
    ) -> None:
        self._home = home
        self._log = log
        self._asked = asked
        self._command = command
        self._running: dict[str, ConfigWorker] = {}
        self._leaving: set[ConfigWorker] = set()
        self._starts: dict[str, Starts] = {}
        #: Why the configuration at a path cannot be used, as its last worker said.
        self.problems: dict[str, str] = {}
        self._closed = False

    def get(self, config: TrustedConfig) -> ConfigWorker:
        """The worker of ``config``; it is started if need be. Raises RelayError when it cannot be
        now (of the code ``busy``: later it may)."""
        worker = self._running.get(config.key)
        if worker is not None and worker.config.sha256 == config.sha256:
            return worker
        if worker is not None:
            self._retire(worker)
        if self._closed:  # who hears of the end of one must not have the next one started
            raise RelayError("the broker stops", code="busy")
        if not self._starts.setdefault(config.key, Starts(STARTS_MAX)).may(START_SPAN):
            raise RelayError(
                f"the worker of {config.path} ended {STARTS_MAX} times within a minute",
                hint=f"see worker-{config.key}.log in {self._home.logs}",
                code="busy",
            )
        try:
            worker = ConfigWorker(config, self._home, self._command, self._asked, self._on_end)
        except OSError as error:
            raise RelayError(
                f"the worker of {config.path} cannot be started: {error.strerror}", code="busy"
            ) from error
        self._running[config.key] = worker
        self.problems.pop(config.path, None)
        return worker

    def running(self) -> list[ConfigWorker]:
        """Those that run."""
        return list(self._running.values())

    def end(self, worker: ConfigWorker) -> None:
        """End one whose configuration may not run any more, or is another one now."""
        if self._running.get(worker.config.key) is worker:
            self._retire(worker)

    def replace(self, worker: ConfigWorker) -> None:
        """Have another one asked from now on; this one ends when it has answered."""
        if self._running.get(worker.config.key) is worker:
            del self._running[worker.config.key]
            self._leaving.add(worker)
            worker.start(worker.finish_answered())

    def end_idle(self) -> None:
        """End those that were asked nothing for ``IDLE`` seconds and have no channels to serve."""
        since = time.monotonic() - IDLE
        for worker in self.running():
            serves = worker.ready is None or worker.ready.get("adapters")
            if worker.idle and worker.used < since and not serves:
                self._retire(worker)

    async def close(self) -> None:
        """End all of them; after CLOSE_DEADLINE they are killed."""
        self._closed = True
        for worker in self.running():
            self._retire(worker)
        await asyncio.gather(*(worker.close() for worker in self._leaving))

    def _retire(self, worker: ConfigWorker) -> None:
        del self._running[worker.config.key]
        self._leaving.add(worker)
        worker.finish()

    def _on_end(self, worker: ConfigWorker, how: str) -> None:
        key = worker.config.key
        if worker in self._leaving:
            self._leaving.discard(worker)
        elif self._running.get(key) is worker:
            del self._running[key]
            self._log.write(worker.problem or f"the worker of {worker.config.path} {how}")
        if worker.problem:
            self.problems[worker.config.path] = worker.problem


def _line(fields: Json) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
