from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from relay.hooks import request_channel as module
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Failure, OnFailure
from tests.hooks.engine_fakes import BASE, BEFORE_TOOL, Engine, definition, vanished

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


def _run(scenario: Callable[[Bench], Awaitable[None]]) -> Bench:
    async def whole() -> Bench:
        bench = Bench()
        await scenario(bench)
        assert await bench.engine.handler.close()
        return bench

    return asyncio.run(whole())


def _responses_to(*messages: object) -> list[dict[str, Any]]:
    async def scenario(bench: Bench) -> None:
        for message in messages:
            bench.send(message)
        await bench.answered(len(messages))

    bench = _run(scenario)
    assert len(bench.responses) == len(messages)
    return bench.responses


def _refusal(message: object) -> tuple[str, str]:
    """The code and text; asserts that no hook ran."""

    async def scenario(bench: Bench) -> None:
        bench.send(message)
        await bench.answered()
        assert bench.engine.runner.ran == []
        assert bench.engine.planner.asked == []

    [response] = _run(scenario).responses
    assert set(response) == {"correlation_id", "success", "error"}
    assert response["success"] is False
    error = response["error"]
    assert set(error) == {"code", "message", "details"}
    return error["code"], error["message"]


def test_a_request_gets_one_response_with_its_id_and_what_the_hooks_said() -> None:
    [response] = _responses_to(GOOD)
    assert (response["correlation_id"], response["success"]) == ("C1", True)
    output = response["output"]
    assert isinstance(output, Aggregated)
    assert output.success
    assert [one.hook.name for one in output.results] == ["guard"]


def test_the_input_is_made_whole_and_says_whose_it_is() -> None:
    async def scenario(bench: Bench) -> None:
        given = {
            **INPUT,
            "cwd": "/elsewhere",
            "session_id": "another's",
            "agent_name": "Mallory",
            "correlation_id": "another's",
        }
        bench.send({**GOOD, "input": given})
        await bench.answered()

    [payload] = _run(scenario).engine.runner.ran
    assert payload == {**BASE, **INPUT, "hook_event_name": "BeforeTool", "cwd": "/elsewhere"}


@pytest.mark.parametrize("given", [{}, {"correlation_id": ""}, {"correlation_id": 7}])
def test_a_request_without_an_id_gets_a_uuid(given: dict[str, Any]) -> None:
    message = {"event_name": "BeforeTool", "input": INPUT, **given}
    first, second = _responses_to(message, message)
    ids = {first["correlation_id"], second["correlation_id"]}
    assert [uuid.UUID(identifier).version for identifier in ids] == [4, 4]


def test_an_unknown_event_is_unsupported() -> None:
    code, message = _refusal({**GOOD, "event_name": "BeforeTools"})
    assert (code, message) == ("unsupported_event", "unknown event 'BeforeTools'")
    [response] = _responses_to({**GOOD, "event_name": "BeforeTools"})
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
def test_half_a_request_is_invalid(message: object) -> None:
    assert _refusal(message)[0] == "invalid_request"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "tool_name"),
        ({"tool_name": "Bash"}, "tool_input"),
        ({"tool_name": "Bash", "tool_input": "ls"}, "tool_input"),
        ({**INPUT, "cwd": 7}, "cwd"),
        ({**INPUT, "session_id": 7}, "session_id"),
        ({**INPUT, "hook_event_name": "AfterTool"}, "hook_event_name"),
    ],
)
def test_an_input_that_is_not_valid_starts_no_hook(given: dict[str, Any], named: str) -> None:
    code, message = _refusal({**GOOD, "input": given})
    assert code == "validation_failure"
    assert named in message


@pytest.mark.parametrize("event", ["BeforeModel", "BeforeToolSelection"])
def test_what_cannot_be_translated_starts_no_hook(event: str) -> None:
    code, message = _refusal({"event_name": event, "input": {"llm_request": {"messages": 7}}})
    assert code == "translation_failure"
    assert "messages" in message


@pytest.mark.parametrize(
    ("event", "given"),
    [
        ("SessionStart", {"source": "startup"}),
        ("SessionEnd", {"reason": "exit"}),
        ("PreCompress", {"trigger": "auto"}),
        ("Notification", {"notification_type": "x", "message": "y"}),
    ],
)
def test_events_of_the_session_can_be_asked_for_too(event: str, given: dict[str, Any]) -> None:
    [response] = _responses_to({"event_name": event, "input": given})
    assert response["success"] is True
    assert response["output"] == Aggregated()


