"""Runs the notifier (relay.ui.notifier) where the person's own configuration has ``notify``.

A file of its own because it is the broker's end of a process: what it tells, it asks the broker for
as any client does, and here nothing is known of that.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable

from relay.broker.service_process import ServiceProcess
from relay.broker.trusted_configs import USER, TrustedConfigs
from relay.broker.workers import own_environment
from relay.core.child_process import python
from relay.core.paths import Home
from relay.protocol.broker import Json

_COMMAND = python("relay.ui.notifier")
#: Seconds until one that has ended is started again, and that it has to end with the broker.
_AGAIN, _ENDING = 30.0, 2.0


class NotifierProcess:
    """The notifier, with the settings that apply now. Belongs to the broker's loop."""

    def __init__(self, home: Home, configs: TrustedConfigs, *, log: Callable[[str], None]) -> None:
        self._home = home
        self._configs = configs
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._given: Json | None = None
        self._process: ServiceProcess | None = None
        self._not_before = 0.0
        self._ended = asyncio.Event()

    @property
    def connections(self) -> int:
        """How many connections to the broker are only its own."""
        return 1 if self._process is not None else 0

    def look(self) -> None:
        """Start it, end it, or give it other settings: as the configuration says by now."""
        own = self._configs.by_key(USER)
        wanted = (
            own.manifest.settings["notify"]
            if own is not None and own.manifest is not None
            else None
        )
        if wanted is None:
            self._given = None
            if self._process is not None:
                self._process.finish()
            return
        if self._process is None:
            if self._loop.time() < self._not_before:
                return
            self._given = None
            try:
                self._process = self._start()
            except OSError as error:
                self._log(f"the notifier cannot be started: {error.strerror}")
                self._not_before = self._loop.time() + _AGAIN
                return
        if wanted != self._given:
            self._given = wanted
            since = {"since_ms": int(time.time() * 1000)}
            self._process.send(json.dumps({**wanted, **since}).encode() + b"\n")

    def _start(self) -> ServiceProcess:
        self._ended.clear()
        return ServiceProcess(
            [*_COMMAND, self._home.root],
            cwd=self._home.root,
            log=os.path.join(self._home.logs, "notify.log"),
            received=lambda line: None,
            ended=self._on_end,
            env=own_environment(self._home.root),
        )

    def _on_end(self, how: str) -> None:
        if self._given is not None:
            self._log(f"the notifier {how}: see notify.log")
        self._process = None
        self._not_before = self._loop.time() + _AGAIN
        self._ended.set()

    async def close(self) -> None:
        """End it."""
        self._given = None
        process = self._process
        if process is None:
            return
        process.finish()
        try:
            async with asyncio.timeout(_ENDING):
                await self._ended.wait()
        except TimeoutError:
            process.kill()
