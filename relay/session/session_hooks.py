"""The hooks of one session: their engine, its log, and the requests of others to run them.

Nobody waits for the log. The records that wait for a broker that is away are bounded: beyond that
the oldest are dropped, and a note says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from relay.agents.base import AgentAdapter
from relay.core.errors import RelayError, UsageError, error_fields
from relay.core.plain import NotPlain, plain
from relay.directive.redact import redact
from relay.hooks import hook_log
from relay.hooks.aggregator import aggregate
from relay.hooks.context import Context, Identity
from relay.hooks.engine import Config, HookEventHandler, RequestChannel, RequestCode
from relay.hooks.events import HookEventName, event_name
from relay.hooks.hook_log import HookLog, aggregated_record
from relay.hooks.planner import Planner
from relay.hooks.registry import Registry
from relay.hooks.run_functions import FunctionRunner
from relay.hooks.runner import HookRunner
from relay.protocol.agent_ops import ANSWER, HOOKS_RAN
from relay.session.background import Tasks
from relay.session.broker_reports import Broker
from relay.session.door import FeatureAnswer
from relay.session.session_commands import PersonNote
from relay.session.session_events import EventQueue, SourcesRead

#: At the session's end: how long finished responses may take to be sent. Seconds.
_LAST_RESPONSES = 2.0


class SessionConfig(Config):
    """The session's facts for the engine."""

    def __init__(self, identity: Identity, context: Context, adapter: AgentAdapter | None) -> None:
        super().__init__(identity.session_id, identity.agent_name, identity.working_dir, context)
        self._adapter = adapter

    def transcript_path(self) -> str:
        return (self._adapter and self._adapter.source.transcript_path) or ""


def make_engine(
    config: SessionConfig,
    registry: Registry,
    functions: FunctionRunner,
    *,
    env: Mapping[str, str],
    log: HookLog | None = None,
) -> HookEventHandler:
    """The engine over ``registry``; programs among the hooks run with ``env``."""
    runner = HookRunner(functions, cwd=config.working_dir, env=env, timeout=functions.timeout)
    return HookEventHandler(config, Planner(registry), runner, aggregate, log=log)


@dataclass(frozen=True, slots=True)
class SessionHooks:
    """A session's hook engine, its log, and the requests of other processes to it."""

    functions: FunctionRunner
    log: SessionHookLog
    engine: HookEventHandler
    remote: RemoteRequests

    async def close(self, seconds: float) -> None:
        """Store the log, for at most ``seconds``, and close everything."""
        await self.log.settle(seconds)
        await self.engine.close()
        await self.remote.close(_LAST_RESPONSES)
        await self.functions.close()


#: How long a response may take to reach the broker. Seconds.
SENDING = 10.0

Json = dict[str, Any]


class RemoteRequests:
    """Answers requests of other processes, each once: the broker's ``ask`` pushes.

    They run the session's hooks, or another part or a feature of the session answers them. The
    broker keeps their deadlines: when one is over, the asker has been told, and nothing is sent.
    """

    def __init__(
        self,
        hooks: RequestChannel,
        broker: Broker,
        queue: EventQueue,
        answers: Mapping[str, FeatureAnswer] | None = None,
    ) -> None:
        """``answers``: by kind, what answers such requests."""
        self._hooks = hooks
        self._answers = answers or {}
        self._broker = broker
        self._queue = queue
        self._tasks = Tasks(queue)
        self._closed = False

    def take(self, push: Mapping[str, Any]) -> None:
        """Begin to answer one push."""
        if not self._closed:
            self._tasks.spawn(self._serve(push))

    async def close(self, seconds: float) -> None:
        """Take no more requests; finished answers have ``seconds`` to be sent."""
        self._closed = True
        await self._tasks.settle(seconds)
        await self._tasks.end(seconds)

    async def _serve(self, push: Mapping[str, Any]) -> None:
        try:
            async with asyncio.timeout(float(push["timeout"])):
                answer: Json = {"response": await self._answer(push)}
        except TimeoutError:
            return
        except RelayError as error:
            answer = {"error": error_fields(error)}
        try:
            await self._send(push["id"], answer)
        except RelayError as error:
            if error.code != "too_large":
                return  # the broker has gone, and the asker knows it
            why = RelayError("the response is too large to be sent", code="internal_error")
            await self._send(push["id"], {"error": error_fields(why)})

    async def _send(self, id_: str, answer: Json) -> None:
        await self._broker.request(ANSWER, deadline=SENDING, id=id_, **answer)

    async def _answer(self, push: Mapping[str, Any]) -> Json:
        kind, request = push["kind"], push["request"]
        if (answer := self._answers.get(str(kind))) is not None:
            if not isinstance(request, Mapping):
                raise UsageError("the request is not an object")
            try:
                return await answer(request, push.get("by") == "person")
            finally:  # it may have seen the screen anew, and then the broker is told of that
                self._queue.post(SourcesRead())
        if kind != "hooks":
            raise UsageError(f"this session answers no requests of the kind {kind!r}")
        response = await self._hooks.request(request)
        identifier = response["correlation_id"]
        try:
            if not response["success"]:
                raise _error(plain(response["error"]), identifier)
            assert isinstance(request, Mapping)
            named = event_name(str(request["event_name"])).value
            record = aggregated_record(response["output"], identifier)
            sendable: Json = plain({"event": named, "correlation_id": identifier, **record})
        except NotPlain as error:
            why = f"what the hooks said cannot be sent: {error}"
            raise RelayError(
                why, code=RequestCode.INTERNAL_ERROR, details={"correlation_id": identifier}
            ) from None
        return sendable


