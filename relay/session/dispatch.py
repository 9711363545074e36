"""From what was heard to the handlers that it is for.

Each namespace has a lane of its own: within it things happen in the order in which they were said,
and a slow ``@deploy:`` never holds up ``@relay:``. relay's own handlers only hand over, so they run
where they are; the user's run through the hook runner, off this loop, with a time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from relay.core.errors import RelayError
from relay.core.suggest import did_you_mean
from relay.directive.grammar import Found, Match, TooLong, Unclosed
from relay.hooks.context import Context
from relay.hooks.outputs import Result
from relay.hooks.registry import Registry
from relay.hooks.run_functions import CallOutcome, FunctionRunner
from relay.session.detector import Detection
from relay.session.retrying import until_answered

#: What may wait in one lane; beyond it the agent is told that it was not heard.
LANE_MAX = 1000
#: Characters of all that waits: it is part of the checkpoint, which must fit into one frame.
UNFINISHED_MAX = 4 * 1024 * 1024


class Dispatcher:
    """Brings each find to its handlers.

    ``context(heard)`` makes the handlers' context, ``claim(heard)`` says whether this find has not
    been acted on before (by a session that was killed), ``inject(text)`` gives an answer to the
    agent, ``tell(text)`` explains what went wrong to it, ``note(text)`` is for the person.
    """

    def __init__(
        self,
        registry: Registry,
        runner: FunctionRunner,
        *,
        context: Callable[[Detection], Context],
        claim: Callable[[Detection], Awaitable[bool]],
        inject: Callable[[str], object],
        tell: Callable[[str], None],
        note: Callable[[str], None],
        spawn: Callable[[Awaitable[None]], None],
    ) -> None:
        self._registry = registry
        self._runner = runner
        self._context = context
        self._claim = claim
        self._inject = inject
        self._tell = tell
        self._note = note
        self._spawn = spawn
        self._lanes: dict[str, asyncio.Queue[Detection]] = {}
        self._unfinished: dict[str, Detection] = {}
        self._size = 0

    def take(self, heard: Detection) -> None:
        """Act on one find. Never raises."""
        found = heard.found
        if not isinstance(found, Match):
            self._tell(refusal(self._registry, found))
        elif self._is_own(found):
            self._run_own(heard, found)
        else:
            self._queue(heard, found)

    async def settle(self, deadline: float) -> None:
        """Wait up to ``deadline`` seconds until every lane is empty and its last handler done."""
        lanes = [asyncio.ensure_future(lane.join()) for lane in self._lanes.values()]
        if lanes:
            _, late = await asyncio.wait(lanes, timeout=deadline)
            for one in late:
                one.cancel()

    def state(self) -> list[dict[str, Any]]:
        """What has been heard but not finished, for the checkpoint."""
        return [{"id": one.id, "match": asdict(one.found)} for one in self._unfinished.values()]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Go on with what an earlier session did not finish; what it had begun is not repeated."""
        for one in state:
            self.take(Detection(one["id"], Match(**one["match"])))

    def _is_own(self, match: Match) -> bool:
        handlers = self._registry.select(match.namespace, match.target)
        return bool(handlers) and all(handler.builtin for handler in handlers)

    def _run_own(self, heard: Detection, match: Match) -> None:
        for handler in self._registry.select(match.namespace, match.target):
            try:
                handler.callee.binding.call(
                    handler.callee.function, (match.target, match.body, self._context(heard))
                )
            except RelayError as error:
                self._tell(f"not done: {_head(match)}: {error.line}")

    def _queue(self, heard: Detection, match: Match) -> None:
        lane = self._lanes.get(match.namespace)
        if lane is None:
            lane = self._lanes[match.namespace] = asyncio.Queue(LANE_MAX)
            self._spawn(self._work(lane))
        size = _size(match)
        if lane.full() or self._size + size > UNFINISHED_MAX:
            self._tell(f"not done: {_head(match)}: too many earlier ones still wait")
            return
        if heard.id in self._unfinished:
            return  # heard again while it waits
        lane.put_nowait(heard)
        self._unfinished[heard.id] = heard
        self._size += size

    async def _work(self, lane: asyncio.Queue[Detection]) -> None:
        while True:
            heard = await lane.get()
            match = heard.found
            assert isinstance(match, Match)
            try:
                await self._run(heard, match)
            except RelayError as error:
                # The next one in this lane has nothing to do with it.
                self._tell(f"not done: {_head(match)}: {error.line}")
            finally:
                del self._unfinished[heard.id]
                self._size -= _size(match)
                lane.task_done()

    async def _run(self, heard: Detection, match: Match) -> None:
        if refused := refusal(self._registry, match):
            self._tell(refused)
            return
        if not await until_answered(lambda: self._claim(heard), self._waits):
            return
        outcomes = await self._runner.run_pattern(
            match.namespace, match.target, match.body, self._context(heard)
        )
        for outcome in outcomes:
            self._conclude(match, outcome)

    def _waits(self, error: RelayError) -> None:
        self._note(f"a handler waits: {error.message}")

    def _conclude(self, match: Match, outcome: CallOutcome[Result]) -> None:
        if outcome.result is not None:
            for text in outcome.result.inject:
                self._inject(text)
        elif not outcome.ok:
            # The reason is for the person; the agent only learns that it did not happen.
            self._note(f"{outcome.handler}: {outcome.error}")
            self._tell(f"{_head(match)}: its handler failed; the person can see why")


def refusal(registry: Registry, found: Found) -> str:
    """What the agent is told because nothing can be done; empty when there are handlers for it."""
    if isinstance(found, Unclosed):
        return _unclosed(found)
    if isinstance(found, TooLong):
        return (
            f"not sent: the message to @{found.namespace}:{found.target} has {found.size}"
            " bytes, more than 1 MiB; send the name of a file instead"
        )
    if registry.select(found.namespace, found.target):
        return ""
    known = sorted(
        handler.target for handler in registry.patterns() if handler.namespace == found.namespace
    )
    return f"not done: nothing handles {_head(found)}; {did_you_mean(found.target, known)}"


def _head(match: Match) -> str:
    return f"@{match.namespace}:{match.target}"


def _size(match: Match) -> int:
    return len(match.raw) + len(match.body)


def _unclosed(found: Unclosed) -> str:
    text = (
        f"not sent: the message to @{found.namespace}:{found.target} was opened with <<< and never"
        " closed with a line >>>"
    )
    if found.swallowed:
        text += f"; {len(found.swallowed)} more inside it were not sent either"
    return text
