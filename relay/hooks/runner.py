"""Runs the hooks of a plan: functions, programs and HTTP endpoints. Whatever they do is a result.

Side by side, or one after the other where each sees what those before it have rewritten. Programs
and requests together have a bounded number of places; functions have those of their FunctionRunner.
A hook that waits for a place does not lose time of its own by that.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from relay.core.http import RequestFailed, request
from relay.hooks import aggregator, outputs, run_programs
from relay.hooks.dialects import PROJECT_VARIABLES, spelled_input
from relay.hooks.events import HookEventName, arguments
from relay.hooks.hook_types import (
    Call,
    Callee,
    CallOutcome,
    Command,
    Decision,
    Dialect,
    HookDefinition,
    HookOutput,
    HookRun,
    Plan,
    ToolMode,
    ToolSelection,
    Url,
)
from relay.hooks.registry import TIMEOUT_DEFAULT
from relay.hooks.run_functions import FunctionRunner

#: Seconds that a program has when nothing else is configured.
COMMAND_TIMEOUT = 60.0
#: Programs and requests at once.
POOL = 8
#: Programs and requests that may wait for a place; further ones fail at once.
WAITING_MAX = 1000
#: Bytes of an output that a result shows.
SHOWN_MAX = 16 * 1024
_LINE_MAX = 200
#: Of relay's own variables, those that a hook inherits. All others stay behind, also new ones.
INHERITED = frozenset(
    {
        *("RELAY_HOME", "RELAY_AGENT", "RELAY_BROKER_IDLE"),
        *("RELAY_HOPS_MAX", "RELAY_RATE_MAX", "RELAY_STORED_MAX"),
    }
)
_LEAVES = (str, int, float)  # a tuple: a union is looked at anew each time


class HookRunner:
    """The hooks of one session. Belongs to the loop that awaits it.

    ``cwd`` is the agent's working directory and ``env`` its environment; programs start there and
    get what hook_environment() leaves of it. ``timeout`` in seconds is for hooks that have none of
    their own and are no programs. ``grace``: see run_command().
    """

    def __init__(
        self,
        functions: FunctionRunner,
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout: float = TIMEOUT_DEFAULT,
        pool: int = POOL,
        grace: float = run_programs.GRACE,
    ) -> None:
        self._functions = functions
        self._cwd = cwd
        self._env = dict(env)
        self._timeout = timeout
        self._places = asyncio.Semaphore(pool)
        self._waiting = 0
        self._grace = grace

    async def run(self, plan: Plan, payload: Mapping[str, Any], ctx: object) -> list[HookRun]:
        """Run the hooks of ``plan`` and return their results in its order.

        ``payload`` is the event's input; no hook can change it, not even for another one. In a
        sequence a denial keeps later hooks from running, and ``last`` those of the same file; they
        have no result. A failure keeps none. Only CancelledError is raised, and then all that ran
        has been killed.
        """
        if plan.sequential:
            return await self._in_turn(plan, payload, ctx)
        given = _Input(plan.event, payload)
        functions = [hook for hook in plan.hooks if isinstance(hook.action, Callee)]
        if len(functions) == len(plan.hooks):
            return await self._call(functions, given, ctx)
        others = [hook for hook in plan.hooks if not isinstance(hook.action, Callee)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(hook, given, ctx)) for hook in others]
            called = group.create_task(self._call(functions, given, ctx))
        results = {one.hook: one for one in (*called.result(), *(task.result() for task in tasks))}
        return [results[hook] for hook in plan.hooks]

    async def _in_turn(self, plan: Plan, payload: Mapping[str, Any], ctx: object) -> list[HookRun]:
        results = []
        given = _Input(plan.event, payload)
        ended: set[str] = set()  # files that have said that their further hooks do not run
        for hook in plan.hooks:
            if hook.source in ended:
                continue
            result = await self._one(hook, given, ctx)
            results.append(result)
            if not result.success or result.output is None:
                continue
            if result.output.decision is Decision.DENY:
                break
            if result.output.last:
                ended.add(hook.source)
            given = _Input(plan.event, rewritten(plan.event, given.payload, result.output))
        return results

    async def _one(self, hook: HookDefinition, given: _Input, ctx: object) -> HookRun:
        began = time.monotonic()
        try:
            if isinstance(hook.action, Callee):
                return (await self._call([hook], given, ctx))[0]
            if self._waiting >= WAITING_MAX:
                return self._failed(hook, given.event, "too many hooks are waiting", began)
            self._waiting += 1
            try:
                await self._places.acquire()
            finally:
                self._waiting -= 1
            began = time.monotonic()
            try:
                if isinstance(hook.action, Command):
                    return await self._start(hook, hook.action, given, began)
                return await self._ask(hook, hook.action, given, began)
            finally:
                self._places.release()
        except Exception as error:  # of the engine's own, or an input that has no JSON form
            return self._failed(hook, given.event, _said(error), began)

    async def _call(
        self, hooks: Sequence[HookDefinition], given: _Input, ctx: object
    ) -> list[HookRun]:
        """The results of ``hooks``, which are functions, in their order."""
        event = given.event

        def read(value: object, name: str) -> HookOutput:
            return outputs.read_value(value, name, event)

        def offered() -> Sequence[object]:
            return arguments(event, _copied(given.payload), ctx)

        calls = []
        for hook in hooks:
            callee = hook.action
            assert isinstance(callee, Callee)
            limit = self._limit(hook, callee.timeout or self._timeout)
            calls.append(Call(callee, offered, read, limit))
        began = time.monotonic()
        try:
            outcomes = await self._functions.call_all(calls)
        except Exception as error:  # of the engine's own
            text = _said(error)
            return [self._failed(hook, event, text, began) for hook in hooks]
        return [_result(hook, outcome) for hook, outcome in zip(hooks, outcomes, strict=True)]

    async def _start(
        self, hook: HookDefinition, command: Command, given: _Input, began: float
    ) -> HookRun:
        why = run_programs.refused(command)
        if why:
            result = self._failed(hook, given.event, why, began)
            if given.event is not HookEventName.BEFORE_TOOL:
                return result
            # Whatever its failure means: nobody may open a gate by changing its program.
            return replace(result, output=outputs.denied(hook, why))
        where = run_programs.working_directory(command, self._cwd)
        env = hook_environment(
            self._env,
            command,
            event=given.event,
            dialect=hook.dialect,
            project=self._cwd,
            cwd=where,
        )
        ended = await run_programs.run_command(
            command,
            given.encoded(hook.dialect),
            cwd=self._cwd,
            env=env,
            timeout=self._limit(hook, COMMAND_TIMEOUT),
            grace=self._grace,
        )
        error = ended.error
        if not error and ended.cut and ended.status == 0:
            # A decision might stand in what was thrown away.
            error = f"it printed more than {run_programs.KEPT_MAX} bytes"
        result = self._read(hook, given, began, error, ended.stdout, ended.stderr, ended.status)
        return replace(result, exit_status=ended.status)

    async def _ask(self, hook: HookDefinition, url: Url, given: _Input, began: float) -> HookRun:
        body, error = b"", ""
        limit = self._limit(hook, self._timeout)
        try:
            payload = given.encoded(hook.dialect)
            answer = await request("POST", url.url, url.headers, payload, timeout=limit)
            body = answer.body
            if not 200 <= answer.status < 300:
                error = f"HTTP status {answer.status}: {_shown(body)[:_LINE_MAX]}"
                error = " ".join(error.split()).rstrip(":")
        except RequestFailed as failed:
            error = failed.message
        return self._read(hook, given, began, error, body)

    def _read(
        self,
        hook: HookDefinition,
        given: _Input,
        began: float,
        error: str,
        stdout: bytes,
        stderr: bytes = b"",
        status: int | None = 0,
    ) -> HookRun:
        """What a program printed, or an endpoint answered; ``error``: why that does not count."""
        if error:
            output = outputs.on_failure(hook, given.event, error)
        else:
            reading = outputs.read_process(hook, given.event, status, stdout, stderr)
            output, error = reading.output, reading.error
        return HookRun(
            hook,
            not error,
            output,
            error=error,
            duration=time.monotonic() - began,
            stdout=_shown(stdout),
            stderr=_shown(stderr),
        )

    def _failed(
        self, hook: HookDefinition, event: HookEventName, error: str, began: float
    ) -> HookRun:
        output = outputs.on_failure(hook, event, error)
        return HookRun(hook, False, output, error=error, duration=time.monotonic() - began)

    def _limit(self, hook: HookDefinition, otherwise: float) -> float:
        return otherwise if hook.timeout is None else hook.timeout


class _Input:
    """What hooks are given: the event's input, encoded at most once for each dialect."""

    def __init__(self, event: HookEventName, payload: Mapping[str, Any]) -> None:
        self.event = event
        self.payload = payload
        self._encoded: dict[Dialect, bytes] = {}

    def encoded(self, dialect: Dialect) -> bytes:
        """The JSON for a hook of ``dialect``. Raises TypeError or ValueError when there is none."""
        if dialect not in self._encoded:
            spoken = spelled_input(self.event, self.payload, dialect)
            self._encoded[dialect] = json.dumps(spoken, allow_nan=False).encode()
        return self._encoded[dialect]


