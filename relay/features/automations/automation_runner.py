"""Has automations loaded and run by limited workers of the pool (relay.features.personas.workers).

The child's side is relay.features.automations.automation_main, and what travels is described in
relay.features.personas.worker.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from relay.core import json_text
from relay.core.child_process import python
from relay.core.errors import RelayError, UsageError
from relay.directive.escape import clean
from relay.features.automations.definition import AutomationResult, Definition
from relay.features.automations.settings import WORKERS
from relay.features.personas.worker import ERROR_MAX, STATE_MAX
from relay.features.personas.workers import Job, Room, WorkerKind, WorkerPool
from relay.protocol.broker import Json, error_from

#: Workers beside those of runs, for what the person waits for: files that are loaded or tried out.
TRIED_MAX = 2
#: Seconds without a run after which a worker ends.
IDLE = 300.0
#: Seconds for a source to be loaded.
LOAD_DEADLINE = 10.0


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


class AutomationRunner:
    """Asks the pool. Belongs to the broker's loop."""

    def __init__(self, pool: WorkerPool, workers: int = WORKERS) -> None:
        self._pool = pool
        self._tried = Room("tried", TRIED_MAX)
        self._urgent = Room("runs", workers)
        # One is kept for urgent runs: what hangs does not hold them up.
        self._others = Room("runs", max(1, workers - 1))
        root = pool.home.root
        # It runs for many projects, in whose folders agents write: nothing is imported from there,
        # and the broker answers nothing that it asks.
        self._kind = WorkerKind(
            key="automations",
            of="automations",
            command=(*python("relay.features.automations.automation_main"), root),
            folder=root,
            log="automations.log",
            idle=IDLE,
            imports=False,
            asks=False,
            rooms=(self._tried, self._urgent, self._others),
        )

    async def load(self, path: str, source: str) -> Definition:
        """The definition of the automation whose file, at ``path``, is ``source``.

        Raises RelayError.
        """
        question = {"do": "load", "path": path, "source": source, "deadline": LOAD_DEADLINE}
        try:
            said = await self._pool.ask(self._kind, Job(question, self._tried))
        except RelayError as error:
            if error.code != "worker_ended":
                raise
            why = f"{path} cannot be loaded: {error.message}"
            raise UsageError(why, hint=error.hint) from error
        if isinstance(refused := said.get("error"), dict):
            raise error_from(refused)
        return Definition.of(said.get("definition"))

    async def run(self, question: Json, *, urgent: bool = False) -> RunAnswer:
        """Run an automation: ``question`` as relay.features.personas.worker has it, but for ``id``
        and ``do``, and always with ``source``. ``urgent`` ones go first.

        Whatever happens to it is its answer. Raises RelayError where it was not begun: of the code
        ``busy`` (later it may be), or ``stopping``.
        """
        room = self._urgent if urgent else self._others
        if question.get("dry"):
            room = self._tried
        key = question["automation"], question["version"]
        job = Job({"do": "run", **question}, room, key)
        try:
            return _answer(await self._pool.ask(self._kind, job), job)
        except RelayError as error:
            if error.code != "worker_ended":
                raise
            told = error.message
        except (KeyError, TypeError, ValueError):
            told = "its worker answered nonsense"
        latency_us = int((time.monotonic() - job.began) * 1e6)
        return RunAnswer(job.began_ms, latency_us, error=told, log=clean(str(job.printed)))


def _answer(said: Json, job: Job) -> RunAnswer:
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
    told, log = None if error is None else clean(error[:ERROR_MAX]), clean(str(job.printed))
    return RunAnswer(job.began_ms, latency_us, result, told, llm_calls, log, state)
