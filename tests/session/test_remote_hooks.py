"""Requests to a session's hooks: taken from the broker, answered once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from relay.core.errors import BrokerUnavailable, RelayError
from relay.hooks.hook_log import aggregated_record
from relay.hooks.hook_types import Aggregated, Decision, HookOutput
from relay.session import remote_hooks
from relay.session.remote_hooks import RemoteRequests
from relay.session.session_events import EventQueue
from tests.hooks.engine_fakes import Engine, definition

INPUT = {"tool_name": "Bash", "tool_input": {"command": "ls"}}
REQUEST = {"correlation_id": "C1", "event_name": "before_tool", "input": INPUT}

Json = dict[str, Any]


class Bench:
    """A desk, an engine, and a broker that keeps what it is told."""

    def __init__(self) -> None:
        self.engine = Engine(definition())
        self.sent: list[tuple[str, Json]] = []
        self.events = EventQueue()
        self.errors: list[RelayError] = []
        self.room: asyncio.Event | None = None
        self.remote = RemoteRequests(self.engine.handler.requests, self, self.events)

    async def request(self, op: str, *_: Any, **fields: Any) -> Any:
        assert op == "answer" and fields.pop("deadline") > 0
        if self.room is not None:
            await self.room.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.sent.append((fields.pop("id"), fields))
        return {"taken": True}

    def push(
        self, id_: str, request: object = REQUEST, timeout: float = 20.0, kind: str = "hooks"
    ) -> None:
        push = {"push": "ask", "id": id_, "kind": kind, "request": request, "timeout": timeout}
        self.remote.take(push)

    async def answered(self, count: int = 1) -> dict[str, Json]:
        while len(self.sent) < count:
            await asyncio.sleep(0)
        return dict(self.sent)

    async def begun(self, count: int = 1) -> None:
        while len(self.engine.runner.ran) < count:
            await asyncio.sleep(0)


def play(scenario: Callable[[Bench], Awaitable[None]]) -> Bench:
    async def whole() -> Bench:
        bench = Bench()
        async with asyncio.timeout(20):
            await scenario(bench)
            await bench.engine.handler.close()
            await bench.remote.close(5.0)
        assert bench.events.take() is None
        return bench

    return asyncio.run(whole())


def response_to(request: object) -> Json:
    async def scenario(bench: Bench) -> None:
        bench.push("1", request)
        await bench.answered()

    [(id_, response)] = play(scenario).sent
    assert id_ == "1"
    return response


def test_what_the_hooks_said_goes_back_as_a_record() -> None:
    async def scenario(bench: Bench) -> None:
        bench.engine.runner.output = HookOutput(decision=Decision.DENY, reason="no")
        bench.push("1")
        await bench.answered()

    bench = play(scenario)
    [(id_, answer)] = bench.sent
    assert (id_, list(answer)) == ("1", ["response"])
    output = answer["response"]
    assert (output["event"], output["correlation_id"]) == ("BeforeTool", "C1")
    assert output["decision"] == "deny"
    [result] = output["results"]
    assert (result["hook"], result["correlation_id"]) == ("guard", "C1")
    assert set(aggregated_record(Aggregated())) < set(output)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (None, "invalid_request"),
        ([REQUEST], "invalid_request"),
        ({"event_name": "before_tool", "input": 1}, "invalid_request"),
        ({**REQUEST, "event_name": "sunset"}, "unsupported_event"),
        ({**REQUEST, "input": {"tool_name": ""}}, "validation_failure"),
    ],
)
def test_a_request_that_no_hooks_are_run_for_says_why(request_: object, code: str) -> None:
    error = response_to(request_)["error"]
    assert (error["code"], error["status"]) == (code, 2)
    assert error["message"]
    identifier = error["details"]["correlation_id"]
    if isinstance(request_, dict) and "correlation_id" in request_:
        assert identifier == "C1"
    else:
        assert uuid.UUID(identifier).version == 4


def test_a_kind_of_request_that_it_does_not_know_is_refused() -> None:
    async def scenario(bench: Bench) -> None:
        bench.push("1", kind="approval")
        await bench.answered()

    [(_id, answer)] = play(scenario).sent
    assert answer["error"]["code"] == "usage" and "approval" in answer["error"]["message"]


def test_two_at_once_with_the_same_correlation_id_each_get_their_own() -> None:
    async def scenario(bench: Bench) -> None:
        runner = bench.engine.runner
        runner.gate = asyncio.Event()
        bench.push("1")
        await bench.begun()
        bench.push("2", {**REQUEST, "input": {"tool_name": "Bash"}})
        # The second is refused while the first still runs.
        assert (await bench.answered())["2"]["error"]["code"] == "validation_failure"
        bench.push("3")
        await bench.begun(2)
        runner.gate.set()
        answers = await bench.answered(3)
        assert [list(answers[key]) for key in "123"] == [["response"], ["error"], ["response"]]
        assert answers["1"]["response"]["correlation_id"] == "C1"

    play(scenario)


def test_what_is_late_is_not_sent() -> None:
    async def scenario(bench: Bench) -> None:
        runner = bench.engine.runner
        runner.gate = asyncio.Event()
        bench.push("1", timeout=0.01)
        await bench.begun()
        while len(bench.remote._tasks):
            await asyncio.sleep(0)
        runner.gate.set()
        bench.push("2")
        await bench.answered()

    assert [id_ for id_, _ in play(scenario).sent] == ["2"]


def test_what_no_line_can_carry_is_an_internal_error() -> None:
    async def scenario(bench: Bench) -> None:
        bench.engine.runner.output = HookOutput(response={1, 2})
        bench.push("set")
        response = (await bench.answered())["set"]
        assert response["error"]["code"] == "internal_error"
        assert "set has no JSON form" in response["error"]["message"]
        bench.engine.runner.output = None
        bench.errors.append(RelayError("the request is too large", code="too_large"))
        bench.push("large")
        response = (await bench.answered(2))["large"]
        assert "too large" in response["error"]["message"]

    play(scenario)


def test_a_broker_that_is_away_is_no_failure_of_the_session() -> None:
    async def scenario(bench: Bench) -> None:
        bench.errors.append(BrokerUnavailable("away"))
        bench.push("1")
        while bench.errors:
            await asyncio.sleep(0)
        bench.push("2")
        await bench.answered()

    assert [id_ for id_, _ in play(scenario).sent] == ["2"]


def test_the_end_answers_what_runs_and_nothing_afterwards() -> None:
    async def scenario(bench: Bench) -> None:
        bench.engine.runner.gate = asyncio.Event()
        bench.push("1")
        await bench.begun()
        await bench.engine.handler.close()
        bench.push("2")  # the engine has been disposed, the desk not yet
        await bench.remote.close(5.0)
        assert bench.engine.runner.cancelled == 1
        bench.push("3")
        await bench.remote.close(5.0)
        assert len(bench.remote._tasks) == 0

    bench = play(scenario)
    assert sorted(id_ for id_, _ in bench.sent) == ["1", "2"]
    assert {answer["error"]["code"] for _, answer in bench.sent} == {"internal_error"}


def test_what_cannot_be_sent_in_time_at_the_end_is_not_sent_later() -> None:
    async def scenario(bench: Bench) -> None:
        bench.room = asyncio.Event()
        bench.push("1")
        await bench.begun()
        await bench.remote.close(0.01)
        bench.room.set()
        assert len(bench.remote._tasks) == 0

    assert play(scenario).sent == []


def test_it_serves_so_many_at_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_hooks, "SERVED_MAX", 2)

    async def scenario(bench: Bench) -> None:
        bench.engine.runner.gate = asyncio.Event()
        for id_ in "123":
            bench.push(id_)
        bench.engine.runner.gate.set()
        assert set(await bench.answered(2)) == {"1", "2"}
        while len(bench.remote._tasks):
            await asyncio.sleep(0)
        bench.push("4")
        assert "4" in await bench.answered(3)

    assert len(play(scenario).sent) == 3
