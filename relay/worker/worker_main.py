"""A worker: loads one trusted configuration, and evaluates events with its route functions.

relay.protocol.worker describes what it is asked. All functions of an event run side by side, each
with its time limit; several events are evaluated at once. It ends when its socket does, with all
that was started here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
import traceback
from types import MappingProxyType
from typing import Any

from relay.config.load import LoadedConfig, load_trusted, manifest_of
from relay.config.trust import user_config
from relay.core.child_process import give_up, take_input
from relay.core.dispatch import Event, HookResult
from relay.core.errors import ConfigError, RelayError, UsageError, error_fields
from relay.core.paths import Home
from relay.hooks.hook_types import Call, RouteFunction
from relay.hooks.output_keys import HandlerError
from relay.hooks.run_functions import CALLS_MAX, FunctionRunner
from relay.protocol.broker import error_from
from relay.protocol.worker import ERROR_MAX, LINE_MAX, RESULT_MAX, WORKER_ALIVE_EVERY
from relay.worker.channel_adapters import ChannelAdapters

Json = dict[str, Any]

#: Kinds and channels of which it is remembered who is asked of them.
KINDS_MAX = 1000
#: What a function says that does not fire.
_NOTHING = HookResult()


class Worker:
    """Answers the broker at the other end of ``writer``. Belongs to the loop that runs it."""

    def __init__(
        self, loaded: LoadedConfig, writer: asyncio.StreamWriter, home: Home, *, channels: bool
    ) -> None:
        """``channels``: whether it runs its channel adapters, too."""
        self._registry = loaded.registry
        self._asked: dict[int, asyncio.Future[Json]] = {}
        self._numbers = itertools.count(1)
        self._routes = loaded.registry.routes()
        self._functions = FunctionRunner(loaded.registry, timeout=loaded.settings.handler_timeout)
        self._writer = writer
        #: Calls that may begin: the runner refuses what is beyond its bound.
        self._free = CALLS_MAX
        self._freed = asyncio.Event()
        self._by_kind: dict[tuple[str, str], list[RouteFunction]] = {}
        found = manifest_of(loaded)
        self._say(
            {
                "ready": {
                    "routes": found.routes,
                    "adapters": found.channel_adapters if channels else [],
                    "merge": found.merge,
                }
            }
        )
        # After the line that is the first: they ask at once.
        adapters = loaded.registry.channel_adapters() if channels else []
        self._adapters = ChannelAdapters(adapters, home, self.ask)

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Answer until the socket ends; what is under way then is given up."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._live())
                while line := await reader.readline():
                    said = json.loads(line)
                    if "ask" in said:
                        self._answered(said)
                    else:
                        tasks.create_task(self._answer(said))
                raise EOFError
        except* EOFError:
            pass

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(WORKER_ALIVE_EVERY)
            self._say({"alive": True})

    def _say(self, fields: Json) -> None:
        self._writer.write(json.dumps(fields, separators=(",", ":")).encode() + b"\n")

    async def ask(self, fields: Json) -> Json:
        """Ask the broker, and wait for its answer. Raises RelayError."""
        number = next(self._numbers)
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            self._say({"ask": number, **fields})
            return await future
        finally:
            del self._asked[number]

    def _answered(self, said: Json) -> None:
        future = self._asked.get(said["ask"])
        if future is None or future.done():
            return
        error = said.get("error")
        if isinstance(error, dict):
            future.set_exception(error_from(error))
        else:
            future.set_result(said)

    async def _answer(self, asked: Json) -> None:
        try:
            if asked["do"] == "evaluate":
                said: Json = await self._evaluate(asked["event"], asked["skip"])
            elif asked["do"] == "channel_send":
                said = await self._adapters.send(asked)
            else:
                raise UsageError(f"a worker does not know how to {asked['do']}")
        except RelayError as error:
            said = {"error": error_fields(error)}
        self._say({"id": asked["id"], **said})

    async def _evaluate(self, given: Json, skip: list[str]) -> Json:
        event = Event.from_json({**given, "metadata": MappingProxyType(given.get("metadata", {}))})
        wanted = self._wanted(event.kind, event.channel)
        if skip:
            wanted = [one for one in wanted if one.name not in skip]
        found: Json = {"started_ms": int(time.time() * 1000), "said": [], "quiet": {}}
        for start in range(0, len(wanted), CALLS_MAX):
            await self._call(event, wanted[start : start + CALLS_MAX], found)
        return found

    def _wanted(self, kind: str, channel: str) -> list[RouteFunction]:
        known = self._by_kind.get((kind, channel))
        if known is None:
            known = [one for one in self._routes if one.wants(kind, channel)]
            if len(self._by_kind) < KINDS_MAX:
                self._by_kind[kind, channel] = known
        return known

    async def _call(self, event: Event, routes: list[RouteFunction], found: Json) -> None:
        while self._free < len(routes):
            self._freed.clear()
            await self._freed.wait()
        self._free -= len(routes)
        try:
            arguments = (event,)
            calls = [Call(one.callee, lambda: arguments, _read) for one in routes]
            outcomes = await self._functions.call_all(calls)
        finally:
            self._free += len(routes)
            self._freed.set()
        said, quiet = found["said"], found["quiet"]
        for one, outcome in zip(routes, outcomes, strict=True):
            latency_us = int(outcome.duration * 1e6)
            if outcome.result is None and not outcome.error:
                quiet[one.name] = latency_us
            else:
                error = outcome.error[:ERROR_MAX] if outcome.error else None
                said.append([one.name, latency_us, outcome.result, error])


def _read(value: object, name: str) -> Json | None:
    """What a function returned, as it travels; None for what says nothing. Raises HandlerError."""
    if value is None or value is False:
        return None
    try:
        result = HookResult.of(value)
        found = result.to_json()
        size = len(json.dumps(found))
    except (RelayError, TypeError, ValueError, RecursionError) as error:
        told = error.line if isinstance(error, RelayError) else f"it is no JSON: {error}"
        raise HandlerError(
            f"what it returned is no result: {told}",
            hint="return a HookResult, True, False or None",
        ) from error
    if size > RESULT_MAX:
        raise HandlerError(
            f"its result has {size} bytes; at most {RESULT_MAX} are possible",
            hint="put what is large in a file, and extract its path",
        )
    return None if result == _NOTHING else found


async def _run(loaded: LoadedConfig, channel: Any, home: Home, channels: bool) -> None:
    reader, writer = await asyncio.open_connection(sock=channel, limit=LINE_MAX)
    await Worker(loaded, writer, home, channels=channels).serve(reader)


def main() -> None:
    """Serve the broker at the other end of standard input. Does not return."""
    root, path, sha256 = sys.argv[1:4]
    try:
        channel = take_input()
        os.environ["RELAY_HOME"] = root
        try:
            loaded = load_trusted(Home(root), path, sha256)
        except ConfigError as error:
            channel.sendall(json.dumps({"failed": error.line}).encode() + b"\n")
        else:
            asyncio.run(_run(loaded, channel, Home(root), path == user_config()))
    except BaseException:
        traceback.print_exc()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        pass
    give_up()
