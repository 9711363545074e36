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
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
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
from relay.features.personas.worker import ERROR_MAX, LINE_MAX, RESULT_MAX, WORKER_ALIVE_EVERY
from relay.hooks.aggregator import aggregate
from relay.hooks.engine import Config, HookEventHandler
from relay.hooks.events import HookEventName
from relay.hooks.hook_log import Record, result_record
from relay.hooks.hook_types import Call, Callee, RouteFunction
from relay.hooks.outputs import HandlerError
from relay.hooks.planner import Planner
from relay.hooks.run_functions import (
    WAITING_MAX,
    WORKERS,
    FunctionRunner,
    one_line,
)
from relay.hooks.runner import HookRunner
from relay.protocol.broker import error_from

Json = dict[str, Any]

#: Events of the broker whose hooks run at a time; more wait.
OBSERVING_MAX = 8
#: What a function says that does not fire.
_NOTHING = HookResult()
#: Seconds after which functions that have not begun get further threads.
QUICK = 0.001
#: Functions that are called within 1 ms where they are quick.
MANY = 32
#: What a function returned, as it travels; raises HandlerError.
Read = Callable[[object], object]
#: Microseconds, what it said (None: nothing), and what went wrong.
Said = tuple[int, object, str | None]


class ConfigWorker:
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
        self._planner = Planner(registry)
        self._hooks = HookEventHandler(
            Config("", "", os.getcwd(), None), self._planner, runner, aggregate
        )
        self._observing = asyncio.Semaphore(OBSERVING_MAX)
        self._writer = writer
        #: Calls that may begin: the runner refuses what is beyond its bound.
        self._free = WAITING_MAX
        self._freed = asyncio.Event()
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
                self._planner.skip = asked["skip"]
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
        asked = [
            one
            for one in self._routes
            if one.wants(event.kind, event.channel) and one.name not in skip
        ]
        plain = [one for one in asked if not one.callee.is_async]
        rest = [one for one in asked if one.callee.is_async]
        answers = await asyncio.gather(self._plain.call(event, plain), self._await(event, rest))
        hanging = self._plain.hanging() | self._functions.hanging()
        hung: list[str] = []
        said: list[list[Any]] = []
        quiet: dict[str, int] = {}
        for one, (latency_us, result, error) in zip(plain + rest, chain(*answers), strict=True):
            if result is None and error is None:
                quiet[one.name] = latency_us
            else:
                said.append([one.name, latency_us, result, error and error[:ERROR_MAX]])
                hung += [one.name] if one.callee in hanging else []
        # In the order of their priorities: so their dispatches are made.
        order = {one.name: number for number, one in enumerate(asked)} if rest else {}
        said.sort(key=lambda row: order.get(row[0], 0))
        return {"started_ms": started_ms, "said": said, "quiet": _line(quiet), "hung": hung}

    async def _await(self, event: Event, routes: list[RouteFunction]) -> list[Said]:
        """What the async ones said; of very many some after the others."""
        said: list[Said] = []
        arguments = (event,)
        for start in range(0, len(routes), WAITING_MAX):
            part = routes[start : start + WAITING_MAX]
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
        told = error.line if isinstance(error, RelayError) else f"it is not JSON: {error}"
        raise HandlerError(
            f"what it returned is not a result: {told}",
            hint="return a HookResult, True, False or None",
        ) from error
    if size > RESULT_MAX:
        raise HandlerError(
            f"its result has {size} bytes; the limit is {RESULT_MAX}",
            hint="put what is large in a file, and extract its path",
        )
    return None if result == _NOTHING else found


def _line(fields: Json) -> str:
    return json.dumps(fields, separators=(",", ":"))


