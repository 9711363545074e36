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
        self._freed = asyncio.Condition()
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
                said: Json = {"evaluations": await self._evaluate(asked["event"], asked["skip"])}
            elif asked["do"] == "channel_send":
                said = await self._adapters.send(asked)
            else:
                raise UsageError(f"a worker does not know how to {asked['do']}")
        except RelayError as error:
            said = {"error": error_fields(error)}
        self._say({"id": asked["id"], **said})

    async def _evaluate(self, given: Json, skip: list[str]) -> list[list[Any]]:
        event = Event.from_json({**given, "metadata": MappingProxyType(given.get("metadata", {}))})
        wanted = [
            one
            for one in self._routes
            if one.name not in skip and one.wants(event.kind, event.channel)
        ]
        out: list[list[Any]] = []
        for start in range(0, len(wanted), CALLS_MAX):
            out += await self._call(event, wanted[start : start + CALLS_MAX])
        return out

    async def _call(self, event: Event, routes: list[RouteFunction]) -> list[list[Any]]:
        async with self._freed:
            await self._freed.wait_for(lambda: self._free >= len(routes))
            self._free -= len(routes)
        try:
            started_ms = int(time.time() * 1000)
            arguments = (event,)
            calls = [Call(one.callee, lambda: arguments, _read) for one in routes]
            outcomes = await self._functions.call_all(calls)
        finally:
            async with self._freed:
                self._free += len(routes)
                self._freed.notify_all()
        return [
            [one.name, started_ms, int(outcome.duration * 1e6), outcome.result, _short(outcome)]
            for one, outcome in zip(routes, outcomes, strict=True)
        ]


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


def _short(outcome: Any) -> str | None:
    return str(outcome.error)[:ERROR_MAX] if outcome.error else None


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
