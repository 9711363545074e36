"""The channel adapters of a configuration: what they tell of becomes events, answers they send.

Each runs in a thread of its own, with an event loop of its own: one that stands still holds up no
other one, and no route function. One that fails is started again, each time later. What a
generator yields is on the disk when it is asked for more.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from relay.core.dispatch import AnswerContext
from relay.core.errors import NotDelivered, RelayError, UsageError
from relay.core.paths import Home
from relay.hooks.hook_types import ChannelAdapter, ChannelInlet
from relay.ledger import content_files

Json = dict[str, Any]
#: Asks the broker, in the worker's event loop. Raises RelayError.
Ask = Callable[[Json], Coroutine[Any, Any, Json]]

#: Seconds between a failure and the next start: the first time, at most, and after how long of
#: running it counts as the first again.
PAUSE, PAUSE_MAX, RECOVERED = 1.0, 60.0, 60.0
#: Events that one adapter may have under way, and answers that it may be sending.
EVENTS_MAX, SENDS_MAX = 64, 32
#: Of the broker's time for one answer, what stays to tell it how that went. Seconds.
MARGIN = 5.0


class _Inlet:
    """What an adapter is given: a ``ChannelInlet`` of its channel."""

    def __init__(self, name: str, home: Home, ask: Ask, loop: asyncio.AbstractEventLoop) -> None:
        self.channel = name
        self._home = home
        self._ask = ask
        self._loop = loop
        self._room = asyncio.Semaphore(EVENTS_MAX)

    async def put(self, event: Mapping[str, Any]) -> Json:
        outside = await asyncio.to_thread(self._outside, event)
        async with self._room:
            asked = self._ask({"op": "event", "outside": outside})
            answer = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._loop))
        return {"id": answer["id"], "duplicate": answer["duplicate"]}

    async def failed(self, error: BaseException) -> None:
        problem = f"{type(error).__name__}: {error}"[:500]
        asked = self._ask({"op": "adapter_failed", "channel": self.channel, "problem": problem})
        with suppress(RelayError):  # it is in the log
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, self._loop))

    def _outside(self, event: Mapping[str, Any]) -> Json:
        """The event as it travels: of this channel, its files stored."""
        if not isinstance(event, Mapping):
            raise UsageError(
                f"an adapter yields events, dictionaries of JSON values, not {event!r}"
            )
        files = event.get("files") or []
        if not isinstance(files, list | tuple):
            raise UsageError("files is a list of paths (pathlib.Path) or of (name, bytes)")
        stored = [self._stored(one) for one in files]
        outside = {**event, "channel": self.channel, "files": stored}
        try:
            json.dumps(outside)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the event is not JSON: {error}") from error
        return outside

    def _stored(self, given: object) -> Json:
        if isinstance(given, os.PathLike):
            data = content_files.read(os.fspath(given))
            return content_files.stored(self._home, os.path.basename(given), data)
        if isinstance(given, tuple) and len(given) in (2, 3) and isinstance(given[1], bytes):
            return content_files.stored(self._home, str(given[0]), *given[1:])
        # Not the name of a file in a text: what comes from outside must not choose one.
        raise UsageError("a file is a pathlib.Path, or (name, bytes) or (name, bytes, type)")


class _RunningAdapter:
    """One adapter in its thread."""

    def __init__(self, adapter: ChannelAdapter, inlet: ChannelInlet) -> None:
        self._adapter = adapter
        self._inlet = inlet
        self._room = threading.BoundedSemaphore(SENDS_MAX)
        self._threads = ThreadPoolExecutor(SENDS_MAX)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._main, name=adapter.name, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self._loop)
        if self._adapter.events is not None:
            self._listening = self._loop.create_task(self._listen())
        while True:
            with suppress(SystemExit, KeyboardInterrupt):  # an answer's end, not the adapter's
                self._loop.run_forever()

    # -- events

    async def _listen(self) -> None:
        pause = PAUSE
        while True:
            began = time.monotonic()
            try:
                await self._listen_once()
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # SystemExit too: it is the adapter's end, not ours
                self._say(error)
                await self._inlet.failed(error)
            else:
                return
            if time.monotonic() - began >= RECOVERED:
                pause = PAUSE
            print(f"the channel adapter {self._adapter.name} starts again in {pause:g} s")
            await asyncio.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX)

    async def _listen_once(self) -> None:
        """Run it until its end."""
        function = self._adapter.events
        assert function is not None
        arguments = [self._inlet] if inspect.signature(function).parameters else []
        made: Any = function(*arguments)
        if not inspect.isasyncgen(made):
            await made
            return
        told: Any = None
        try:
            while True:
                told = await self._put(await made.asend(told))
        except StopAsyncIteration:
            return
        finally:
            await made.aclose()

    async def _put(self, event: Any) -> Json | None:
        """Store what was yielded; what is not an event, or refused, is logged and passed over."""
        while True:
            try:
                return await self._inlet.put(event)
            except UsageError as error:
                print(f"the channel adapter {self._adapter.name}: {error.line}")
                return None
            except RelayError as error:
                print(f"the channel adapter {self._adapter.name}: {error.line}; it is told again")
                await asyncio.sleep(PAUSE)

    # -- answers

    async def send(self, context: AnswerContext, text: str, limit: float) -> None:
        """Send an answer. Raises whatever the adapter does, TimeoutError when it takes too long."""
        function = self._adapter.send
        assert function is not None
        # What takes too long is given up, and a thread holds its place as long as it goes on.
        if not self._room.acquire(blocking=False):
            raise RelayError(f"{SENDS_MAX} answers are under way", code="busy")
        if inspect.iscoroutinefunction(function):
            future = asyncio.run_coroutine_threadsafe(function(context, text), self._loop)
        else:
            future = self._threads.submit(function, context, text)
        future.add_done_callback(lambda _: self._room.release())
        async with asyncio.timeout(limit):
            await asyncio.wrap_future(future)

    def _say(self, error: BaseException) -> None:
        lines = traceback.format_exception(error)[-4:]
        print(f"the channel adapter {self._adapter.name} failed:\n{''.join(lines)}", end="")
        sys.stdout.flush()


class ChannelAdapters:
    """Runs the adapters of one configuration. Belongs to the loop that makes it."""

    def __init__(self, adapters: Sequence[ChannelAdapter], home: Home, ask: Ask) -> None:
        loop = asyncio.get_running_loop()
        self._adapters = {one.name: one for one in adapters}
        self._running = {
            one.name: _RunningAdapter(one, _Inlet(one.name, home, ask, loop)) for one in adapters
        }

    async def send(self, asked: Json) -> Json:
        """Send the answer in ``asked``: ``sent``. Raises RelayError, which says why not:
        NotDelivered where no later try would do better."""
        name, limit = str(asked["channel"]), float(asked["limit"])
        adapter = self._adapters.get(name)
        if adapter is None or adapter.send is None:
            raise NotDelivered(f"no channel adapter sends over {name}")
        given = {key: asked[key] for key in ("to", "persona", "event", "attempt")}
        context = AnswerContext(**asked["context"], **given, id=asked["answer"])
        try:
            await self._running[name].send(context, str(asked["text"]), max(1.0, limit - MARGIN))
        except RelayError:
            raise
        except TimeoutError as error:
            raise RelayError(f"the channel adapter took longer than {limit:g} s") from error
        except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
            raise RelayError(f"{type(error).__name__}: {error}"[:500]) from error
        return {"sent": True}
