from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

import pytest

from relay.hooks import hook_log
from relay.hooks.engine import Disposed, HookEventHandler
from relay.hooks.events import (
    EVENTS,
    CompressTrigger,
    HookEventName,
    SessionEndReason,
    SessionStartSource,
    event_name,
    example,
)
from relay.hooks.hook_types import Aggregated, Decision, HookOutput, OnFailure
from tests.hooks.engine_fakes import (
    BASE,
    BEFORE_TOOL,
    Engine,
    FakeLog,
    Speechless,
    definition,
    vanished,
)

REQUEST = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
RESPONSE = {"text": "hi", "candidates": [{"content": {"role": "model", "parts": ["hi"]}}]}

Fire = Callable[[HookEventHandler], Awaitable[Aggregated]]
FIRES: dict[HookEventName, tuple[Fire, dict[str, Any]]] = {
    HookEventName.SESSION_START: (
        lambda h: h.fire_session_start("resume", correlation_id="C1"),
        {"source": "resume"},
    ),
    HookEventName.SESSION_END: (
        lambda h: h.fire_session_end("exit", correlation_id="C1"),
        {"reason": "exit"},
    ),
    HookEventName.OUTPUT: (
        lambda h: h.fire_output("said", correlation_id="C1"),
        {"output": "said"},
    ),
    HookEventName.IDLE: (
        lambda h: h.fire_idle(30.0, correlation_id="C1"),
        {"idle_seconds": 30.0},
    ),
    HookEventName.WEDGED: (
        lambda h: h.fire_wedged("it stands still", correlation_id="C1"),
        {"why": "it stands still"},
    ),
    HookEventName.MESSAGE_RECEIVED: (
        lambda h: h.fire_message_received("Bob", "hello", correlation_id="C1"),
        {"sender": "Bob", "body": "hello"},
    ),
    HookEventName.BEFORE_TOOL: (
        lambda h: h.fire_before_tool("Bash", {"command": "ls"}, "T1", correlation_id="C1"),
        {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "T1"},
    ),
    HookEventName.AFTER_TOOL: (
        lambda h: h.fire_after_tool("Bash", {"a": 1}, "done", "T1", 0.5, correlation_id="C1"),
        {
            "tool_name": "Bash",
            "tool_input": {"a": 1},
            "tool_response": "done",
            "tool_use_id": "T1",
            "duration": 0.5,
        },
    ),
    HookEventName.BEFORE_AGENT: (
        lambda h: h.fire_before_agent("do it", correlation_id="C1"),
        {"prompt": "do it"},
    ),
    HookEventName.AFTER_AGENT: (
        lambda h: h.fire_after_agent("do it", "done", correlation_id="C1"),
        {"prompt": "do it", "prompt_response": "done"},
    ),
    HookEventName.BEFORE_MODEL: (
        lambda h: h.fire_before_model(REQUEST, correlation_id="C1"),
        {"llm_request": REQUEST},
    ),
    HookEventName.AFTER_MODEL: (
        lambda h: h.fire_after_model(REQUEST, RESPONSE, correlation_id="C1"),
        {"llm_request": REQUEST, "llm_response": RESPONSE},
    ),
    HookEventName.BEFORE_TOOL_SELECTION: (
        lambda h: h.fire_before_tool_selection(REQUEST, correlation_id="C1"),
        {"llm_request": REQUEST},
    ),
    HookEventName.NOTIFICATION: (
        lambda h: h.fire_notification("idle_prompt", "hello?", correlation_id="C1"),
        {"notification_type": "idle_prompt", "message": "hello?"},
    ),
    HookEventName.PRE_COMPRESS: (
        lambda h: h.fire_pre_compress("manual", correlation_id="C1"),
        {"trigger": "manual"},
    ),
}


def _stage(event: HookEventName) -> tuple[Fire, dict[str, Any]]:
    name, fields = event.registration.removeprefix("on_"), example(event)
    return lambda h: getattr(h, f"fire_{name}")(**fields, correlation_id="C1"), fields


FIRES |= {event: _stage(event) for event in HookEventName if EVENTS[event].of_broker}


def test_every_event_can_be_fired() -> None:
    assert set(FIRES) == set(HookEventName)


@pytest.mark.parametrize("event", HookEventName)
def test_the_input_of_an_event_has_what_every_input_has_and_its_own(event: HookEventName) -> None:
    fire, own = FIRES[event]
    engine = Engine(definition(event=event))

    async def scenario() -> Aggregated:
        return await fire(engine.handler)

    assert asyncio.run(scenario()).success
    [payload] = engine.runner.ran
    assert payload == {**BASE, "hook_event_name": event.value, **own}
    assert engine.runner.contexts == ["the ctx"]
    [(planned, seen)] = engine.planner.asked
    assert planned is event
    assert seen == payload


