"""The whole engine, with real functions and real programs."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relay.hooks import hook_log
from relay.hooks.aggregator import aggregate
from relay.hooks.engine import Disposed, HookEventHandler
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Command, Decision, HookOutput, OnFailure
from relay.hooks.planner import Planner
from relay.hooks.registry import Registry
from relay.hooks.run_functions import FunctionRunner
from relay.hooks.runner import HookRunner
from tests.hooks.engine_fakes import (
    BASE,
    BEFORE_TOOL,
    NOW,
    Engine,
    FakeConfig,
    FakeLog,
    definition,
    vanished,
)
from tests.hooks.programs import group_is_gone, script
from tests.hooks.test_events import VALID

ENV = {"PATH": "/usr/bin:/bin"}


class Whole:
    """Every part is the real one, but for the session and the log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = Registry()
        self.log = FakeLog()

    def program(self, name: str, text: str) -> Command:
        return Command(argv=(script(self.folder / name, text),))

    def run(self, scenario: Callable[[HookEventHandler], Awaitable[Any]]) -> Any:
        async def whole() -> Any:
            functions = FunctionRunner(self.registry)
            handler = HookEventHandler(
                FakeConfig(),
                Planner(self.registry),
                HookRunner(functions, cwd=str(self.folder), env=ENV),
                aggregate,
                log=self.log,
                now=lambda: NOW,
            )
            try:
                return await scenario(handler)
            finally:
                assert await handler.close()
                await functions.close()

        return asyncio.run(whole())

    def before_tool(self, given: Mapping[str, Any] | None = None, **options: Any) -> Aggregated:
        result: Aggregated = self.run(
            lambda handler: handler.fire_before_tool("Bash", given or {"command": "ls"}, **options)
        )
        return result


@pytest.fixture
def whole(tmp_path: Path) -> Whole:
    return Whole(tmp_path)


def test_a_program_and_a_function_get_the_same_input(whole: Whole) -> None:
    seen: list[dict[str, Any]] = []
    whole.registry.add_hook("before_tool", lambda event: seen.append(dict(event)))
    whole.registry.add_hook("before_tool", whole.program("note", "cat > input.json"))
    assert whole.before_tool(correlation_id="C1", tool_use_id="T1").success
    told = json.loads((whole.folder / "input.json").read_text())
    own = {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "T1"}
    assert told == {**BASE, "hook_event_name": "BeforeTool", **own}
    assert seen == [told]


def test_one_denial_among_many_decides_and_all_reasons_are_told(whole: Whole) -> None:
    whole.registry.add_hook("before_tool", whole.program("no", "echo 'not today' >&2; exit 2"))
    whole.registry.add_hook("before_tool", lambda: {"decision": "allow", "reason": "fine"})
    whole.registry.add_hook("before_tool", lambda: {"decision": "deny", "reason": "never"})
    result = whole.before_tool()
    assert result.blocked
    assert result.reason == "not today\nnever"
    decisions = [record["decision"] for record in whole.log.of(hook_log.RESULT)]
    assert decisions == ["deny", "allow", "deny"]


@pytest.mark.parametrize(("on_failure", "blocked"), [(None, True), ("allow", False)])
@pytest.mark.parametrize("how", ["missing", "crash", "garbage", "raises"])
def test_a_guard_that_fails_does_what_was_said(
    whole: Whole, how: str, on_failure: str | None, blocked: bool
) -> None:
    def raises() -> None:
        raise ValueError("broken")

    actions: dict[str, Any] = {
        "missing": Command(argv=(str(whole.folder / "gone"),)),
        "crash": whole.program("crash", "kill -SEGV $$"),
        "garbage": whole.program("garbage", "echo '{\"decision\": '"),
        "raises": raises,
    }
    whole.registry.add_hook("before_tool", actions[how], on_failure=on_failure, name="the guard")
    result = whole.before_tool(correlation_id="C1")
    assert not result.success
    assert result.blocked is blocked
    [failure] = result.errors
    assert (failure.stage, failure.event, failure.correlation_id) == ("hook", "BeforeTool", "C1")
    if blocked:
        assert "the guard" in result.reason
    [record] = whole.log.of(hook_log.FAILURE)
    assert record["error"]
    assert record["on_failure"] == ("block" if blocked else "allow")
    [summary] = whole.log.of(hook_log.BATCH_SUMMARY)
    assert (summary["total"], summary["succeeded"], summary["failed"]) == (1, 0, 1)
    assert whole.log.of(hook_log.ENGINE_FAILURE) == []


