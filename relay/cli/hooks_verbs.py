"""``relay hooks list|test|fire|log``: the hooks that apply, trying them out, and how they ran."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from relay.broker.client import connect, request
from relay.broker.hookcall import fire
from relay.cli import door, output, table
from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
from relay.config.load import LoadedConfig, load_for_session
from relay.core.errors import EXIT_FAILED, NotFound, UsageError, did_you_mean
from relay.core.ids import new_ulid
from relay.core.message import QueueMode
from relay.core.paths import Home
from relay.hooks.events import (
    EVENTS,
    HookEventName,
    RegistrationError,
    event_name,
    example,
    problem,
)
from relay.hooks.hook_log import aggregated_record
from relay.hooks.hook_types import HookDefinition
from relay.hooks.registry import split_pattern
from relay.protocol.agent_ops import HOOK_LOG

if TYPE_CHECKING:
    from concurrent.futures import Future

    from relay.hooks.context import Context, Identity
    from relay.hooks.run_functions import FunctionRunner

Json = dict[str, Any]

_HEAD = ("EVENT", "HOOK", "KIND", "MATCHER", "PRIORITY", "ON FAILURE", "TRUSTED", "FILE")
_PLAIN = {"KIND": "function", "MATCHER": "*", "PRIORITY": 0, "TRUSTED": "yes"}
_LOG_HEAD = ("TIME", "AGENT", "EVENT", "ID", "HOOK", "MS", "RESULT")
#: What an event is about that does not say it: the fields that are left out of ``--input``.
_USUAL: dict[HookEventName, dict[str, Any]] = {
    HookEventName.SESSION_START: {"source": "startup"},
    HookEventName.SESSION_END: {"reason": "exit"},
    HookEventName.BEFORE_TOOL: {"tool_input": {}},
    HookEventName.AFTER_TOOL: {"tool_input": {}, "tool_response": ""},
    HookEventName.AFTER_AGENT: {"prompt": "", "prompt_response": ""},
    HookEventName.PRE_COMPRESS: {"trigger": "auto"},
}


def add(verbs: Parser) -> None:
    group = verb(
        verbs,
        "hooks",
        "relay hooks list\n"
        '  relay hooks test before_tool --input \'{"tool_name": "Bash"}\'\n'
        '  relay hooks test @deploy:staging "Release v1.2.3"\n'
        '  relay hooks fire Alice before_tool --input \'{"tool_name": "Bash"}\'\n'
        "  relay hooks log --failed",
    )
    own = group.add_subparsers(alone="list")
    listed = own.add_parser("list", help="the hooks of the configuration that applies here")
    _common(listed)
    _path(listed)
    listed.set_defaults(run=run_list)

    test = own.add_parser(
        "test",
        help="run the hooks for a made-up event, or the handlers of a pattern",
        description="Run the hooks for a made-up event, or the handlers of a pattern, and show "
        "what would follow. They really run; what functions send or inject is only shown.",
    )
    _event(test, "before_tool, session_start …, or a pattern: @deploy:staging")
    test.add_argument("text", nargs="?", metavar="TEXT", help="what follows a pattern")
    _common(test)
    _path(test)
    test.set_defaults(run=run_test)

    fire = own.add_parser(
        "fire",
        help="run the hooks of a running agent, in its session",
        description="Run the hooks for an event in the session of a running agent, and show "
        "what they said. What functions ask for while they run (send, inject) is done; what they "
        "return is only shown.",
    )
    fire.add_argument("agent", metavar="AGENT", offers="names", help="a running agent")
    _event(fire)
    fire.add_argument(
        "--timeout", type=float, default=30.0, metavar="S", help="seconds, at most 120 (30)"
    )
    _common(fire)
    fire.set_defaults(run=run_fire)

    log = own.add_parser("log", help="how hooks ran, the newest last")
    log.add_argument("--agent", metavar="NAME", help="only this agent's")
    log.add_argument("--event", metavar="EVENT", help="only for this event")
    log.add_argument("--hook", metavar="TEXT", help="only those with this in their name")
    log.add_argument("--failed", action="store_true", help="only those that failed")
    log.add_argument(
        "--quiet", action="store_true", help="also route functions that did not fire for an event"
    )
    log.add_argument("--limit", type=int, default=50, metavar="N", help="at most this many (50)")
    _common(log)
    log.set_defaults(run=run_log)
    for _, add_parts in door.given("add_parts"):
        add_parts("hooks", own)


def _event(parser: Parser, known: str = "before_tool, session_start …") -> None:
    parser.add_argument("event", metavar="EVENT", help=known)
    parser.add_argument("--input", metavar="JSON", default="{}", help="the event's fields")


def _common(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _path(parser: Parser) -> None:
    parser.add_argument(
        "--config", metavar="FILE", help="the configuration file (default: the one that applies)"
    )


def run_list(options: Options) -> int:
    """Every hook of the configuration that applies here, in the order in which they would run."""
    loaded = load_for_session(Home.from_env(), os.getcwd(), options.config)
    order = {event: number for number, event in enumerate(HookEventName)}
    hooks = sorted(
        loaded.registry.all_hooks(), key=lambda one: (order[one.event], -one.priority, one.order)
    )
    home, cwd = Home.from_env(), os.getcwd()
    others = [elsewhere(home, cwd) for _, elsewhere in door.given("hooks_elsewhere")]
    found = [row for rows, _, _ in others for row in rows]
    if not (hooks or found) or options.config:
        check(loaded)
    warn(loaded)
    if options.json:
        output.as_json([*map(_shown, hooks), *found])
        return 0
    if not hooks and not found:
        output.note("no hook is registered: see docs/hooks.md, or relay init")
    if hooks:
        rows = [_cells(hook) for hook in hooks]
        # What is as it usually is takes no room.
        shown = [
            n for n, name in enumerate(_HEAD) if {row[n] for row in rows} != {_PLAIN.get(name)}
        ]
        cut = [tuple(row[n] for n in shown) for row in rows]
        table.table([_HEAD[n] for n in shown], cut, width=table.columns())
    for rows, head, cells in others:
        if rows:
            table.table(head, cells, width=table.columns())
    return 0


def run_log(options: Options) -> int:
    """How hooks and route functions ran, as the broker's ledger has it."""
    fields: dict[str, Any] = {"agent": options.agent, "hook": options.hook, "kind": options.event}
    fields |= {name: getattr(options, name) for name in ("limit", "failed", "quiet")}
    try:
        fields["event"] = event_name(options.event).value if options.event else None
    except RegistrationError:
        fields["event"] = options.event  # a kind of events
    answer = request(HOOK_LOG, **fields, **output.speaker())
    rows = list(reversed(answer["rows"]))
    if options.json:
        output.as_json([_log_row(row) for row in rows])
    elif not rows:
        output.note("no hook has run")
    else:
        table.table(_LOG_HEAD, [_log_cells(row) for row in rows], width=table.columns())
    if answer["more"]:
        output.note("older ones are left out: --limit N shows more")
    return 0


