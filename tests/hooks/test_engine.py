"""The whole engine, with real functions and real programs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from relay.hooks import hook_log
from relay.hooks.aggregator import aggregate
from relay.hooks.engine import HookEventHandler
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Command, Decision
from relay.hooks.planner import Planner
from relay.hooks.registry import Registry
from relay.hooks.run_functions import FunctionRunner
from relay.hooks.runner import HookRunner
from tests.hooks.engine_fakes import BASE, NOW, FakeConfig, FakeLog
from tests.hooks.programs import group_is_gone, script

BEFORE_TOOL = HookEventName.BEFORE_TOOL
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


def test_functions_get_their_arguments_in_order_of_priority(whole: Whole) -> None:
    add = whole.registry.add_hook
    add("message_received", lambda sender, body, ctx: f"{sender}:{body}:{ctx}")
    add("message_received", lambda ctx: f"first {ctx}", priority=1)
    said = whole.run(lambda handler: handler.fire_message_received("Bob", "hello"))
    assert said.inject == ["first the ctx", "Bob:hello:the ctx"]


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


def test_rewrites_of_a_sequence_build_on_each_other(whole: Whole) -> None:
    seen: list[dict[str, Any]] = []

    def first(input: dict[str, Any]) -> dict[str, Any]:
        return {"input": {"command": input["command"] + " -a"}}

    def second(input: dict[str, Any]) -> dict[str, Any]:
        seen.append(dict(input))
        return {"input": {"command": input["command"] + " -b"}}

    whole.registry.add_hook("before_tool", first, sequential=True)
    whole.registry.add_hook("before_tool", second)
    given = {"command": "ls", "other": 1}
    result = whole.before_tool(given)
    assert seen == [{"command": "ls -a", "other": 1}]
    assert result.input == {"command": "ls -a -b"}
    assert given == {"command": "ls", "other": 1}


def test_a_hook_that_changes_its_input_in_place_changes_nobody_elses(whole: Whole) -> None:
    def spoils(event: dict[str, Any]) -> None:
        event["tool_name"] = "Write"
        event["tool_input"]["command"] = "rm"
        event["tool_input"]["list"].append("more")

    whole.registry.add_hook("before_tool", spoils, sequential=True, priority=1)
    whole.registry.add_hook("before_tool", whole.program("note", "cat > input.json"))
    given = {"command": "ls", "list": ["one"]}
    assert whole.before_tool(given).success
    told = json.loads((whole.folder / "input.json").read_text())
    assert (told["tool_name"], told["tool_input"]) == ("Bash", {"command": "ls", "list": ["one"]})
    assert given == {"command": "ls", "list": ["one"]}


def test_a_request_runs_the_same_hooks(whole: Whole) -> None:
    whole.registry.add_hook("before_tool", whole.program("no", "echo 'not today' >&2; exit 2"))
    message = {
        "correlation_id": "C1",
        "event_name": "BeforeTool",
        "input": {"tool_name": "Bash", "tool_input": {}},
    }

    async def scenario(handler: HookEventHandler) -> Any:
        return await handler.requests.request(message)

    response = whole.run(scenario)
    assert (response["correlation_id"], response["success"]) == ("C1", True)
    output = response["output"]
    assert (output.decision, output.reason) == (Decision.DENY, "not today")
    crossed = json.loads(json.dumps(hook_log.aggregated_record(output, "C1")))
    assert crossed["results"] == whole.log.of(hook_log.RESULT)


def test_an_input_that_is_not_valid_starts_no_program(whole: Whole) -> None:
    whole.registry.add_hook("before_tool", whole.program("touch", "touch ran"))

    async def scenario(handler: HookEventHandler) -> Any:
        message = {"event_name": "BeforeTool", "input": {"tool_name": "Bash"}}
        return await handler.requests.request(message)

    assert whole.run(scenario)["error"]["code"] == "validation_failure"
    assert not (whole.folder / "ran").exists()


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
