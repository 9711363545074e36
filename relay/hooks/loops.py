"""The loop in which a session's async handlers run, and what becomes of one that is blocked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from relay.hooks.hook_model import Callee
from relay.hooks.hung import Hung
from relay.hooks.outcomes import End, Outcome, one_line, trace
from relay.hooks.threads import LoopJob, LoopThread, label_of
from relay.hooks.waits import Waits


class HandlerLoop:
    """Started when it is first needed. Belongs to the session's loop.

    ``report`` is called there with the failure of a task that a handler left behind. ``grace``: how
    long a cancelled call may take to end, and the loop to answer, in seconds.
    """

    def __init__(
        self, report: Callable[[Outcome[Any]], object], waits: Waits, hung: Hung, grace: float
    ) -> None:
        self._report = report
        self._waits = waits
        self._hung = hung
        self._grace = grace
        self._thread: LoopThread | None = None

    def current(self) -> LoopThread:
        """Where the next call runs. Raises OSError or RuntimeError where none can be started."""
        if self._thread is None:
            session = asyncio.get_running_loop()

            def stray(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
                with contextlib.suppress(RuntimeError):  # the session has gone
                    session.call_soon_threadsafe(self._report_stray, context)

            self._thread = LoopThread("relay-async-handlers", stray)
        return self._thread

    async def end(self, callee: Callee, job: LoopJob) -> None:
        """Cancel the call, and see that it ends, else that it cannot hold up the others."""
        job.cancel()
        if await self._waits.settled(job.future, self._grace):
            return
        if await job.loop.responds(self._grace):
            self._hung.add(callee, job.future)  # it refuses to be cancelled
            return
        # Something in this loop blocks it. Whoever it is, the next call gets a new loop.
        label = job.loop.current_label()
        culprit = label if isinstance(label, Callee) else callee
        if job.loop is self._thread:
            self._thread = None
            self._hung.add(culprit, job.loop.stop())

    def stop(self) -> Future[None] | None:
        """Cancel what runs; what ends with it, where there is a loop.

        A retired loop is not waited for: it has been asked to end, and something blocks it.
        """
        return None if self._thread is None else self._thread.stop()

    def _report_stray(self, context: dict[str, Any]) -> None:
        """A task that a handler left behind has failed."""
        label = label_of(context.get("task") or context.get("future"))
        name = label.name if isinstance(label, Callee) else "a handler"
        error = context.get("exception")
        if isinstance(error, BaseException):
            text, where = one_line(error), trace(error)
        else:
            text, where = str(context.get("message", "")), ""
        self._report(Outcome(name, End.RAISED, None, f"in a task it left: {text}", 0.0, where))
