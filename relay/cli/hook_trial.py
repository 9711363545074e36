"""``relay hooks test`` and ``fire``: the hooks for an event, tried out."""

from __future__ import annotations

import asyncio
import json
import os
import time
from concurrent.futures import Future
from typing import Any

from relay.broker.client import connect
from relay.broker.hookcall import fire
from relay.cli import output
from relay.cli.parser import Options
from relay.config.load import LoadedConfig, load_for_session
from relay.core.errors import EXIT_FAILED, NotFound, UsageError
from relay.core.ids import new_ulid
from relay.core.message import QueueMode
from relay.core.paths import Home
from relay.hooks.context import Context, Identity
from relay.hooks.events import (
    EVENTS,
    HookEventName,
    RegistrationError,
    event_name,
    example,
    problem,
)
from relay.hooks.hook_log import aggregated_record
from relay.hooks.run_functions import FunctionRunner
from relay.session.hook_setup import SessionConfig, make_engine

#: What an event is about that does not say it: the fields that are left out of ``--input``.
_USUAL: dict[HookEventName, dict[str, Any]] = {
    HookEventName.SESSION_START: {"source": "startup"},
    HookEventName.SESSION_END: {"reason": "exit"},
    HookEventName.BEFORE_TOOL: {"tool_input": {}},
    HookEventName.AFTER_TOOL: {"tool_input": {}, "tool_response": ""},
    HookEventName.AFTER_AGENT: {"prompt": "", "prompt_response": ""},
    HookEventName.PRE_COMPRESS: {"trigger": "auto"},
}


def run_test(options: Options) -> int:
    """Run the hooks for an event that did not happen; nothing is sent or injected."""
    try:
        event = event_name(options.event)
    except RegistrationError as error:
        raise UsageError(error.message, hint=error.hint) from None
    given = _input(options)
    loaded = applying(options)
    usual = _USUAL.get(event, {}) | {"idle_seconds": loaded.settings.idle_seconds}
    fields = {name: usual[name] for name in EVENTS[event].required if name in usual} | given
    wrong = problem(event, fields)
    if wrong:
        shown = {name: usual.get(name, one) for name, one in example(event).items()}
        raise UsageError(wrong, hint=f"for example --input '{json.dumps(shown)}'")
    return _shown_test(asyncio.run(_fire(loaded, event, fields)), options)


def run_fire(options: Options) -> int:
    """Run the hooks of an agent that runs, in its session."""
    fields = _input(options)
    with connect(Home.from_env()) as client:
        record = fire(
            client, options.agent, options.event, fields, options.timeout, **output.speaker()
        )
    return _shown_test(record, options)


def _input(options: Options) -> dict[str, Any]:
    try:
        fields = json.loads(options.input)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--input is no JSON: {error}", hint="give an object: {}") from None
    if not isinstance(fields, dict):
        raise UsageError("--input is no JSON object", hint='for example {"tool_name": "Bash"}')
    return fields


def _shown_test(record: dict[str, Any], options: Options) -> int:
    if options.json:
        output.as_json(record)
    else:
        _print_test(record)
    return 0 if record["success"] else EXIT_FAILED


def applying(options: Options) -> LoadedConfig:
    """The configurations that apply. Raises RelayError where none may run or one is broken."""
    loaded = load_for_session(Home.from_env(), os.getcwd(), options.config)
    check(loaded)
    warn(loaded)
    return loaded


def check(loaded: LoadedConfig) -> None:
    """Raises RelayError where none of them may run, or one is broken."""
    if loaded.unusable is not None:
        raise loaded.unusable
    if loaded.untrusted and not loaded.files:
        raise UsageError(loaded.not_applied[-1])


def warn(loaded: LoadedConfig) -> None:
    """Say what of them does not apply."""
    for warning in (*loaded.not_applied, *loaded.warnings, *loaded.hook_problems):
        output.note(warning)