def _error(error: Json, identifier: str) -> RelayError:
    """The error for the asker: all but an internal error is the asker's own mistake."""
    kind = RelayError if error["code"] == RequestCode.INTERNAL_ERROR else UsageError
    details = {**error["details"], "correlation_id": identifier}
    hint = str(details.pop("hint", ""))
    return kind(error["message"], hint=hint, code=error["code"], details=details)


#: Records that wait for the broker, and records in one request.
WAITING_MAX = 1000
AT_ONCE = 100
#: Characters of one text; a request of AT_ONCE of them stays well below the longest line.
TEXT_MAX = 2000
#: Records that come within so many seconds go in one request.
TOGETHER = 0.25
#: Frequent events: only runs that said or decided something, or failed, are kept.
_CHATTY = frozenset({HookEventName.OUTPUT.value, HookEventName.IDLE.value})
_KEPT = ("event", "hook", "kind", "source", "duration", "success", "exit_status")
_KEPT_MORE = ("correlation_id", "decision")


class SessionHookLog:
    """A :class:`relay.hooks.hook_log.HookLog`. ``verbose``: all records go to the run's log."""

    def __init__(
        self,
        broker: Broker,
        events: EventQueue,
        tasks: Tasks,
        *,
        verbose: bool = False,
    ) -> None:
        self._broker = broker
        self._events = events
        self._tasks = tasks
        self._verbose = verbose
        self._waiting: deque[dict[str, Any]] = deque()
        self._sending = False
        self._one = asyncio.Lock()  # one request at a time, so that no record is sent twice
        self._left_out = 0
        self._last_kept = ""  # the correlation id of the last record that was kept

    def soon(self, records: Iterator[tuple[str, dict[str, Any]]]) -> None:
        """See relay.hooks.hook_log.HookLog: in the loop's next turn the agent has its answer."""
        asyncio.get_running_loop().call_soon(self._make, records)

    def _make(self, records: Iterator[tuple[str, dict[str, Any]]]) -> None:
        for kind, record in records:
            with contextlib.suppress(OSError):  # the run's log cannot be written to
                self.log(kind, record)

    def log(self, kind: str, record: dict[str, Any]) -> None:
        """Take a record; see relay.hooks.hook_log."""
        if self._verbose or kind in (hook_log.FAILURE, hook_log.ENGINE_FAILURE):
            text = json.dumps(record, default=str, ensure_ascii=True)
            print(f"{kind} {text}", file=sys.stderr)
        if kind == hook_log.BATCH_SUMMARY:
            # A single hook's own record says the same; nothing is kept of runs that are not kept.
            if record["total"] < 2 or record["correlation_id"] != self._last_kept:
                return
            record = _as_run(record)
        elif kind != hook_log.RESULT or _dull(record):
            return
        self._last_kept = record["correlation_id"]
        self._waiting.append(_stored(record))
        if len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()
            self._left_out += 1
        if not self._sending:
            self._sending = True
            self._tasks.spawn(self._send())

    async def settle(self, seconds: float) -> None:
        """Wait until all of it is stored, at most ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(0)  # those of the last hooks are made in the loop's next turn
                while self._waiting:
                    await self._send_some()
        except (TimeoutError, RelayError):
            self._note(
                f"{len(self._waiting)} runs of hooks were not recorded:"
                " the broker cannot be reached"
            )

    async def _send(self) -> None:
        try:
            while self._waiting:
                if len(self._waiting) < AT_ONCE:  # else more would come than is sent
                    await asyncio.sleep(TOGETHER)
                await self._send_some()
        finally:
            self._sending = False
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            self._note(f"{left_out} runs of hooks are in no ledger: they came too fast")

    def _note(self, text: str) -> None:
        self._events.post(PersonNote(text))

    async def _send_some(self) -> None:
        async with self._one:
            some = list(self._waiting)[:AT_ONCE]
            if not some:
                return
            await self._broker.request(HOOKS_RAN, records=some)
            for record in some:
                if self._waiting and self._waiting[0] is record:
                    self._waiting.popleft()


def _dull(record: dict[str, Any]) -> bool:
    return (
        record["event"] in _CHATTY
        and bool(record["success"])
        and not record["decision"]
        and not record.get("said")
        and not record["stdout"]
        and not record["stderr"]
    )


def _as_run(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary of several hooks in the columns of one."""
    failed = summary["failed"]
    said = f"{summary['total']} hooks: {summary['succeeded']} succeeded, {failed} failed"
    return summary | {"hook": said, "kind": hook_log.BATCH, "success": not failed}


def _stored(record: dict[str, Any]) -> dict[str, Any]:
    kept = {name: record.get(name) for name in (*_KEPT, *_KEPT_MORE)}
    for name in ("stdout", "stderr", "error"):
        kept[name] = redact(_text(record.get(name)))
    kept["hook"], kept["source"] = _text(record.get("hook")), _text(record.get("source"))
    return kept


def _text(value: object) -> str:
    """A text that UTF-8 can carry, cut."""
    text = str(value)[:TEXT_MAX] if value else ""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
