"""The workers of automations (relay.features.automations.automation_main), as the broker sees them.

They belong to no automation: whichever is free takes the next run, one that has its source first.
A run that is not over at its deadline is ended with its worker and all that it has started; what
a worker says that ends is told as the error of the run that it had, and of no other.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay.broker.service_process import ServiceProcess
from relay.core import json_text
from relay.core.child_process import python
from relay.core.environment import own_environment
from relay.core.errors import RelayError, UsageError
from relay.core.log import Log
from relay.core.paths import Home
from relay.directive.escape import clean
from relay.features.automations.definition import AutomationResult, Definition
from relay.features.automations.settings import WORKERS
from relay.features.personas.worker import ERROR_MAX, STATE_MAX
from relay.features.personas.workers import START_LIMIT
from relay.protocol.broker import Json, error_from

#: What starts one.
WORKER = python("relay.features.automations.automation_main")
#: Workers beside them for what the person waits for: files that are loaded or tried out.
TRIED_MAX = 2
#: Seconds without a run after which a worker ends.
IDLE = 300.0
#: Seconds for a source to be loaded, and for a worker to end what it has started when it must end.
LOAD_DEADLINE, ENDING = 10.0, 5.0
#: Sources that one worker loads: then a new one takes its place.
SOURCES_MAX = 200


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """How one run of an automation ended. ``log``: what it printed and logged. ``state``: what it
    changed; None for what it removed."""

    started_ms: int
    latency_us: int
    result: AutomationResult | None = None
    error: str | None = None
    llm_calls: int = 0
    log: str = ""
    state: dict[str, Any] = field(default_factory=dict)


class _Job:
    """One question that waits for a worker, or is with one."""

    def __init__(self, question: Json, source: Callable[[], str]) -> None:
        self.question = question
        self.source = source
        self.deadline = float(question["deadline"])
        #: Which source it is of; None for one that is only loaded.
        self.key = (question["automation"], question["version"]) if "event" in question else None
        #: The person waits for it: it is loaded, or run to see what it would do.
        self.is_tried = self.key is None or bool(question.get("dry"))
        self.began = time.monotonic()
        self.began_ms = time.time_ns() // 1_000_000
        self.answer: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self.log = ""  # what it has printed


class _Worker:
    """One process. ``changed`` is called when it is free, or has ended (``gone``)."""

    def __init__(
        self, home: Home, command: Sequence[str], changed: Callable[[_Worker], None]
    ) -> None:
        self.job: _Job | None = None
        self.is_tried = False  # as its last job
        self.sources: set[object] = set()  # the keys of the jobs that it has had
        self.ready = self.leaving = self.gone = False
        self._changed = changed
        self._numbers = itertools.count(1)
        self._number = 0
        self._loop = asyncio.get_running_loop()
        env = own_environment(home.root)
        # It runs for many projects, in whose folders agents write: nothing is imported from there.
        env.pop(b"PYTHONPATH", None)
        self._process = ServiceProcess(
            [*command, home.root],
            cwd=home.root,
            log=os.path.join(home.logs, "automations.log"),
            received=self._received,
            ended=self._on_end,
            env=env,
        )
        self._process.kill_after("start", START_LIMIT, "did not start")
        self._idle: asyncio.TimerHandle | None = None

    def begin(self, job: _Job) -> None:
        """Give it a question; it has none."""
        self.job, self.is_tried = job, job.is_tried
        if self.ready:
            self._send(job)

    def end(self, why: str = "") -> None:
        """End it, with all that it has started; at once where there is a reason."""
        self.leaving = True
        self._process.finish()
        self._process.kill_after("end", 0 if why else ENDING, why)

    async def close(self) -> None:
        """Wait for its end, which it was told of."""
        await self._process.close(ENDING)

    def _send(self, job: _Job) -> None:
        self._number = next(self._numbers)
        job.began, job.began_ms = time.monotonic(), time.time_ns() // 1_000_000
        known = job.key is not None and job.key in self.sources
        try:
            source = None if known else job.source()
        except RelayError as error:
            self._settle(error)
            return
        line = json.dumps({"id": self._number, **job.question, "source": source})
        self._process.take_printed()  # until now it is nothing of this run
        self._process.send(line.encode() + b"\n")
        if self._idle is not None:
            self._idle.cancel()
        late = f"did not end within {job.deadline:g} s"
        self._process.kill_after("deadline", job.deadline, late)

    def _received(self, line: bytes) -> None:
        """A line of the process. Raises ValueError for what is none: it is killed then."""
        said = json_text.loads(line.decode())
        if not isinstance(said, dict):
            raise ValueError("not an object")
        if self.leaving or self._process.killed:
            return
        if "ready" in said and not self.ready:
            self.ready = True
            self._process.lift("start")
            if self.job is not None:
                self._send(self.job)
            return
        if self.job is None or said.get("id") != self._number:
            raise ValueError("nobody has asked")
        self._process.lift("deadline")
        self.sources.add(self.job.key or object())
        if said.get("last") or len(self.sources) >= SOURCES_MAX:
            self.end()
        else:
            self._idle = self._loop.call_later(IDLE, self.end)
        self._settle(said)

    def _settle(self, said: Json | RelayError) -> None:
        job, self.job = self.job, None
        if job is not None:
            job.log = clean(str(self._process.take_printed()))
        if job is not None and not job.answer.done():
            if isinstance(said, RelayError):
                job.answer.set_exception(said)
            else:
                job.answer.set_result(said)
        self._changed(self)

    def _on_end(self, how: str) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self.gone = True
        code, why = "worker_ended" if self.ready else "busy", self._process.why
        told = f"it {why}, so it was ended" if why else f"its worker {how}"
        self._settle(RelayError(told, code=code, hint="see automations.log"))


class AutomationPool:
    """All of them. Belongs to the broker's loop."""

    def __init__(
        self,
        home: Home,
        *,
        log: Log,
        workers: int = WORKERS,
        command: Sequence[str] = WORKER,
    ) -> None:
        self._home = home
        self._log = log
        self._most = workers
        self._command = command
        self._workers: list[_Worker] = []
        self._tried: deque[_Job] = deque()  # what is loaded, or run to see what it would do
        self._urgent: deque[_Job] = deque()
        self._others: deque[_Job] = deque()
        self._closed = False

    async def load(self, path: str, source: str) -> Definition:
        """The definition of the automation whose file, at ``path``, is ``source``.

        Raises RelayError.
        """
        question: Json = {"do": "load", "path": path, "deadline": LOAD_DEADLINE}
        try:
            said = await self._ask(_Job(question, lambda: source), urgent=True)
        except RelayError as error:
            if error.code != "worker_ended":
                raise
            why = f"{path} cannot be loaded: {error.message}"
            raise UsageError(why, hint=error.hint) from error
        if isinstance(refused := said.get("error"), dict):
            raise error_from(refused)
        return Definition.of(said.get("definition"))

    async def run(
        self, question: Json, source: Callable[[], str], *, urgent: bool = False
    ) -> RunAnswer:
        """Run an automation: ``question`` as relay.features.personas.worker has it, but for ``id``,
        ``do`` and ``source``, which is called where the worker does not have it. ``urgent`` ones go
        first.

        Whatever happens to it is its answer. Raises RelayError where it was not begun: of the code
        ``busy`` (later it may be), or ``stopping``.
        """
        job = _Job({"do": "run", **question}, source)
        try:
            said = await self._ask(job, urgent=urgent)
            return _answer(said, job)
        except RelayError as error:
            if error.code != "worker_ended":
                raise
            told = error.message
        except (KeyError, TypeError, ValueError):
            told = "its worker answered nonsense"
        latency_us = int((time.monotonic() - job.began) * 1e6)
        return RunAnswer(job.began_ms, latency_us, error=told, log=job.log)

    async def close(self) -> None:
        """End all of them; who waits for an answer gets none."""
        self._closed = True
        for waiting in (self._tried, self._urgent, self._others):
            for job in waiting:
                self._refuse(job)
            waiting.clear()
        for worker in self._workers:
            if worker.job is not None:
                self._refuse(worker.job)
            worker.end("was given up" if worker.job is not None else "")
        await asyncio.gather(*(worker.close() for worker in list(self._workers)))

    async def _ask(self, job: _Job, *, urgent: bool) -> Json:
        if self._closed:
            self._refuse(job)
        else:
            waiting = self._urgent if urgent else self._others
            (self._tried if job.is_tried else waiting).append(job)
            self._assign()
        try:
            return await job.answer
        except asyncio.CancelledError:
            for worker in self._workers:
                if worker.job is job:
                    worker.end("was given up")
            raise

    def _refuse(self, job: _Job) -> None:
        if not job.answer.done():
            job.answer.set_exception(RelayError("the broker stops", code="stopping"))

    def _assign(self) -> None:
        """Give what waits to those that are free; start more where there may be more."""
        # One is kept for urgent runs: what hangs does not hold them up.
        rooms = (self._urgent, self._most), (self._others, max(1, self._most - 1))
        for queue, room in ((self._tried, TRIED_MAX), *rooms):
            while queue and not self._closed:
                job = queue[0]
                if not job.answer.done():  # else it was given up
                    free = [one for one in self._workers if one.job is None and not one.leaving]
                    taken = [one for one in self._workers if one not in free]
                    if sum(one.is_tried == job.is_tried for one in taken) >= room:
                        break
                    self._give(job, free)
                queue.popleft()

    def _give(self, job: _Job, free: Sequence[_Worker]) -> None:
        worker = next((one for one in free if job.key in one.sources), None)
        if worker is None and free:
            worker = free[-1]
        if worker is None:
            try:
                worker = _Worker(self._home, self._command, self._changed)
            except OSError as error:
                why = f"no worker can be started: {error.strerror or error}"
                job.answer.set_exception(RelayError(why, code="busy"))
                return
            self._workers.append(worker)
        worker.begin(job)

    def _changed(self, worker: _Worker) -> None:
        if worker.gone and worker in self._workers:
            self._workers.remove(worker)
            if not worker.ready and not self._closed:
                self._log.write("a worker of automations did not start: see automations.log")
        self._assign()


def _answer(said: Json, job: _Job) -> RunAnswer:
    """Read it, with its texts as a terminal may show them. Raises TypeError or ValueError: the code
    that runs there may write anything."""
    error, state = said["error"], said["state"]
    latency_us, llm_calls = said["latency_us"], said["llm_calls"]
    numbers = all(type(one) is int and 0 <= one < 1 << 53 for one in (latency_us, llm_calls))
    good = numbers and isinstance(state, dict) and json_text.size_of(state) <= 2 * STATE_MAX
    if not good or not (error is None or isinstance(error, str)):
        raise ValueError("not an answer")
    try:
        result = None if said["result"] is None else AutomationResult.of(said["result"])
    except RelayError as wrong:
        raise ValueError(wrong.message) from wrong
    if result is not None:
        json_text.size_of(result.to_json())  # no text that cannot be stored
    told = None if error is None else clean(error[:ERROR_MAX])
    return RunAnswer(job.began_ms, latency_us, result, told, llm_calls, job.log, state)
