"""A worker: loads one trusted configuration, and evaluates events with its route functions.

relay.features.personas.worker describes what it is asked. All functions of an event run side by
side, each with its time limit; several events are evaluated at once. It ends when its socket does,
with all that was started here."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import time
import traceback
from itertools import chain
from types import MappingProxyType
from typing import Any

from relay.config.load import LoadedConfig, load_trusted, manifest_of
from relay.config.trust import user_config
from relay.core import json_text
from relay.core.child_process import give_up, take_input
from relay.core.dispatch import Event, HookResult
from relay.core.errors import ConfigError, RelayError, UsageError, error_fields
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.features.personas.channel_adapters import ChannelAdapters
from relay.features.personas.plain_calls import PlainCalls, Said
from relay.features.personas.worker import ERROR_MAX, LINE_MAX, RESULT_MAX, WORKER_ALIVE_EVERY
from relay.hooks.aggregator import aggregate
from relay.hooks.engine import HookEventHandler
from relay.hooks.events import HookEventName
from relay.hooks.hook_log import Record, result_record
from relay.hooks.hook_types import Call, RouteFunction
from relay.hooks.outputs import HandlerError
from relay.hooks.planner import Planner
from relay.hooks.run_functions import CALLS_MAX, FunctionRunner
from relay.hooks.runner import HookRunner
from relay.protocol.broker import error_from

Json = dict[str, Any]

#: Kinds and channels of which it is remembered who is asked of them.
KINDS_MAX = 1000
#: Events of the broker whose hooks run at a time; more wait.
OBSERVING_MAX = 8
#: What a function says that does not fire.
_NOTHING = HookResult()


class _NoSession:
    """What the hook engine asks of its session, where there is none: see relay.hooks.engine."""

    session_id = agent_name = ""

    def working_dir(self) -> str:
        return os.getcwd()

    def transcript_path(self) -> str:
        return ""

    def context(self) -> object:
        return None


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
        self._plain = PlainCalls(_read, loaded.settings.handler_timeout)
        self._functions = FunctionRunner(loaded.registry, timeout=loaded.settings.handler_timeout)
        registry, limit = loaded.registry, loaded.settings.handler_timeout
        # Functions of its own: hooks that hang do not use up what route functions have.
        functions = FunctionRunner(registry, timeout=limit)
        runner = HookRunner(functions, cwd=os.getcwd(), env=os.environ, timeout=limit)
        self._hooks = HookEventHandler(_NoSession(), Planner(registry), runner, aggregate)
        self._observing = asyncio.Semaphore(OBSERVING_MAX)
        self._writer = writer
        #: Calls that may begin: the runner refuses what is beyond its bound.
        self._free = CALLS_MAX
        self._freed = asyncio.Event()
        self._by_kind: dict[tuple[str, str], list[RouteFunction]] = {}
        found = manifest_of(loaded).settings
        self._say(
            {
                "ready": {
                    "routes": found["routes"],
                    "adapters": found["channel_adapters"] if channels else [],
                    "merge": found["merge"],
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
        self._writer.write(_line(fields).encode() + b"\n")

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
            elif asked["do"] == "hooks":
                said = {"records": await self._observe(asked["event"], asked["fields"])}
            elif asked["do"] == "channel_send":
                said = await self._adapters.send(asked)
            else:
                raise UsageError(f"a worker does not know how to {asked['do']}")
        except RelayError as error:
            said = {"error": error_fields(error)}
        self._say({"id": asked["id"], **said})

    async def _observe(self, event: str, fields: Json) -> list[Record]:
        """Run the hooks of one of the broker's events, with the engine that sessions have. Returns
        how each ran; what they return counts for nothing."""
        id_ = new_ulid(int(time.time() * 1000))
        async with self._observing:
            done = await self._hooks.fire(HookEventName(event), fields, correlation_id=id_)
        return [result_record(one, id_) for one in done.results]

    async def _evaluate(self, given: Json, skip: list[str]) -> Json:
        event = Event.from_json({**given, "metadata": MappingProxyType(given.get("metadata", {}))})
        started_ms = int(time.time() * 1000)
        asked = self._wanted(event.kind, event.channel)
        if skip:
            asked = [one for one in asked if one.name not in skip]
        plain = [one for one in asked if not one.callee.is_async]
        rest = [one for one in asked if one.callee.is_async]
        answers = await asyncio.gather(self._plain.call(event, plain), self._await(event, rest))
        said: list[list[Any]] = []
        quiet: dict[str, int] = {}
        for one, (latency_us, result, error) in zip(plain + rest, chain(*answers), strict=True):
            if result is None and error is None:
                quiet[one.name] = latency_us
            else:
                said.append([one.name, latency_us, result, error and error[:ERROR_MAX]])
        # In the order of their priorities: so their dispatches are made.
        order = {one.name: number for number, one in enumerate(asked)} if rest else {}
        said.sort(key=lambda row: order.get(row[0], 0))
        return {"started_ms": started_ms, "said": said, "quiet": _line(quiet)}

    def _wanted(self, kind: str, channel: str) -> list[RouteFunction]:
        known = self._by_kind.get((kind, channel))
        if known is None:
            known = [one for one in self._routes if one.wants(kind, channel)]
            if len(self._by_kind) < KINDS_MAX:
                self._by_kind[kind, channel] = known
        return known

    async def _await(self, event: Event, routes: list[RouteFunction]) -> list[Said]:
        """What the async ones said; of very many some after the others."""
        said: list[Said] = []
        arguments = (event,)
        for start in range(0, len(routes), CALLS_MAX):
            part = routes[start : start + CALLS_MAX]
            while self._free < len(part):
                self._freed.clear()
                await self._freed.wait()
            self._free -= len(part)
            try:
                calls = [Call(one.callee, lambda: arguments, _read) for one in part]
                outcomes = await self._functions.call_all(calls)
            finally:
                self._free += len(part)
                self._freed.set()
            said += [(int(one.duration * 1e6), one.result, one.error or None) for one in outcomes]
        return said


def _read(value: object, name: str = "") -> Json | None:
    """What a function returned, as it travels; None for what says nothing. Raises HandlerError."""
    if value is None or value is False:
        return None
    try:
        result = HookResult.of(value)
        found = result.to_json()
        size = json_text.size_of(found)
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


def _line(fields: Json) -> str:
    return json.dumps(fields, separators=(",", ":"))


async def _run(loaded: LoadedConfig, channel: Any, home: Home, channels: bool) -> None:
    reader, writer = await asyncio.open_connection(sock=channel, limit=LINE_MAX)
    await Worker(loaded, writer, home, channels=channels).serve(reader)


def main() -> None:
    """Serve the broker at the other end of standard input. Does not return."""
    root, path, sha256 = sys.argv[1:4]
    try:
        channel = take_input()
        os.environ["RELAY_HOME"], os.environ["RELAY_CALLED"] = root, "1"
        try:
            loaded = load_trusted(Home(root), path, sha256)
        except ConfigError as error:
            channel.sendall(json.dumps({"failed": error.line}).encode() + b"\n")
        else:
            asyncio.run(_run(loaded, channel, Home(root), path == user_config()))
    except BaseException:
        traceback.print_exc()
    give_up()
