"""The pool of worker processes, as the broker sees them.

How a worker is started, with which rights, and what bounds it is a record (``WorkerKind``). A hot
one runs a trusted configuration (relay.features.personas.worker_main): there is one of each, it
answers side by side, it says that it lives, and it is killed when it is silent. Limited ones
(relay.features.automations.automation_main) belong to nobody: whichever is free takes the next
question, one that has had its source first. Such a worker has one question at a time, and what it
prints meanwhile is kept with that; at its deadline it is killed with all that it has started. The
error of how a worker ended is that of the questions that it had, and of no others.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from relay.broker.service_process import Printed, ServiceProcess, Starts
from relay.broker.trusted_configs import TrustedConfig
from relay.core import json_text
from relay.core.child_process import python
from relay.core.environment import own_environment
from relay.core.errors import RelayError, error_fields
from relay.core.log import Log
from relay.core.paths import Home
from relay.protocol.broker import Json, error_from

#: What starts the worker of a configuration.
WORKER = python("relay.features.personas.worker_main")
#: Seconds without a question after which it ends, unless it serves channels.
IDLE = 600.0
#: Starts of one configuration's worker within START_SPAN seconds.
STARTS_MAX, START_SPAN = 5, 60.0
#: Seconds that a worker has until it is ready, and without a word of a hot one.
START_LIMIT, SILENCE_MAX = 30.0, 20.0
#: Seconds that a worker has to end, with what it has started.
ENDING = 5.0
#: Sources that one worker is sent: then a new one takes its place.
SOURCES_MAX = 200

#: Answers what a worker asks: (the key of its kind, the question) -> the answer.
Asked = Callable[[str, Json], Awaitable[Json]]


async def _refuse(key: str, said: Json) -> Json:
    raise RelayError("nothing answers a worker here")


class Room(NamedTuple):
    """How many limited workers may have questions of one sort at a time."""

    sort: str
    most: int


@dataclass(frozen=True, slots=True)
class WorkerKind:
    """How a worker is started, and what it may. Workers of equal kinds do for each other."""

    #: Whose it is. There is one hot worker of each key.
    key: str
    #: What it is for: the path of its configuration, say.
    of: str
    command: tuple[str, ...]
    #: Where it runs; it imports nothing from there.
    folder: str
    #: The name of the log of what it prints.
    log: str
    #: Seconds without a question after which it ends.
    idle: float
    #: Whether it imports what the person's PYTHONPATH names elsewhere.
    imports: bool = False
    #: Whether the broker answers what it asks.
    asks: bool = False
    #: Of limited workers: for the sorts of questions, the most urgent first.
    rooms: tuple[Room, ...] = ()


def config_worker(home: Home, config: TrustedConfig) -> WorkerKind:
    """The worker of a trusted configuration: it speaks for the person, and may do all that one
    may. It is another one when the file has changed."""
    return WorkerKind(
        key=config.key,
        of=config.path,
        command=(*WORKER, home.root, config.path, config.sha256),
        folder=os.path.dirname(config.path),
        log=f"worker-{config.key}.log",
        idle=IDLE,
        imports=True,
        asks=True,
    )


@dataclass(eq=False, slots=True)
class Job:
    """One question until it is answered. Of limited workers: it has a ``deadline`` and a
    ``source``, which a worker that has had a question of this ``key`` is not sent again."""

    question: Json
    room: Room = Room("", 0)
    key: object = None
    #: Gets the answer, or a RelayError: of the code ``busy`` where no worker has begun it,
    #: ``worker_ended`` where one has.
    answer: asyncio.Future[Json] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    #: When a worker got it, on the monotonic clock and in milliseconds.
    began: float = field(default_factory=time.monotonic)
    began_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    #: What a limited worker has printed meanwhile.
    printed: Printed = field(default_factory=Printed)

    def settle(self, said: Json | RelayError) -> None:
        """Answer it, unless nobody waits any more."""
        if self.answer.done():
            return
        if isinstance(said, RelayError):
            self.answer.set_exception(said)
        else:
            self.answer.set_result(said)


class Worker:
    """One running process. Raises OSError when it cannot be started."""

    def __init__(self, pool: WorkerPool, kind: WorkerKind) -> None:
        self.kind = kind
        #: What it said when it was ready; None until then.
        self.ready: Json | None = None
        #: Of its route functions, by their names, as it said.
        self.priorities: dict[str, int] = {}
        #: Why it cannot use its configuration.
        self.problem = ""
        #: A function that was given up still runs in it: it is asked nothing more.
        self.spent = False
        #: It ends, and has no more questions to come.
        self.leaving = False
        #: What it has to answer, and the room of the last of that.
        self.jobs: dict[int, Job] = {}
        self.room = Room("", 0)
        #: The keys of the questions that it has answered.
        self.keys: set[object] = set()
        self._pool = pool
        self._gone: RelayError | None = None  # how it has ended
        self._used = time.monotonic()
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        env = own_environment(kind.folder)
        if not kind.imports:
            env.pop(b"PYTHONPATH", None)
        self._process = ServiceProcess(
            kind.command,
            cwd=kind.folder,
            log=os.path.join(pool.home.logs, kind.log),
            received=self._received,
            ended=self._on_end,
            env=env,
        )
        self._process.kill_after("start", START_LIMIT, "did not start")
        self._idle = self._loop.call_later(kind.idle, self._look_idle)

    @property
    def free(self) -> bool:
        """Whether a limited one may have a question."""
        return not (self.jobs or self.leaving or self._process.killed)

    def ask(self, question: Json) -> asyncio.Future[Json]:
        """Ask a hot one: see ``Job.answer``."""
        job = Job(question)
        self.begin(job)
        return job.answer

    def begin(self, job: Job) -> None:
        """Have it answer this, once it is ready."""
        number = next(self._numbers)
        self.jobs[number] = job
        self.room, self._used = job.room, time.monotonic()
        if self._gone is not None:
            self._settle(number, self._gone)
        elif self.ready is not None:
            self._send(number, job)

    def retire(self) -> None:
        """It is asked nothing more, and ends once it has answered, or SILENCE_MAX is over: what it
        sends is not cut off."""
        if not self.leaving:
            self.leaving = True
            self._start(self._end_answered())

    def end(self, why: str = "") -> None:
        """End it, with all that it has started; at once where there is a reason."""
        self.leaving = True
        self._process.finish()
        self._process.kill_after("end", 0 if why else ENDING, why)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    async def close(self) -> None:
        """Wait for its end, which it was told of."""
        await self._process.close(ENDING)

    async def _end_answered(self) -> None:
        if self.jobs:
            answers = [job.answer for job in self.jobs.values()]
            await asyncio.wait(answers, timeout=SILENCE_MAX)
        self.end()

    def _look_idle(self) -> None:
        left = self._used + self.kind.idle - time.monotonic()
        if self.jobs or self.ready is None or self.ready.get("adapters"):
            left = self.kind.idle
        if left <= 0:
            self.end()
        else:
            self._idle = self._loop.call_later(left, self._look_idle)

    def _send(self, number: int, job: Job) -> None:
        job.began, job.began_ms = time.monotonic(), time.time_ns() // 1_000_000
        question = {"id": number, **job.question}
        if self.kind.rooms:
            if job.key in self.keys:
                question["source"] = None
            self._process.take_printed()  # until now it is nothing of this question
            deadline: float = question["deadline"]
            late = f"did not end within {deadline:g} s"
            self._process.kill_after("deadline", deadline, late)
        self._process.send(_line(question))

    # -- what it says

    def _received(self, line: bytes) -> None:
        """A line of the process. Raises ValueError for what is none: it is killed then."""
        said = json_text.loads(line.decode())
        if not isinstance(said, dict):
            raise ValueError("not an object")
        if self._process.killed:
            return
        if self.ready is None and isinstance(said.get("ready"), dict):
            self._on_ready(said["ready"])
        elif self.ready is None and "failed" in said:
            self.problem = str(said["failed"])
        elif self.kind.asks and "ask" in said:
            self._start(self._answer(said))
        elif "id" in said:
            self._answered(said)
        elif "alive" not in said:
            raise ValueError("nobody has asked")
        if self.ready is not None and not self.kind.rooms:  # from then on it tells that it lives
            self._process.kill_after("silence", SILENCE_MAX)

    def _on_ready(self, ready: Json) -> None:
        self.ready = ready
        self.priorities = {one["name"]: one["priority"] for one in ready.get("routes", ())}
        self._process.lift("start")
        for number, job in self.jobs.items():
            self._send(number, job)

    def _answered(self, said: Json) -> None:
        number, error = said["id"], said.get("error")
        if type(number) is not int or number not in self.jobs:
            raise ValueError("nobody has asked")
        if self.kind.rooms:
            self._process.lift("deadline")
            self.keys.add(self.jobs[number].key or object())
            if said.get("last") or len(self.keys) >= SOURCES_MAX:
                self.end()
        if isinstance(error, dict) and not self.kind.rooms:  # a limited one names no error's code
            self._settle(number, error_from(error))
        else:
            self._settle(number, said)

    def _settle(self, number: int, said: Json | RelayError) -> None:
        job = self.jobs.pop(number)
        self._used = time.monotonic()
        if self.kind.rooms:
            job.printed = self._process.take_printed()
        job.settle(said)
        if self.kind.rooms:
            self._pool.assign(self.kind)

    def _on_end(self, how: str) -> None:
        self._idle.cancel()
        why = self._process.why
        code, told = "worker_ended", f"it {why}, so it was ended" if why else f"its worker {how}"
        if self.ready is None:
            code, told = "busy", f"its worker {why or how}"
        self._gone = RelayError(told, code=code, hint=f"see {self.kind.log}")
        self._pool.ended(self, how)
        for number in list(self.jobs):
            self._settle(number, self._gone)

    # -- what it asks

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # a loop holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, said: Json) -> None:
        try:
            answer = await self._pool.asked(self.kind.key, said)
        except RelayError as error:
            answer = {"error": error_fields(error)}
        self._process.send(_line({"ask": said["ask"], **answer}))


class WorkerPool:
    """All of them. Belongs to the broker's loop."""

    def __init__(self, home: Home, log: Log, asked: Asked = _refuse) -> None:
        self.home = home
        self.asked = asked
        self._log = log
        self._workers: list[Worker] = []
        self._starts: dict[str, Starts] = {}
        self._waiting: defaultdict[tuple[WorkerKind, Room], deque[Job]] = defaultdict(deque)
        #: Why the configuration at a path cannot be used, as its last worker said.
        self.problems: dict[str, str] = {}
        self._closed = False

    def running(self, key: str) -> list[Worker]:
        """The hot ones of this key that are not about to end."""
        return [
            one
            for one in self._workers
            if one.kind.key == key and not (one.leaving or one.kind.rooms)
        ]

    def get(self, kind: WorkerKind) -> Worker:
        """The hot worker of this kind; it is started if need be. Raises RelayError when it cannot
        be now (of the code ``busy``: later it may)."""
        for worker in self.running(kind.key):
            if worker.kind == kind:
                return worker
            worker.end()
        if self._closed:  # who hears of the end of one must not have the next one started
            raise _stopping()
        if not self._starts.setdefault(kind.key, Starts(STARTS_MAX)).may(START_SPAN):
            raise RelayError(
                f"the worker of {kind.of} ended {STARTS_MAX} times within a minute",
                hint=f"see {kind.log} in {self.home.logs}",
                code="busy",
            )
        return self._start(kind)

    async def ask(self, kind: WorkerKind, job: Job) -> Json:
        """Have a limited worker of this kind answer ``job``, once there is room. Whoever is
        cancelled has it ended. Raises RelayError as ``Job.answer`` has it, or of the code
        ``stopping``."""
        if self._closed:
            raise _stopping()
        self._waiting[kind, job.room].append(job)
        self.assign(kind)
        try:
            return await job.answer
        except asyncio.CancelledError:
            for worker in self._workers:
                if job in worker.jobs.values():
                    worker.end("was given up")
            raise

    async def close(self) -> None:
        """End all of them; who waits for an answer gets none."""
        self._closed = True
        for waiting in self._waiting.values():
            for job in waiting:
                job.settle(_stopping())
            waiting.clear()
        for worker in self._workers:
            for job in worker.jobs.values():
                job.settle(_stopping())
            worker.end("was given up" if worker.kind.rooms and worker.jobs else "")
        await asyncio.gather(*(worker.close() for worker in list(self._workers)))

    def assign(self, kind: WorkerKind) -> None:
        """Give what waits to those that are free; start more where there may be more."""
        for room in kind.rooms:
            queue = self._waiting[kind, room]
            while queue and not self._closed:
                job = queue[0]
                if not job.answer.done():  # else it was given up
                    workers = [one for one in self._workers if one.kind == kind]
                    free = [one for one in workers if one.free]
                    taken = [one for one in workers if not one.free]
                    if sum(one.room.sort == room.sort for one in taken) >= room.most:
                        break
                    self._give(job, kind, free)
                queue.popleft()

    def _give(self, job: Job, kind: WorkerKind, free: Sequence[Worker]) -> None:
        worker = next((one for one in free if job.key in one.keys), free[-1] if free else None)
        try:
            (worker or self._start(kind)).begin(job)
        except RelayError as error:
            job.settle(error)

    def _start(self, kind: WorkerKind) -> Worker:
        try:
            worker = Worker(self, kind)
        except OSError as error:
            why = error.strerror or error
            raise RelayError(
                f"the worker of {kind.of} cannot be started: {why}", code="busy"
            ) from error
        self._workers.append(worker)
        self.problems.pop(kind.of, None)
        return worker

    def ended(self, worker: Worker, how: str) -> None:
        """A worker has ended. How a limited one has ended is the error of what it had to answer."""
        self._workers.remove(worker)
        kind = worker.kind
        if not (worker.leaving or (kind.rooms and worker.ready is not None)):
            self._log.write(worker.problem or f"the worker of {kind.of} {how}: see {kind.log}")
        if worker.problem:
            self.problems[kind.of] = worker.problem
        self.assign(kind)


def _stopping() -> RelayError:
    return RelayError("the broker stops", code="stopping")


def _line(fields: Json) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"
