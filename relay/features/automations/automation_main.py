"""A worker for automations: loads the sources that it is sent, and runs their handlers, one a time.

relay.features.personas.worker describes what it is asked. Handlers run in the main thread, another
thread reads; when there is no more to read, all that was started here ends. What a run leaves
behind (threads, children, much memory) would be met by the next one: the worker then ends after its
answer. Nothing keeps a handler from undoing its limits: they are for accidents."""

from __future__ import annotations

import _thread
import asyncio
import inspect
import json
import linecache
import os
import queue
import resource
import signal
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from relay.core import json_text
from relay.core.child_process import end_descendants, give_up, limit, take_input
from relay.core.errors import RelayError, UsageError, error_fields
from relay.core.paths import Home
from relay.core.processes import adopt_orphans
from relay.features.automations.automation_context import AutomationContext
from relay.features.automations.definition import (
    RESULT_MAX,
    Automation,
    AutomationResult,
    Definition,
)
from relay.features.personas.worker import ERROR_MAX, LINE_MAX

Json = dict[str, Any]

#: Bytes of memory, and descriptors.
MEMORY_MAX, FILES_MAX = 1 << 30, 256
#: Bytes of memory that a worker may have needed to take a further run.
_MEMORY_LEFT = MEMORY_MAX // 2


class Loaded(NamedTuple):
    """The module of one version of an automation, as it was run."""

    definition: Definition
    handler: Callable[[AutomationContext], object]


class AutomationWorker:
    """Answers the broker at the other end of ``channel``."""

    def __init__(self, channel: socket.socket, home: Home) -> None:
        self._channel = channel
        self._home = home
        self._pid = os.getpid()
        self._questions: queue.SimpleQueue[Json] = queue.SimpleQueue()
        self._loaded: dict[tuple[str, int], Loaded] = {}
        self._environment = dict(os.environ)
        threading.Thread(target=self._read, daemon=True).start()
        self._threads = _thread._count()

    def serve(self) -> None:
        """Answer until a run has left something behind."""
        self._say({"ready": {}})
        last = False
        while not last:
            asked = self._questions.get()
            try:
                said = self._answer(asked)
            finally:
                if os.getpid() != self._pid:
                    os._exit(0)  # a handler has forked, and this is the child
            last = said.pop("spoiled", False) or self._something_is_left()
            self._say({"id": asked["id"], **said, "last": last})

    def _read(self) -> None:
        try:
            with self._channel.makefile("rb") as lines:
                while line := lines.readline(LINE_MAX):
                    self._questions.put(json.loads(line))
        finally:
            # A handler that never waits would let this thread take a step every 5 ms only.
            sys.setswitchinterval(1e-6)
            end_descendants()
            give_up()

    def _say(self, fields: Json) -> None:
        self._channel.sendall(json_text.dumps(fields).encode() + b"\n")

    def _answer(self, asked: Json) -> Json:
        limit(resource.RLIMIT_CPU, int(time.process_time() + asked["deadline"]) + 1)
        if asked["do"] == "run":
            return self._run(asked)
        try:
            return {"definition": load(asked["path"], asked["source"]).definition.to_json()}
        except RelayError as error:
            return {"error": error_fields(error), "spoiled": True}

    def _run(self, asked: Json) -> Json:
        began = time.perf_counter()
        path, key = asked["path"], (asked["automation"], asked["version"])
        said: Json = {"result": None, "error": None, "state": {}}
        ctx = AutomationContext(asked, self._home)
        try:
            loaded = self._loaded.get(key)
            if loaded is None:
                said["spoiled"] = True  # until it is loaded
                loaded = self._loaded[key] = load(path, asked["source"])
                del said["spoiled"]
            value = loaded.handler(ctx)
            if inspect.isawaitable(value):
                value = asyncio.run(_awaited(value))
            result = AutomationResult.of(value).to_json()
            if (size := json_text.size_of(result)) > RESULT_MAX:
                raise UsageError(
                    f"its result has {size} bytes; the limit is {RESULT_MAX}",
                    hint="put what is large in a file, and give its path",
                )
            said |= {"state": ctx.changed_state(), "result": result}
        except BaseException as error:  # sys.exit() is a failure like any other
            said["error"] = _told(error, path)
            if not isinstance(error, RelayError):
                ctx.log.error("%s", _where(error, path))
            if isinstance(error, MemoryError):
                said["spoiled"] = True
        said["latency_us"] = int((time.perf_counter() - began) * 1e6)
        with suppress(Exception):  # a handler may have closed it
            sys.stdout.flush()
        return said | {"llm_calls": ctx.llm.calls}

    def _something_is_left(self) -> bool:
        """Whether the run has left what the next one would meet; small things are put right."""
        signal.alarm(0)
        with suppress(OSError):
            os.chdir(self._home.root)
        if os.environ != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            return True  # a child that runs
        return _thread._count() > self._threads or _peak() > _MEMORY_LEFT