@pytest.mark.parametrize("part", ["planner", "runner", "aggregate"])
def test_an_engine_that_fails_is_an_internal_error(part: str) -> None:
    async def scenario(bench: Bench) -> None:
        bench.engine.registry.registered = (definition(on_failure=OnFailure.BLOCK),)
        getattr(bench.engine, part).error = ValueError("it is broken")
        bench.send(GOOD)
        await bench.answered()

    [response] = _run(scenario).responses
    assert (response["correlation_id"], response["success"]) == ("C1", False)
    error = response["error"]
    assert (error["code"], error["message"]) == ("internal_error", "it is broken")
    assert error["details"]["event"] == "BeforeTool"
    assert error["details"]["decision"] == "deny"


def test_an_input_that_cannot_be_made_whole_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Bench) -> None:
        monkeypatch.setattr(bench.engine.config, "working_dir", vanished)
        bench.send(GOOD)
        await bench.answered()

    [response] = _run(scenario).responses
    assert response["error"]["code"] == "internal_error"


def test_an_engine_that_raises_after_all_is_an_internal_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(bench: Bench) -> None:
        async def raises(event: HookEventName, payload: dict[str, Any]) -> Aggregated:
            raise ValueError(f"{event} {payload['tool_name']}")

        monkeypatch.setattr(bench.engine.handler, "execute_hooks_core", raises)
        bench.send(GOOD)
        await bench.answered()

    [response] = _run(scenario).responses
    assert response["error"]["message"] == "BeforeTool Bash"


def test_a_hook_that_fails_is_no_failure_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(bench: Bench) -> None:
        failed = Aggregated(success=False, errors=[Failure("hook", "guard: it crashed")])
        monkeypatch.setattr(bench.engine.handler, "_aggregate", lambda *_: failed)
        bench.send(GOOD)
        await bench.answered()

    [response] = _run(scenario).responses
    assert response["success"] is True
    assert response["output"].errors[0].message == "guard: it crashed"
    assert response["output"].errors[0].correlation_id == "C1"


def test_only_so_many_run_at_once_and_the_rest_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PENDING_MAX", 2)

    async def scenario(bench: Bench) -> None:
        bench.engine.runner.gate = asyncio.Event()
        for n in range(3):
            bench.send({**GOOD, "correlation_id": f"C{n}"})
        await bench.answered()
        assert [r["correlation_id"] for r in bench.responses] == ["C2"]
        assert bench.responses[0]["error"]["code"] == "internal_error"
        await bench.begun(2)
        bench.engine.runner.gate.set()
        await bench.answered(3)
        bench.send({**GOOD, "correlation_id": "C3"})  # there is room again
        await bench.answered(4)

    responses = _run(scenario).responses
    assert [r["success"] for r in responses] == [False, True, True, True]
    assert [r["correlation_id"] for r in responses] == ["C2", "C0", "C1", "C3"]


def test_the_end_answers_what_runs_and_starts_no_hook_afterwards() -> None:
    async def scenario(bench: Bench) -> None:
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

    _run(scenario)


def test_direct_calls_and_requests_run_side_by_side() -> None:
    async def scenario(bench: Bench) -> None:
        bench.send(GOOD)
        direct = await bench.engine.handler.fire(BEFORE_TOOL, INPUT, correlation_id="D1")
        assert direct.success
        await bench.answered()

    bench = _run(scenario)
    assert [r["correlation_id"] for r in bench.responses] == ["C1"]
    assert sorted(p["correlation_id"] for p in bench.engine.runner.ran) == ["C1", "D1"]


def test_who_gives_up_waiting_leaves_the_hooks_running() -> None:
    async def scenario(bench: Bench) -> None:
        bench.engine.runner.gate = asyncio.Event()
        asked = asyncio.ensure_future(bench.channel.request(GOOD))
        await bench.begun()
        asked.cancel()
        await asyncio.wait({asked})
        assert asked.cancelled() and bench.engine.runner.cancelled == 0
        bench.engine.runner.gate.set()

    _run(scenario)
