"""Tells hooks of the person's own configuration what the broker does with an event, by its stages.

They observe, and hold nothing up: what waits for them is bounded, what is beyond that is left out,
and the log says so. A broker that ends forgets what it has not told. How they ran is kept with the
runs of other hooks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

from relay.broker.batch import Accepted, Batch
from relay.broker.kernel import Kernel
from relay.broker.ops_hooks import HookRuns
from relay.broker.workers import ConfigWorkers
from relay.core.errors import RelayError
from relay.hooks.events import HookEventName
from relay.ledger.dispatch_rows import DispatchRow
from relay.ledger.evaluation_rows import event_of
from relay.protocol.broker import Json

#: What waits, and what the worker has in hand.
WAITING_MAX, IN_HAND_MAX = 256, 8
#: Characters of one text that hooks are given, so that what waits stays small.
TEXT_MAX = 64 * 1024


class Stages:
    """What is to be told, in order. Belongs to the broker's loop."""

    def __init__(self, kernel: Kernel, workers: ConfigWorkers, runs: HookRuns) -> None:
        self._ledger = kernel.ledger
        self._home = kernel.home
        self._configs = kernel.configs
        self._workers = workers
        self._committer = kernel.committer
        self._runs = runs
        self._log = kernel.log
        self._waiting: deque[tuple[HookEventName, Json]] = deque()
        self._in_hand = 0
        self._left_out = 0
        self._closed = False

    def close(self) -> None:
        """The broker stops: nothing more is told."""
        self._closed = True
        self._waiting.clear()

    def wants(self, event: HookEventName) -> bool:
        """Whether a hook is registered for it: it costs a look-up."""
        return not self._closed and any(
            one.manifest is None or event.value in one.manifest.events
            for one in self._configs.applying(None)
        )

    def observe(self, event: HookEventName, fields: Json) -> None:
        """Have it told, if somebody listens. Returns at once."""
        if not self.wants(event):
            return
        if len(self._waiting) >= WAITING_MAX:
            if not self._left_out:
                self._log(f"hooks of {event.registration} are slow: what comes now is left out")
            self._left_out += 1
            return
        self._waiting.append((event, {name: _short(one) for name, one in fields.items()}))
        self._tell()

    def received(self, message: Accepted, batch: Batch) -> None:
        """An event or a message comes, and is stored with the batch."""
        if self.wants(HookEventName.AFTER_RECEIVE_EVENT):
            batch.after.append(partial(self._received, message))

    def _received(self, message: Accepted) -> None:
        if message.seq:  # else it was a repetition
            event = event_of(self._ledger, self._home, message.seq)
            told = {"received": event.to_json()}
            self.observe(HookEventName.AFTER_RECEIVE_EVENT, told)

    def assembled(self, rows: Sequence[DispatchRow], prompt: str, batch: Batch) -> None:
        """What a persona is told for these dispatches, once that is stored."""
        told: Json = {"prompt": prompt, "persona": rows[0].persona, "session": rows[0].session}
        told["dispatches"] = [one.id for one in rows]
        batch.after.append(partial(self.observe, HookEventName.AFTER_ASSEMBLE_CONTEXT, told))

    def _tell(self) -> None:
        while self._waiting and self._in_hand < IN_HAND_MAX:
            event, fields = self._waiting.popleft()
            if self._left_out and not self._waiting:
                self._log(f"hooks of the broker's stages were not told {self._left_out} times")
                self._left_out = 0
            for config in self._configs.applying(None):
                try:
                    worker = self._workers.get(config)
                except RelayError as error:
                    self._log(f"{event.registration}: {error.line}")
                    continue
                self._in_hand += 1
                asked = worker.ask({"do": "stage", "event": event.value, "fields": fields})
                asked.add_done_callback(self._told)

    def _told(self, answer: asyncio.Future[Json]) -> None:
        self._in_hand -= 1
        error = None if answer.cancelled() else answer.exception()
        if error is not None:
            self._log(f"hooks of the broker's stages: {error}")
        elif not answer.cancelled() and (records := answer.result().get("records")):
            self._committer.submit_job(partial(self._store, records))
        self._tell()

    def _store(self, records: object, batch: Batch) -> None:
        self._runs.store(records, "", "relay", batch.now_ms)


def _short(value: object) -> object:
    """A field as hooks are given it: with long texts cut."""
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}…"
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    return value