def hook_environment(
    base: Mapping[str, str],
    command: Command,
    *,
    event: HookEventName,
    dialect: Dialect,
    project: str,
    cwd: str,
) -> dict[str, str]:
    """``base`` (the agent's environment) for one hook; what ``command`` itself sets wins.

    A hook is the person's program, not the agent's. So it has no token and no channel of the run:
    `relay send` in a hook speaks as the person, through the broker of the same RELAY_HOME.

    ``project`` is the agent's working directory, ``cwd`` the one that the hook starts in.
    """
    env = {key: value for key, value in base.items() if _inherited(key)}
    env["PWD"] = cwd
    env["RELAY_HOOK_EVENT"] = event.value
    env["RELAY_CALLED"] = "1"
    for name in PROJECT_VARIABLES[dialect]:
        env[name] = project
    env.update(command.env)
    return env


def _inherited(name: str) -> bool:
    return not name.startswith("RELAY_") or name in INHERITED


def _result(hook: HookDefinition, outcome: CallOutcome[HookOutput]) -> HookRun:
    ok = outcome.ok
    output = outcome.result if ok else outputs.on_failure(hook, hook.event, outcome.error)
    return HookRun(hook, ok, output, outcome.error, outcome.duration, trace=outcome.trace)


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[: outputs.ERROR_MAX]


