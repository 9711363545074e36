"""The channels that the person's own configuration connects: its worker runs while the broker does.

What an adapter tells of is an event of its channel; what a persona answers goes to it. Other
configurations connect nothing: an event without an agent is the person's.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from relay.broker.batch import AnyRequest, Client
from relay.broker.kernel import Kernel
from relay.broker.trusted_configs import USER, TrustedConfig
from relay.config.trust import user_config
from relay.core.errors import NotDelivered, RelayError, UsageError
from relay.core.processes import Process
from relay.core.visible import visible
from relay.features.personas.ops_events import EventOps
from relay.features.personas.workers import WorkerPool, config_worker
from relay.protocol.broker import Json, decode, error_from

#: Seconds between two looks whether the configuration is another one, or its worker has ended.
LOOK_EVERY = 5.0


class Channels:
    """Keeps the worker of the person's own configuration, where it connects channels."""

    def __init__(self, kernel: Kernel, workers: WorkerPool, events: EventOps) -> None:
        self._home = kernel.home
        self._configs = kernel.configs
        self._workers = workers
        self._events = events
        self._committer = kernel.committer
        self._log = kernel.log
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._told = ""
        self._failed: dict[str, Json] = {}  # of the adapters: why, and when

    def start(self) -> None:
        """Start the worker, if there are channels, and keep it."""
        self._timer = self._loop.call_later(LOOK_EVERY, self.start)
        config = self._config()
        own = self._configs.by_key(USER)
        for worker in self._workers.running(USER):
            if own is None or worker.kind != config_worker(self._home, own):
                worker.end()
                self._failed.clear()
        try:
            if config is not None:
                self._workers.get(config_worker(self._home, config))
            self._told = ""
        except RelayError as error:
            if error.line != self._told:
                self._log.write(error.line)
            self._told = error.line

    def close(self) -> None:
        """The broker stops."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def connected(self) -> bool:
        """Whether there are channels: the broker then stays, whoever needs it otherwise."""
        config = self._config()
        return config is not None and config.manifest is not None

    def described(self) -> Json:
        """What ``status`` shows: the channels that are connected, why they are not, and which
        failed last without having told of an event since."""
        config = self._config()
        if config is None or config.manifest is None:
            return {"names": [], "problem": "", "failed": {}}
        problem = self._told or self._workers.problems.get(config.path, "")
        names = config.manifest.settings["channel_adapters"]
        failed = {name: one for name, one in self._failed.items() if name in names}
        return {"names": names, "problem": problem, "failed": failed}

    def _config(self) -> TrustedConfig | None:
        """The person's own configuration, where it connects channels or nobody knows yet."""
        config = self._configs.by_key(USER)
        if config is not None and config.manifest is not None:
            return config if config.manifest.settings["channel_adapters"] else None
        return config

    # -- what workers ask: to store an adapter's event, or to note its failure

    async def asked(self, key: str, said: Json) -> Json:
        """Answer the worker of the configuration ``key``. Raises RelayError."""
        if key != USER:
            raise RelayError("only the person's own configuration connects channels")
        if said.get("op") == "adapter_failed":
            self._note_failure(str(said.get("channel")), str(said.get("problem"))[:500])
            return {}
        outside = said.get("outside")
        if said.get("op") != "event" or not isinstance(outside, dict):
            raise UsageError(f"the broker does not know how to {said.get('op')}")
        asker = _Asker()
        request = AnyRequest(asker, 0, "event", {"outside": outside}, 0)
        self._committer.submit(self._events.from_channel, request)
        answer = decode(await asker.line)
        if not answer.get("ok"):
            raise error_from(answer.get("error") or {})
        self._failed.pop(str(outside.get("channel")), None)
        return {"id": answer["id"], "duplicate": answer["duplicate"]}

    def _note_failure(self, channel: str, problem: str) -> None:
        from relay.directive.redact import redact

        now_ms = time.time_ns() // 1_000_000
        self._failed[channel] = {"reason": visible(redact(problem)), "at_ms": now_ms}

    # -- answers

    async def send(self, channel: str, answer: Json, limit: float) -> None:
        """Have the channel's adapter send it. Raises RelayError: it says why it has not arrived."""
        config = self._configs.by_key(USER)
        if config is None and os.path.lexists(user_config()):
            raise RelayError("your own configuration is not trusted now", hint="relay trust")
        if config is not None and config.manifest is None:
            raise RelayError("your own configuration is not loaded yet")
        if config is None or channel not in _adapters(config):
            raise no_adapter(channel)
        worker = self._workers.get(config_worker(self._home, config))
        await worker.ask({"do": "channel_send", "channel": channel, "limit": limit, **answer})


class _Asker(Client):
    """A worker's question as the ops see it: it gets one line."""

    ancestors: Sequence[Process] = ()
    closed = paused = False
    unsent = 0

    def __init__(self) -> None:
        self.line: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def send(self, line: bytes) -> None:
        if not self.line.done():
            self.line.set_result(line)

    def defer(self) -> None:
        pass

    def undefer(self) -> None:
        pass

    def answered(self, size: int) -> None:
        pass

    def close(self) -> None:
        pass


def _adapters(config: TrustedConfig) -> list[str]:
    return [] if config.manifest is None else config.manifest.settings["channel_adapters"]


def no_adapter(channel: str) -> NotDelivered:
    """The error for a channel over which nothing can be sent, however often it is tried."""
    return NotDelivered(
        f"no channel adapter sends over {channel}",
        hint="@relay.adapter in your own configuration registers one; relay trust lets it run",
    )