def _shown(hook: HookDefinition) -> dict[str, Any]:
    return {
        "event": hook.event.value,
        "name": hook.name,
        "kind": hook.kind,
        "matcher": hook.matcher,
        "priority": hook.priority,
        "on_failure": hook.on_failure.value,
        "sequential": hook.sequential,
        "timeout": hook.timeout,
        "source": hook.source,
        "trusted": hook.trusted,
        "dialect": hook.dialect.value,
    }


def _cells(hook: HookDefinition) -> tuple[object, ...]:
    name = hook.name.removeprefix(f"{hook.event.registration} ")
    name = name.removesuffix(f" [{os.path.basename(hook.source)}]")
    matcher = hook.matcher or "*"
    trusted = "yes" if hook.trusted else "no: relay trust"
    where = (hook.event.registration, name, hook.kind, matcher)
    return *where, hook.priority, hook.on_failure.value, trusted, output.short_path(hook.source)


def _log_row(row: dict[str, Any]) -> dict[str, Any]:
    shown = {key: value for key, value in row.items() if key not in ("created_ms", "seq")}
    return {"created_at": output.iso(row["created_ms"]), **shown}


def _log_cells(row: dict[str, Any]) -> tuple[object, ...]:
    result = row["decision"] or ("ok" if row["success"] else "failed")
    if row["persona"]:
        result = f"{result}: {row['persona']} {row['session']}"
    if row["error"]:
        result = f"{result}: {' '.join(row['error'].split())}"
    # Of an event, which relay show knows; a hook in a session is called for none in the ledger.
    id_ = row["correlation_id"] if row["kind"] == "route" else None
    return (
        table.when(row["created_ms"]),
        row["agent"],
        spelled(row["event"]),
        id_ if id_ is None or table.columns() is None else id_[-8:],
        row["hook"],
        f"{row['duration'] * 1000:.1f}",
        result,
    )