def rewritten(
    event: HookEventName, payload: Mapping[str, Any], output: HookOutput
) -> dict[str, Any]:
    """The input of the next hook in a sequence, after one that said ``output``; a new dict."""
    after = dict(payload)
    if event is HookEventName.BEFORE_TOOL and output.input:
        after["tool_input"] = _merged(payload.get("tool_input"), output.input)
    elif event is HookEventName.AFTER_TOOL and output.response is not None:
        after["tool_response"] = output.response
    elif event is HookEventName.BEFORE_AGENT and output.context:
        after["prompt"] = f"{payload.get('prompt') or ''}\n\n{output.context}"
    elif event is HookEventName.AFTER_MODEL and output.request:
        after["llm_response"] = _merged(payload.get("llm_response"), output.request)
    elif event is HookEventName.BEFORE_TOOL_SELECTION and output.tools is not None:
        request = payload.get("llm_request")
        after["llm_request"] = _merged(request, {"toolConfig": _chosen(request, output.tools)})
    elif event is HookEventName.BEFORE_MODEL and output.request:
        after["llm_request"] = _merged(payload.get("llm_request"), output.request)
    return after


def _chosen(request: object, tools: ToolSelection) -> dict[str, Any]:
    """The tools of a request in the hooks' form, as far as ``tools`` allows them too."""
    given = request.get("toolConfig") if isinstance(request, Mapping) else None
    given = given if isinstance(given, Mapping) else {}
    mode, names = given.get("mode"), given.get("allowedFunctionNames")
    earlier = ToolSelection(
        ToolMode(mode) if mode in list(ToolMode) else ToolMode.AUTO,
        tuple(names) if isinstance(names, list) else None,
    )
    both = aggregator.narrowed([earlier, tools])
    assert both is not None
    chosen: dict[str, Any] = {"mode": both.mode.value}
    return chosen if both.names is None else chosen | {"allowedFunctionNames": list(both.names)}


def _merged(old: object, new: Mapping[str, Any]) -> dict[str, Any]:
    return {**(old if isinstance(old, Mapping) else {}), **new}


def _copied(value: Any) -> Any:
    """A copy of a JSON value, so that no hook sees what another one does with its own."""
    if isinstance(value, _LEAVES):
        return value
    if isinstance(value, (dict, Mapping)):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value


def _shown(data: bytes) -> str:
    return data[:SHOWN_MAX].decode("utf-8", "replace")