class _DryActions:
    """Does nothing of what handlers ask for, and remembers it."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def inject(self, text: str) -> tuple[str, Future[Any]]:
        return self._note(inject=text)

    def send(
        self, to: str, text: str, *, mode: QueueMode | None, thread: str | None
    ) -> tuple[str, Future[Any]]:
        return self._note(send=text, to=to)

    def notify(self, topic: str, text: str) -> tuple[str, Future[Any]]:
        return self._note(notify=text, topic=topic)

    def agents(self) -> Future[list[dict[str, Any]]]:
        future: Future[list[dict[str, Any]]] = Future()
        future.set_result([])
        return future

    def memory(self, op: str, fields: dict[str, Any]) -> Future[dict[str, Any]]:
        """A dry run finds nothing, and saves nothing."""
        future: Future[dict[str, Any]] = Future()
        if op in ("get", "forget"):
            future.set_exception(NotFound("a dry run looks up no memory"))
            return future
        now_ms = time.time_ns() // 1_000_000
        memory = {
            "id": "dry-run",
            "text": fields.get("text", ""),
            "scope": fields.get("scope") or "project",
            "owner": "",
            "agent": "test",
            "session": "dry-run",
            "created_ms": now_ms,
            "updated_ms": now_ms,
            "supersedes": fields.get("supersedes"),
            "meta": fields.get("meta") or {},
        }
        future.set_result({"memory": memory, "outcome": "new", "redacted": [], "memories": []})
        if op == "save":
            self._note(memory=memory["text"])
        return future

    def command(self, namespace: str, action: str, text: str) -> None:
        self._note(**{namespace: text}, action=action)

    def _note(self, **what: str) -> tuple[str, Future[Any]]:
        self.asked.append(what)
        future: Future[Any] = Future()
        future.set_result({})
        return new_ulid(time.time_ns() // 1_000_000), future


async def _fire(
    loaded: LoadedConfig, event: HookEventName, fields: dict[str, Any]
) -> dict[str, Any]:
    actions = _DryActions()
    task = loaded.settings.task
    identity = Identity("test", "test", "dry-run", os.getcwd(), dict(os.environ), task)
    context = Context(identity, actions)
    functions = FunctionRunner(loaded.registry, timeout=loaded.settings.handler_timeout)
    engine = make_engine(
        SessionConfig(identity, context, None), loaded.registry, functions, env=dict(os.environ)
    )
    try:
        result = await engine.fire(event, fields)
    finally:
        await engine.close()
        await functions.close()
    return {"event": event.value, **aggregated_record(result), "asked": actions.asked}


def _print_test(record: dict[str, Any]) -> None:
    if not record["results"] and not record["errors"]:
        output.note(f"no hook matches this {spelled(record['event'])}")
    for one in record["results"]:
        word = "ok" if one["success"] else "failed"
        decision = f", {one['decision']}" if one["decision"] else ""
        output.data(f"{one['hook']}: {word}{decision} ({one['duration']:.3f} s)")
        for name in ("error", "stdout", "stderr"):
            if one[name]:
                output.data(f"  {name}: {one[name].strip()[:500]}")
    for failure in record["errors"]:
        if failure["stage"] != "hook":
            output.data(f"{failure['stage']}: {failure['message']}")
    said = {
        name: record[name]
        for name in ("decision", "reason", "stop_reason", "system_message", "context", "input")
        if record[name]
    }
    said |= {name: record[name] for name in ("response", "request", "tools") if record[name]}
    for name, value in said.items():
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        output.data(f"{name.replace('_', ' ')}: {text}")
    for text in record["inject"]:
        output.data(f"inject: {text}")
    for asked in record.get("asked", ()):
        output.data(f"asked: {json.dumps(asked, ensure_ascii=False)}")
    for conflict in record["conflicts"]:
        output.data(f"conflict: {conflict}")


def spelled(event: str) -> str:
    """An event's name as everything for people spells it: ``on_before_tool``."""
    known = event in list(HookEventName)
    return HookEventName(event).registration if known else event
