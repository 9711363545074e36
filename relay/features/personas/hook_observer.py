"""Tells hooks of the person's own configuration what the broker has done, once it is stored.

Every part of the broker says to its batch what it does (``Batch.observe``), and the batch tells it
here after the commit. Hooks only observe, and nothing waits for them: what is beyond a bound is
left out, and the log says so. A broker that ends forgets what it has not told. How they ran is
kept with the runs of other hooks.
"""

from __future__ import annotations

import asyncio
from functools import partial

from relay.broker.batch import Batch
from relay.broker.kernel import Kernel
from relay.broker.ops_hooks import HookRuns
from relay.core.errors import RelayError
from relay.features.personas.evaluation import Evaluations
from relay.features.personas.workers import WorkerPool, config_worker
from relay.hooks.events import HookEventName
from relay.protocol.broker import Json

#: What the workers have not yet run.
WAITING_MAX = 256
#: Characters of one text that hooks are given, so that what waits stays small.
TEXT_MAX = 64 * 1024


class HookObserver:
    """Asks the workers to run them. Belongs to the broker's loop."""

    def __init__(
        self, kernel: Kernel, evaluations: Evaluations, workers: WorkerPool, runs: HookRuns
    ) -> None:
        self._home = kernel.home
        self._evaluations = evaluations
        self._configs = kernel.configs
        self._committer = kernel.committer
        self._log = kernel.log
        self._workers = workers
        self._runs = runs
        self._waiting = self._left_out = 0
        self._closed = False

    def close(self) -> None:
        """The broker stops: nothing more is told."""
        self._closed = True

    def wants(self, event: HookEventName) -> bool:
        """Whether a hook is registered for it: it costs a look-up."""
        for config in self._configs.applying(None):
            if config.manifest is None or event.value in config.manifest.events:
                return not self._closed
        return False

    def observe(self, event: HookEventName, fields: Json) -> None:
        """Have it told. Returns at once."""
        if self._waiting >= WAITING_MAX:
            if not self._left_out:
                self._log.write(
                    f"hooks of {event.registration} are slow: what comes now is left out"
                )
            self._left_out += 1
            return
        question: Json = {"do": "hooks", "event": event.value, "fields": _short(fields)}
        for config in () if self._closed else self._configs.applying(None):
            asked_of = {**question, "skip": self._evaluations.off(config.key)}
            try:
                asked = self._workers.get(config_worker(self._home, config)).ask(asked_of)
            except RelayError as error:
                self._log.write(f"{event.registration}: {error.line}")
                continue
            self._waiting += 1
            asked.add_done_callback(self._told)

    def _told(self, answer: asyncio.Future[Json]) -> None:
        self._waiting -= 1
        if self._left_out and not self._waiting:
            self._log.write(f"hooks of the broker's events were not told {self._left_out} times")
            self._left_out = 0
        error = None if answer.cancelled() else answer.exception()
        if error is not None:
            self._log.write(f"hooks of the broker's events: {error}")
        elif not answer.cancelled() and (records := answer.result().get("records")):
            self._committer.submit_job(partial(self._store, records))

    def _store(self, records: list[Json], batch: Batch) -> None:
        self._runs.store(records, "", "relay", batch.now_ms)


def _short(value: object) -> object:
    """A field as hooks are given it: with long texts cut."""
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}…"
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    return value