def run_test(options: Options) -> int:
    """Run the hooks for a made-up event; nothing is sent or injected."""
    if options.event.startswith("@"):
        return _test_pattern(options)
    if options.text is not None:
        raise UsageError(
            "an event has no text", hint="a pattern begins with @: relay hooks test @deploy:staging"
        )
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
    import asyncio

    return _shown_test(asyncio.run(_fire(loaded, event, fields)), options)


def _test_pattern(options: Options) -> int:
    """Run the handlers of one match, and show what each said."""
    import asyncio

    loaded = applying(options)
    namespace, target = split_pattern(options.event)
    if not loaded.registry.select(namespace, target):
        known = [f"@{one.namespace}:{one.target}" for one in loaded.registry.patterns()]
        raise UsageError(
            f"nothing handles {options.event}",
            hint=did_you_mean(options.event, known) or "no pattern is registered",
        )
    rows = asyncio.run(_match(loaded, namespace, target, options.text or ""))
    if options.json:
        output.as_json(rows)
    for row in () if options.json else rows:
        word = "ok" if row["success"] else "failed"
        output.data(f"{row['handler']}: {word} ({row['duration']:.3f} s)")
        if row["error"]:
            output.data(f"  error: {row['error']}")
        for text in row["inject"]:
            output.data(f"inject: {text}")
        for asked in row["asked"]:
            output.data(f"asked: {json.dumps(asked, ensure_ascii=False)}")
    return 0 if all(row["success"] for row in rows) else EXIT_FAILED


async def _match(loaded: LoadedConfig, namespace: str, target: str, text: str) -> list[Json]:
    actions, _, context, functions = _dry_run(loaded)
    try:
        outcomes = await functions.run_pattern(namespace, target, text, context)
    finally:
        await functions.close()
    rows = [
        {
            "handler": one.handler,
            "success": one.ok,
            "error": one.error,
            "duration": one.duration,
            "inject": list(one.result.inject) if one.result else [],
            "asked": list[Json](),
        }
        for one in outcomes
    ]
    rows[-1]["asked"] = actions.asked
    return rows


def run_fire(options: Options) -> int:
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
        raise UsageError(f"--input is not JSON: {error}", hint="give an object: {}") from None
    if not isinstance(fields, dict):
        raise UsageError("--input is not a JSON object", hint='for example {"tool_name": "Bash"}')
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
        return _done([])

    def request(self, op: str, fields: dict[str, Any]) -> Future[dict[str, Any]]:
        """A dry run finds nothing, and saves nothing."""
        if op in ("memory_get", "memory_forget"):
            return _done(error=NotFound("a dry run looks up no memory"))
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
        if op == "memory_save":
            self._note(memory=memory["text"])
        return _done({"memory": memory, "outcome": "new", "redacted": [], "memories": []})

    def command(self, namespace: str, action: str, text: str) -> None:
        self._note(**{namespace: text}, action=action)

    def _note(self, **what: str) -> tuple[str, Future[Any]]:
        self.asked.append(what)
        return new_ulid(time.time_ns() // 1_000_000), _done({})


def _done(value: Any = None, error: Exception | None = None) -> Future[Any]:
    """A future with a result, or with an error."""
    from concurrent.futures import Future  # imports logging: only where functions run

    future: Future[Any] = Future()
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(value)
    return future


def _dry_run(
    loaded: LoadedConfig,
) -> tuple[_DryActions, Identity, Context, FunctionRunner]:
    """What functions get, and who calls them, where nothing that they ask for is done."""
    # Imported on use: what lists hooks must not pay for the engine.
    from relay.hooks.context import Context, Identity
    from relay.hooks.run_functions import FunctionRunner

    actions, task = _DryActions(), loaded.settings.task
    identity = Identity("test", "test", "dry-run", os.getcwd(), dict(os.environ), task)
    functions = FunctionRunner(loaded.registry, timeout=loaded.settings.handler_timeout)
    return actions, identity, Context(identity, actions), functions


async def _fire(
    loaded: LoadedConfig, event: HookEventName, fields: dict[str, Any]
) -> dict[str, Any]:
    from relay.session.session_hooks import SessionConfig, make_engine

    actions, identity, context, functions = _dry_run(loaded)
    engine = make_engine(
        SessionConfig(identity, context, None),
        loaded.registry,
        functions,
        env=dict(os.environ),
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