@pytest.mark.parametrize(
    "fire",
    [
        lambda h: h.fire_before_tool("Bash"),
        lambda h: h.fire_before_tool("Bash", {}, inputs={}),
        lambda h: h.fire_before_agent("do it", "now"),
    ],
    ids=["too few", "unknown", "too many"],
)
def test_no_event_is_fired_with_other_fields_than_its_own(fire: Fire) -> None:
    engine = Engine(definition())

    async def scenario() -> Aggregated:
        return await fire(engine.handler)

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


def test_an_event_that_no_hook_matches_is_a_fresh_success_too() -> None:
    engine = Engine(definition())
    engine.planner.chosen = ()
    first, second = engine.before_tool(), engine.before_tool()
    assert first == second == Aggregated()
    assert first is not second
    assert first.results is not second.results
    assert len(engine.planner.asked) == 2
    assert engine.runner.ran == []


def test_whether_there_is_a_hook_can_be_asked() -> None:
    handler = Engine(definition()).handler
    assert handler.has(BEFORE_TOOL)
    assert not handler.has(HookEventName.AFTER_TOOL)


def test_an_id_is_kept_and_otherwise_made() -> None:
    engine = Engine(definition())
    engine.before_tool(correlation_id="mine")
    engine.before_tool()
    engine.before_tool(correlation_id="")
    ids = [payload["correlation_id"] for payload in engine.runner.ran]
    assert ids[0] == "mine"
    assert uuid.UUID(ids[1]).version == uuid.UUID(ids[2]).version == 4
    assert ids[1] != ids[2]


def test_a_payload_without_an_id_gets_one() -> None:
    engine = Engine(definition())
    asyncio.run(engine.handler.execute_hooks_core(BEFORE_TOOL, {"tool_name": "Bash"}))
    assert uuid.UUID(engine.runner.ran[0]["correlation_id"]).version == 4


@pytest.mark.parametrize("stage", ["input", "planning", "execution", "aggregation"])
def test_whatever_fails_comes_back_as_an_envelope(stage: str) -> None:
    log = FakeLog()
    engine = Engine(definition(), log=log)
    broken: dict[str, Any] = {
        "input": engine.registry,
        "planning": engine.planner,
        "execution": engine.runner,
        "aggregation": engine.aggregate,
    }
    broken[stage].error = ValueError("it is broken")
    envelope = engine.before_tool(correlation_id="C1")
    assert not envelope.success
    [failure] = envelope.errors
    assert (failure.stage, failure.message) == (stage, "it is broken")
    assert (failure.event, failure.correlation_id) == ("BeforeTool", "C1")
    assert failure.details.startswith("ValueError\n")
    assert log.of(hook_log.ENGINE_FAILURE) == [asdict(failure)]