def test_the_matcher_chooses_and_no_match_is_a_fresh_success(whole: Whole) -> None:
    whole.registry.add_hook("before_tool", lambda: {"decision": "deny"}, matcher="Write")
    assert whole.before_tool() == Aggregated()
    assert whole.log.records == []


def test_the_end_in_the_middle_ends_the_program_and_its_request(whole: Whole) -> None:
    pid_file = whole.folder / "pid"
    text = f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; sleep 600"
    whole.registry.add_hook("before_tool", whole.program("slow", text))
    message = {
        "correlation_id": "C1",
        "event_name": "BeforeTool",
        "input": {"tool_name": "Bash", "tool_input": {}},
    }

    async def scenario(handler: HookEventHandler) -> int:
        asked = asyncio.ensure_future(handler.requests.request(message))
        async with asyncio.timeout(30):
            while not pid_file.exists():
                await asyncio.sleep(0.01)
        handler.dispose()
        assert (await asked)["error"]["code"] == "internal_error"
        assert await handler.close()
        return int(pid_file.read_text())

    assert group_is_gone(whole.run(scenario))


REQUEST = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
RESPONSE = {"text": "hi", "candidates": [{"content": {"role": "model", "parts": ["hi"]}}]}

Fire = Callable[[HookEventHandler], Awaitable[Aggregated]]
FIELDS = VALID | {
    HookEventName.BEFORE_MODEL: {"llm_request": REQUEST},
    HookEventName.AFTER_MODEL: {"llm_request": REQUEST, "llm_response": RESPONSE},
    HookEventName.BEFORE_TOOL_SELECTION: {"llm_request": REQUEST},
}


async def fire(handler: HookEventHandler, event: HookEventName) -> Aggregated:
    method = getattr(handler, event.registration.replace("on_", "fire_", 1))
    result: Aggregated = await method(**FIELDS[event], correlation_id="C1")
    return result


@pytest.mark.parametrize("event", HookEventName)
async def test_the_input_of_an_event_has_what_every_input_has_and_its_own(
    event: HookEventName,
) -> None:
    engine = Engine(definition(event=event))
    assert (await fire(engine.handler, event)).success
    [payload] = engine.runner.ran
    assert payload == {**BASE, "hook_event_name": event.value, **FIELDS[event]}
    assert engine.runner.contexts == ["the ctx"]
    [(planned, seen)] = engine.planner.asked
    assert planned is event
    assert seen == payload


@pytest.mark.parametrize(
    "wrong",
    [
        lambda h: h.fire_before_tool("Bash"),
        lambda h: h.fire_before_tool("Bash", {}, inputs={}),
        lambda h: h.fire_before_agent("do it", "now"),
    ],
    ids=["too few", "unknown", "too many"],
)
def test_no_event_is_fired_with_other_fields_than_its_own(wrong: Fire) -> None:
    engine = Engine(definition())

    async def scenario() -> Aggregated:
        return await wrong(engine.handler)

    with pytest.raises(TypeError, match="the input of on_before"):
        asyncio.run(scenario())
    assert not engine.runner.ran


def test_an_event_without_hooks_is_a_fresh_success_for_which_nothing_is_built() -> None:
    engine = Engine(definition(event=HookEventName.IDLE))
    engine.config.session_id = ""
    first, second = engine.before_tool(), engine.before_tool()
    assert first == second == Aggregated()
    assert first.success
    first.inject.append("mine")
    assert (second.inject, engine.before_tool().inject) == ([], [])
    assert (engine.planner.asked, engine.runner.ran) == ([], [])


def test_an_id_is_kept_and_otherwise_made() -> None:
    engine = Engine(definition())
    engine.before_tool(correlation_id="mine")
    engine.before_tool()
    engine.before_tool(correlation_id="")
    ids = [payload["correlation_id"] for payload in engine.runner.ran]
    assert ids[0] == "mine"
    assert uuid.UUID(ids[1]).version == uuid.UUID(ids[2]).version == 4
    assert ids[1] != ids[2]