class PlainCalls:
    """The threads, and which functions hang. Belongs to the worker's loop.

    Sessions call handlers by FunctionRunner, which also runs the async functions here. It has a
    record, a lock and a thread for each call, which is right for the few handlers of a tool call.
    Of a thousand functions that do not match it takes 26 ms an event, and 10 ms where its threads
    are begun one after the other; one thread that sweeps over all of them takes 2 ms. So plain
    functions have this way of their own: they share a thread as long as they are quick.
    """

    def __init__(self, read: Read, timeout: float) -> None:
        """``timeout``: seconds of a function that has no limit of its own."""
        self._read = read
        self._timeout = timeout
        self._threads: set[threading.Thread] = set()
        self._given_up: list[tuple[Callee, threading.Thread]] = []

    def hanging(self) -> set[Callee]:
        """Whose calls were given up and have not ended."""
        self._given_up = [one for one in self._given_up if one[1].is_alive()]
        return {callee for callee, _ in self._given_up}

    async def call(self, event: Event, routes: Sequence[RouteFunction]) -> list[Said]:
        """What each said, in the order of ``routes``. Never raises."""
        sweep = _Sweep(event, routes, self._read)
        self._start(sweep, 1)
        while None in sweep.found:
            waiting = len(sweep.left)
            sweep.changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(sweep.changed.wait(), self._patience(sweep))
            self._give_up_late(sweep)
            if waiting - len(sweep.left) < MANY:  # else more threads would only hold it up
                self._start(sweep, len(sweep.left))
        return [one for one in sweep.found if one is not None]

    def _start(self, sweep: _Sweep, wanted: int) -> None:
        self._threads = {one for one in self._threads if one.is_alive()}
        try:
            for _ in range(min(wanted, WORKERS - len(self._threads))):
                thread = threading.Thread(target=sweep.run, name="relay-routes", daemon=True)
                thread.start()
                self._threads.add(thread)
        except RuntimeError:  # the system has no more of them now
            return

    def _limit(self, sweep: _Sweep, index: int) -> float:
        return sweep.routes[index].callee.timeout or self._timeout

    def _patience(self, sweep: _Sweep) -> float:
        """Seconds until something is to be looked at, at the latest."""
        if sweep.left:
            return QUICK if len(self._threads) < WORKERS else 0.01
        due = [one[0] + self._limit(sweep, index) for index, one in sweep.begun.copy().items()]
        return max(QUICK, min(due, default=0.0) - time.monotonic())

    def _give_up_late(self, sweep: _Sweep) -> None:
        now = time.monotonic()
        for index, (began, thread) in sweep.begun.copy().items():
            if now - began >= (limit := self._limit(sweep, index)) and sweep.found[index] is None:
                took = int((now - began) * 1e6)
                sweep.found[index] = (took, None, f"it did not end within {limit:g} s")
                sweep.begun.pop(index, None)
                self._threads.discard(thread)
                self._given_up.append((sweep.routes[index].callee, thread))


class _Sweep:
    """The functions of one event, with what they said so far."""

    def __init__(self, event: Event, routes: Sequence[RouteFunction], read: Read) -> None:
        self.routes = routes
        self.arguments = (event,)
        self.read = read
        self.left = deque(range(len(routes)))
        self.found: list[Said | None] = [None] * len(routes)
        #: By index: since when, and in which thread.
        self.begun: dict[int, tuple[float, threading.Thread]] = {}
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()

    def run(self) -> None:
        """Call what is left, one after the other, until a call is given up. In a thread."""
        clock, thread = time.monotonic, threading.current_thread()
        left, begun, found, arguments = self.left, self.begun, self.found, self.arguments
        while left:
            try:
                index = left.popleft()
            except IndexError:
                break
            callee = self.routes[index].callee
            began = clock()
            begun[index] = (began, thread)
            result: object = None
            error: str | None = None
            try:
                value = callee.binding.call(callee.function, arguments)
                if value is not None and value is not False:
                    result = self.read(value)
            except HandlerError as problem:
                error = f"{problem.message}; {problem.hint}"
            except BaseException as problem:  # sys.exit() is a failure like any other
                error = one_line(problem)
            if found[index] is not None:  # it was given up meanwhile
                return
            found[index] = (int((clock() - began) * 1e6), result, error)
            begun.pop(index, None)
        with suppress(RuntimeError):  # the loop has gone
            self.loop.call_soon_threadsafe(self.changed.set)


async def _run(loaded: LoadedConfig, channel: Any, home: Home, channels: bool) -> None:
    reader, writer = await asyncio.open_connection(sock=channel, limit=LINE_MAX)
    await ConfigWorker(loaded, writer, home, channels=channels).serve(reader)


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