def test_an_input_that_cannot_be_built_is_an_envelope(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(definition())

    monkeypatch.setattr(engine.config, "working_dir", vanished)
    [failure] = engine.before_tool().errors
    assert (failure.stage, failure.message) == ("input", "the folder has gone")
    assert uuid.UUID(failure.correlation_id).version == 4
    assert engine.runner.ran == []


def test_a_context_that_cannot_be_had_is_an_envelope(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(definition())
    monkeypatch.setattr(engine.config, "context", vanished)
    [failure] = engine.before_tool().errors
    assert failure.stage == "execution"
    assert engine.runner.ran == []


def test_an_error_without_a_text_is_an_envelope_too() -> None:
    engine = Engine(definition())
    engine.planner.error = Speechless()
    [failure] = engine.before_tool().errors
    assert failure.message == "Speechless"


def test_nonsense_for_a_payload_is_an_envelope() -> None:
    nonsense: Any = None
    envelope = asyncio.run(Engine(definition()).handler.execute_hooks_core(BEFORE_TOOL, nonsense))
    assert [failure.stage for failure in envelope.errors] == ["input"]


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
def test_an_engine_that_fails_denies_what_its_hooks_guard(
    stage: str,
    event: HookEventName,
    on_failure: OnFailure,
    denied: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(definition(event=event, on_failure=on_failure))
    if stage == "input":
        monkeypatch.setattr(engine.config, "working_dir", vanished)
    else:
        parts: dict[str, Any] = {
            "planning": engine.planner,
            "execution": engine.runner,
            "aggregation": engine.aggregate,
        }
        parts[stage].error = ValueError("it is broken")

    async def scenario() -> Aggregated:
        return await FIRES[event][0](engine.handler)

    envelope = asyncio.run(scenario())
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


def test_every_hook_and_the_whole_are_logged() -> None:
    log = FakeLog()
    engine = Engine(definition("one"), definition("two"), log=log)
    engine.before_tool(correlation_id="C1")
    ran = log.of(hook_log.RESULT)
    assert [(record["hook"], record["correlation_id"]) for record in ran] == [
        ("one", "C1"),
        ("two", "C1"),
    ]
    [summary] = log.of(hook_log.BATCH_SUMMARY)
    assert (summary["total"], summary["succeeded"], summary["failed"]) == (2, 2, 0)
    assert summary["duration"] == 0.5


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
    assert log.tries == 3


def test_after_its_end_every_method_refuses_and_the_core_returns_an_envelope() -> None:
    async def scenario() -> None:
        engine = Engine(definition(on_failure=OnFailure.BLOCK))
        engine.handler.dispose()
        engine.handler.dispose()
        for fire, _own in FIRES.values():
            with pytest.raises(Disposed, match="has been disposed"):
                await fire(engine.handler)
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

    asyncio.run(scenario())


def test_what_was_fired_before_the_end_ends_as_it_would_have() -> None:
    async def scenario() -> Aggregated:
        engine = Engine(definition())
        engine.runner.gate = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            fired = group.create_task(engine.handler.fire_before_tool("Bash", {}))
            while not engine.runner.ran:
                await asyncio.sleep(0)
            engine.handler.dispose()
            engine.runner.gate.set()
        return fired.result()

    assert asyncio.run(scenario()).success


def test_who_cancels_an_event_cancels_its_hooks_and_the_log_says_so() -> None:
    async def scenario() -> None:
        log = FakeLog()
        engine = Engine(definition(), log=log)
        engine.runner.gate = asyncio.Event()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await engine.handler.fire_before_tool("Bash", {}, correlation_id="C1")
        assert engine.runner.cancelled == 1
        [record] = log.of(hook_log.ENGINE_FAILURE)
        assert (record["stage"], record["correlation_id"]) == ("execution", "C1")

    asyncio.run(scenario())


def test_events_at_once_do_not_mix() -> None:
    async def scenario() -> list[str]:
        engine = Engine(definition())
        fired = [
            engine.handler.fire_before_tool(str(n), {}, correlation_id=f"C{n}") for n in range(50)
        ]
        await asyncio.gather(*fired)
        return [f"{p['tool_name']} {p['correlation_id']}" for p in engine.runner.ran]

    assert asyncio.run(scenario()) == [f"{n} C{n}" for n in range(50)]


def test_what_goes_to_a_model_reaches_hooks_in_their_form() -> None:
    engine = Engine(definition(event=HookEventName.BEFORE_MODEL))
    parts = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
    }
    asyncio.run(engine.handler.fire_before_model(parts))
    [payload] = engine.runner.ran
    assert payload["llm_request"] == {"model": "m", "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("fire", "word"),
    [
        ("fire_session_start", "source"),
        ("fire_session_end", "reason"),
        ("fire_pre_compress", "trigger"),
    ],
)
def test_sources_reasons_and_triggers_are_words_that_are_known(fire: str, word: str) -> None:
    event = event_name(fire.removeprefix("fire_"))
    engine = Engine(definition(event=event))
    known = {"source": SessionStartSource, "reason": SessionEndReason, "trigger": CompressTrigger}
    for value in known[word]:
        assert asyncio.run(getattr(engine.handler, fire)(value)).success
    assert [payload[word] for payload in engine.runner.ran] == list(known[word])
    envelope = asyncio.run(getattr(engine.handler, fire)("on a whim"))
    [failure] = envelope.errors
    assert failure.stage == "input" and f"{word} is 'on a whim'" in failure.message
    assert len(engine.runner.ran) == len(known[word])


@pytest.mark.parametrize("on_failure", OnFailure)
def test_what_cannot_be_translated_is_an_envelope_and_starts_no_hook(
    on_failure: OnFailure,
) -> None:
    engine = Engine(definition(event=HookEventName.BEFORE_MODEL, on_failure=on_failure))
    envelope = asyncio.run(engine.handler.fire_before_model({"messages": 7}, correlation_id="C1"))
    [failure] = envelope.errors
    assert (failure.stage, failure.event) == ("translation", "BeforeModel")
    assert failure.correlation_id == "C1"
    assert "messages" in failure.message
    assert envelope.blocked is (on_failure is OnFailure.BLOCK)
    assert engine.runner.ran == []