@pytest.mark.parametrize("stage", ["input", "planning", "execution", "aggregation"])
@pytest.mark.parametrize(
    ("event", "on_failure", "denied"),
    [
        (HookEventName.BEFORE_TOOL, OnFailure.BLOCK, True),
        (HookEventName.BEFORE_TOOL, OnFailure.ALLOW, False),
        (HookEventName.BEFORE_AGENT, OnFailure.BLOCK, True),
        (HookEventName.SESSION_END, OnFailure.BLOCK, False),
    ],
)
async def test_an_engine_that_fails_denies_what_its_hooks_guard(
    stage: str,
    event: HookEventName,
    on_failure: OnFailure,
    denied: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(definition(event=event, on_failure=on_failure))
    if stage == "input":
        monkeypatch.setattr(engine.config, "transcript_path", vanished)
    else:
        parts: dict[str, Any] = {
            "planning": engine.planner,
            "execution": engine.runner,
            "aggregation": engine.aggregate,
        }
        parts[stage].error = ValueError("it is broken")
    envelope = await fire(engine.handler, event)
    assert [failure.stage for failure in envelope.errors] == [stage]
    assert envelope.blocked is denied
    assert engine.handler.guarded(event, {}) is denied
    if denied:
        why = f"relay could not run its hooks ({stage}): {envelope.errors[0].message}"
        assert envelope.reason == why
    else:
        assert (envelope.decision, envelope.reason) == (None, "")


def test_a_guard_counts_only_where_it_matches_and_is_trusted() -> None:
    engine = Engine(definition(on_failure=OnFailure.BLOCK, trusted=False))
    engine.planner.error = ValueError("no plan")
    assert not engine.before_tool().blocked
    assert not engine.handler.guarded(BEFORE_TOOL, {})
    engine = Engine(definition(on_failure=OnFailure.BLOCK))
    engine.planner.chosen = (definition("other"),)
    engine.runner.error = ValueError("no run")
    assert not engine.before_tool().blocked
    assert not engine.handler.guarded(BEFORE_TOOL, {})


def test_a_registry_that_fails_leaves_a_tool_guarded() -> None:
    engine = Engine()
    engine.registry.error = ValueError("no registry")
    assert engine.before_tool().blocked
    assert engine.handler.guarded(BEFORE_TOOL, {})
    assert not engine.handler.guarded(HookEventName.BEFORE_AGENT, {})


def test_a_denial_is_not_lost_with_the_aggregator() -> None:
    engine = Engine(definition())
    engine.runner.output = HookOutput(decision=Decision.DENY, reason="no")
    engine.aggregate.error = ValueError("it is broken")
    envelope = engine.before_tool()
    assert envelope.blocked
    assert [one.hook.name for one in envelope.results] == ["guard"]


def test_hooks_that_ran_are_logged_when_the_aggregator_fails() -> None:
    log = FakeLog()
    engine = Engine(definition("one"), log=log)
    engine.aggregate.error = ValueError("it is broken")
    engine.before_tool()
    kinds = [kind for kind, _record in log.records]
    assert kinds == [hook_log.RESULT, hook_log.BATCH_SUMMARY, hook_log.ENGINE_FAILURE]


def test_a_log_that_fails_changes_nothing() -> None:
    log = FakeLog(broken=True)
    engine = Engine(definition(), log=log)
    assert engine.before_tool().success
    engine.planner.error = ValueError("no plan")
    assert not engine.before_tool().success
    assert log.tries == 2


async def test_after_its_end_every_method_refuses_and_the_core_returns_an_envelope() -> None:
    engine = Engine(definition(on_failure=OnFailure.BLOCK))
    engine.handler.dispose()
    engine.handler.dispose()
    for event in HookEventName:
        with pytest.raises(Disposed, match="has been disposed"):
            await fire(engine.handler, event)
    for envelope in (
        await engine.handler.execute_hooks_core(BEFORE_TOOL, {}),
        await engine.handler.fire(BEFORE_TOOL, {"tool_name": "Bash"}),
    ):
        assert not envelope.success
        assert envelope.blocked
        assert envelope.errors[0].stage == "disposed"
        assert "has been disposed" in envelope.errors[0].message
    assert engine.runner.ran == []
    assert await engine.handler.close()


async def test_what_was_fired_before_the_end_ends_as_it_would_have() -> None:
    engine = Engine(definition())
    engine.runner.gate = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        fired = group.create_task(engine.handler.fire_before_tool("Bash", {}))
        while not engine.runner.ran:
            await asyncio.sleep(0)
        engine.handler.dispose()
        engine.runner.gate.set()
    assert fired.result().success


async def test_who_cancels_an_event_cancels_its_hooks_and_the_log_says_so() -> None:
    log = FakeLog()
    engine = Engine(definition(), log=log)
    engine.runner.gate = asyncio.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await engine.handler.fire_before_tool("Bash", {}, correlation_id="C1")
    assert engine.runner.cancelled == 1
    [record] = log.of(hook_log.ENGINE_FAILURE)
    assert (record["stage"], record["correlation_id"]) == ("execution", "C1")


async def test_events_at_once_do_not_mix() -> None:
    engine = Engine(definition())
    fired = [engine.handler.fire_before_tool(str(n), {}, correlation_id=f"C{n}") for n in range(50)]
    await asyncio.gather(*fired)
    assert [f"{p['tool_name']} {p['correlation_id']}" for p in engine.runner.ran] == [
        f"{n} C{n}" for n in range(50)
    ]


@pytest.mark.parametrize("on_failure", OnFailure)
def test_what_cannot_be_translated_is_an_envelope_and_starts_no_hook(on_failure: OnFailure) -> None:
    engine = Engine(definition(event=HookEventName.BEFORE_MODEL, on_failure=on_failure))
    envelope = asyncio.run(engine.handler.fire_before_model({"messages": 7}, correlation_id="C1"))
    [failure] = envelope.errors
    assert (failure.stage, failure.event) == ("translation", "BeforeModel")
    assert failure.correlation_id == "C1"
    assert "messages" in failure.message
    assert envelope.blocked is (on_failure is OnFailure.BLOCK)
    assert engine.runner.ran == []


INPUT = {"tool_name": "Bash", "tool_input": {"command": "ls"}}
GOOD = {"correlation_id": "C1", "event_name": "BeforeTool", "input": INPUT}


class Bench:
    """An engine, and every response to what was sent to its channel."""

    def __init__(self) -> None:
        self.engine = Engine(definition())
        self.channel = self.engine.handler.requests
        self.responses: list[dict[str, Any]] = []
        self.asked: set[asyncio.Task[dict[str, Any]]] = set()

    def send(self, message: object) -> None:
        task = asyncio.ensure_future(self.channel.request(message))
        self.asked.add(task)
        task.add_done_callback(lambda done: self.responses.append(done.result()))

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not true():
                await asyncio.sleep(0)

    async def begun(self, count: int = 1) -> None:
        await self.until(lambda: len(self.engine.runner.ran) >= count)

    async def answered(self, count: int = 1) -> None:
        await self.until(lambda: len(self.responses) >= count)


@asynccontextmanager
async def _run() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    assert await bench.engine.handler.close()


async def _responses_to(*messages: object) -> list[dict[str, Any]]:
    async with _run() as bench:
        for message in messages:
            bench.send(message)
        await bench.answered(len(messages))
    assert len(bench.responses) == len(messages)
    return bench.responses


async def _refusal(message: object) -> tuple[str, str]:
    """The code and text; asserts that no hook ran."""
    async with _run() as bench:
        bench.send(message)
        await bench.answered()
        assert bench.engine.runner.ran == []
        assert bench.engine.planner.asked == []
    [response] = bench.responses
    assert set(response) == {"correlation_id", "success", "error"}
    assert response["success"] is False
    error = response["error"]
    assert set(error) == {"code", "message", "details"}
    return error["code"], error["message"]


async def test_the_input_is_made_whole_and_says_whose_it_is() -> None:
    async with _run() as bench:
        given = {
            **INPUT,
            "cwd": "/elsewhere",
            "session_id": "another's",
            "agent_name": "Mallory",
            "correlation_id": "another's",
        }
        bench.send({**GOOD, "input": given})
        await bench.answered()
    [payload] = bench.engine.runner.ran
    assert payload == {**BASE, **INPUT, "hook_event_name": "BeforeTool", "cwd": "/elsewhere"}


@pytest.mark.parametrize("given", [{}, {"correlation_id": ""}, {"correlation_id": 7}])
async def test_a_request_without_an_id_gets_a_uuid(given: dict[str, Any]) -> None:
    message = {"event_name": "BeforeTool", "input": INPUT, **given}
    first, second = await _responses_to(message, message)
    ids = {first["correlation_id"], second["correlation_id"]}
    assert [uuid.UUID(identifier).version for identifier in ids] == [4, 4]


async def test_an_unknown_event_is_unsupported() -> None:
    code, message = await _refusal({**GOOD, "event_name": "BeforeTools"})
    assert (code, message) == ("unsupported_event", "unknown event 'BeforeTools'")
    [response] = await _responses_to({**GOOD, "event_name": "BeforeTools"})
    assert response["correlation_id"] == "C1"
    assert "did you mean" in response["error"]["details"]["hint"]


@pytest.mark.parametrize(
    "message",
    [
        None,
        "BeforeTool",
        [],
        {},
        {"correlation_id": "C1", "input": INPUT},
        {"correlation_id": "C1", "event_name": "", "input": INPUT},
        {"correlation_id": "C1", "event_name": 7, "input": INPUT},
        {"correlation_id": "C1", "event_name": "BeforeTool"},
        {"correlation_id": "C1", "event_name": "BeforeTool", "input": None},
        {"correlation_id": "C1", "event_name": "BeforeTool", "input": "ls"},
    ],
)
async def test_half_a_request_is_invalid(message: object) -> None:
    assert (await _refusal(message))[0] == "invalid_request"


@pytest.mark.parametrize("event", ["BeforeModel", "BeforeToolSelection"])
async def test_what_cannot_be_translated_starts_no_hook(event: str) -> None:
    code, message = await _refusal({"event_name": event, "input": {"llm_request": {"messages": 7}}})
    assert code == "translation_failure"
    assert "messages" in message


@pytest.mark.parametrize("part", ["planner", "runner", "aggregate"])
async def test_an_engine_that_fails_is_an_internal_error(part: str) -> None:
    async with _run() as bench:
        bench.engine.registry.registered = (definition(on_failure=OnFailure.BLOCK),)
        getattr(bench.engine, part).error = ValueError("it is broken")
        bench.send(GOOD)
        await bench.answered()
    [response] = bench.responses
    assert (response["correlation_id"], response["success"]) == ("C1", False)
    error = response["error"]
    assert (error["code"], error["message"]) == ("internal_error", "it is broken")
    assert error["details"]["event"] == "BeforeTool"
    assert error["details"]["decision"] == "deny"


async def test_the_end_answers_what_runs_and_starts_no_hook_afterwards() -> None:
    async with _run() as bench:
        bench.engine.runner.gate = asyncio.Event()
        bench.send(GOOD)
        await bench.begun()
        bench.send({**GOOD, "correlation_id": "C2"})  # accepted, but not begun
        assert bench.responses == []
        bench.engine.handler.dispose()
        bench.engine.handler.dispose()
        bench.send({**GOOD, "correlation_id": "C3"})
        assert await bench.engine.handler.close()
        await bench.answered(3)
        assert sorted((r["correlation_id"], r["error"]["code"]) for r in bench.responses) == [
            ("C1", "internal_error"),
            ("C2", "internal_error"),
            ("C3", "internal_error"),
        ]
        assert bench.engine.runner.cancelled == 1
        assert len(bench.engine.runner.ran) == 1


async def test_who_gives_up_waiting_leaves_the_hooks_running() -> None:
    async with _run() as bench:
        bench.engine.runner.gate = asyncio.Event()
        asked = asyncio.ensure_future(bench.channel.request(GOOD))
        await bench.begun()
        asked.cancel()
        await asyncio.wait({asked})
        assert asked.cancelled() and bench.engine.runner.cancelled == 0
        bench.engine.runner.gate.set()


async def test_an_input_that_cannot_be_made_whole_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with _run() as bench:
        monkeypatch.setattr(bench.engine.config, "transcript_path", vanished)
        bench.send(GOOD)
        await bench.answered()
    [response] = bench.responses
    assert response["error"]["code"] == "internal_error"