def load(path: str, source: str) -> Loaded:
    """Run the text ``source`` of an automation's file, which is at ``path``. Raises UsageError."""
    name = f"relay_automation_{len(sys.modules)}"
    module = types.ModuleType(name)
    module.__file__ = path
    # Tracebacks show these lines, even when the file has changed on disk since.
    linecache.cache[path] = (len(source), None, source.splitlines(True), path)
    sys.modules[name] = module  # dataclasses look their module up by name
    try:
        exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise UsageError(f"{path}{line}: {error.msg}", hint="correct this line") from None
    except BaseException as error:  # sys.exit() too
        raise UsageError(
            f"{path} cannot be loaded: {_told(error, path)}",
            hint="correct this, then: relay automation register FILE",
        ) from error
    found = vars(module).get("automation")
    if found is None:
        raise UsageError(
            f"{path} has no automation at its top",
            hint="write: automation = Automation(name=…, description=…, handler=…)",
        )
    definition = Definition.of(found)
    handler = found.handler if isinstance(found, Automation) else found.get("handler")
    try:
        inspect.signature(handler).bind(None)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"the handler of {definition.name} must be a function of one argument",
            hint="write: def handler(ctx): …",
        ) from error
    return Loaded(definition, handler)


async def _awaited(value: Awaitable[object]) -> object:
    return await value


def _told(error: BaseException, path: str) -> str:
    """What was raised, and at which line of the file, on one line."""
    try:
        known = isinstance(error, RelayError)
        text = error.line if known else traceback.format_exception_only(error)[-1]  # type: ignore[attr-defined]
    except Exception:  # its __str__ raises
        text = type(error).__name__
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if _of(frame, path)]
    place = f" (line {lines[-1]})" if lines else ""
    return " ".join(text.split())[: ERROR_MAX - 20] + place


def _where(error: BaseException, path: str) -> str:
    """The traceback from the file on."""
    trace = error.__traceback__
    while trace is not None and not _of(trace.tb_frame, path):
        trace = trace.tb_next
    return "".join(traceback.format_tb(trace, 20)).rstrip() or type(error).__name__


def _of(frame: types.FrameType, path: str) -> bool:
    return frame.f_code.co_filename == path


def _peak() -> int:
    """The most bytes of memory that this process has had since it runs this program."""
    # Not by getrusage: on Linux that counts what the broker had when it forked this process.
    with suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    """Serve the broker at the other end of standard input. Does not return."""
    home = Home(sys.argv[1])
    try:
        channel = take_input()
        os.environ["RELAY_HOME"], os.environ["RELAY_CALLED"] = home.root, "1"
        adopt_orphans()
        limit(resource.RLIMIT_AS, MEMORY_MAX)
        limit(resource.RLIMIT_NOFILE, FILES_MAX)
        limit(resource.RLIMIT_CORE, 0)
        AutomationWorker(channel, home).serve()
    except BaseException:
        traceback.print_exc()
    end_descendants()
    give_up()
