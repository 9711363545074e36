from __future__ import annotations

import json

from relay.hooks import hook_log
from relay.hooks.hook_types import (
    Aggregated,
    Decision,
    Failure,
    HookOutput,
    ToolMode,
    ToolSelection,
)
from tests.hooks.engine_fakes import BEFORE_TOOL, FakeLog, Speechless, result


def test_each_hook_has_a_record_and_all_of_them_a_summary() -> None:
    log = FakeLog()
    denies = HookOutput(decision=Decision.DENY, reason="no")
    results = [
        result("one", output=denies),
        result("two", success=False, error="it crashed", duration=0.25),
    ]
    hook_log.write(log, BEFORE_TOOL, results, "C1")
    assert [kind for kind, _record in log.records] == [
        hook_log.RESULT,
        hook_log.RESULT,
        hook_log.FAILURE,
        hook_log.BATCH_SUMMARY,
    ]
    one, two = log.of(hook_log.RESULT)
    assert one == {
        "event": "BeforeTool",
        "hook": "one",
        "kind": "command",
        "source": "hooks.json",
        "duration": 0.5,
        "success": True,
        "exit_status": 0,
        "stdout": "out",
        "stderr": "err",
        "error": "",
        "correlation_id": "C1",
        "decision": "deny",
        "said": True,
    }
    assert (two["success"], two["exit_status"], two["error"]) == (False, 1, "it crashed")
    assert two["decision"] == ""
    assert log.of(hook_log.FAILURE) == [{**two, "on_failure": "allow", "trace": ""}]
    assert log.of(hook_log.BATCH_SUMMARY) == [
        {
            "event": "BeforeTool",
            "total": 2,
            "succeeded": 1,
            "failed": 1,
            "duration": 0.75,
            "correlation_id": "C1",
        }
    ]


def test_a_log_that_fails_fails_nothing_else_and_is_asked_again() -> None:
    log = FakeLog(broken=True)
    hook_log.write(log, BEFORE_TOOL, [result(), result()], "C1")
    hook_log.write_engine_failure(log, Failure("planning", "no"))
    assert (log.tries, log.records) == (2, [])


def test_everything_of_an_event_can_cross_to_another_process() -> None:
    output = HookOutput(
        decision=Decision.ASK, input={"a": 1}, request={"b": [2]}, inject=("x",), last=True
    )
    aggregated = Aggregated(
        success=False,
        results=[result(output=output), result("two")],
        errors=[Failure("hook", "it crashed")],
        decision=Decision.ASK,
        input={"a": 1},
        tools=ToolSelection(ToolMode.ANY, ()),
        conflicts=["one and two differ"],
        duration=1.0,
    )
    crossed = json.loads(json.dumps(hook_log.aggregated_record(aggregated, "C1")))
    assert crossed == hook_log.aggregated_record(aggregated, "C1")
    assert (crossed["success"], crossed["decision"], crossed["input"]) == (False, "ask", {"a": 1})
    assert crossed["tools"] == {"mode": "ANY", "names": []}
    assert [one["hook"] for one in crossed["results"]] == ["guard", "two"]
    assert [(one["request"], one["inject"], one["last"]) for one in crossed["outputs"]] == [
        ({"b": [2]}, ["x"], True)
    ]
    assert crossed["errors"][0]["message"] == "it crashed"
    unrestricted = hook_log.aggregated_record(Aggregated(tools=ToolSelection()))
    assert unrestricted["tools"] == {"mode": "AUTO", "names": None}
    assert hook_log.aggregated_record(Aggregated())["tools"] is None


def test_an_error_has_one_bounded_line_whatever_it_is() -> None:
    assert hook_log.error_text(ValueError("two\n  lines")) == "two lines"
    assert hook_log.error_text(ValueError()) == "ValueError"
    assert hook_log.error_text(Speechless()) == "Speechless"
    assert len(hook_log.error_text(ValueError("x" * 10_000))) == 4000
