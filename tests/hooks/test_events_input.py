from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.hooks.events import HookEventName, problem

BASE = {
    "session_id": "S",
    "cwd": "/",
    "timestamp": "2026-11-21T10:00:00Z",
    "transcript_path": "",
    "correlation_id": "C",
    "agent_name": "Alice",
}
TOOL: dict[str, Any] = {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": ""}
VALID: dict[HookEventName, dict[str, Any]] = {
    HookEventName.SESSION_START: {"source": "startup"},
    HookEventName.SESSION_END: {"reason": ""},
    HookEventName.OUTPUT: {"output": ""},
    HookEventName.IDLE: {"idle_seconds": 30.5},
    HookEventName.MESSAGE_RECEIVED: {"sender": "Bob", "body": "hello"},
    HookEventName.BEFORE_TOOL: TOOL,
    HookEventName.AFTER_TOOL: {**TOOL, "tool_response": None, "duration": None},
    HookEventName.BEFORE_AGENT: {"prompt": "do it"},
    HookEventName.AFTER_AGENT: {"prompt": "do it", "prompt_response": "done"},
    HookEventName.BEFORE_MODEL: {"llm_request": {}},
    HookEventName.AFTER_MODEL: {"llm_request": {}, "llm_response": {}},
    HookEventName.BEFORE_TOOL_SELECTION: {"llm_request": {}},
    HookEventName.NOTIFICATION: {"notification_type": "idle", "message": ""},
    HookEventName.PRE_COMPRESS: {"trigger": "auto"},
}
REQUIRED = [
    (event, field)
    for event, fields in VALID.items()
    for field in fields
    if field not in ("tool_use_id", "duration")
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("event", HookEventName)
def test_every_event_has_an_input_that_is_valid(event: HookEventName) -> None:
    assert problem(event, VALID[event]) == ""
    assert problem(event, {**BASE, "hook_event_name": event.value, **VALID[event]}) == ""
    assert problem(event, {**VALID[event], "something_new": object()}) == ""


@pytest.mark.parametrize(("event", "field"), REQUIRED)
def test_a_field_that_is_missing_or_of_another_type_is_named(
    event: HookEventName, field: str
) -> None:
    without = {key: value for key, value in VALID[event].items() if key != field}
    assert problem(event, without) == f"the input of {event} has no {field}"
    if field != "tool_response":
        for wrong in (None, b"bytes", ["list"]):
            assert problem(event, {**VALID[event], field: wrong}).startswith(f"{field} is ")


@pytest.mark.parametrize(
    ("event", "field", "wrong"),
    [
        (HookEventName.BEFORE_TOOL, "tool_name", "  "),
        (HookEventName.BEFORE_TOOL, "tool_input", {1: "x"}),
        (HookEventName.BEFORE_TOOL, "tool_use_id", 7),
        (HookEventName.BEFORE_TOOL, "cwd", 7),
        (HookEventName.AFTER_TOOL, "duration", -1),
        (HookEventName.AFTER_TOOL, "duration", float("nan")),
        (HookEventName.AFTER_TOOL, "duration", True),
        (HookEventName.IDLE, "idle_seconds", float("inf")),
        (HookEventName.SESSION_START, "source", "reboot"),
        (HookEventName.PRE_COMPRESS, "trigger", "Auto"),
        (HookEventName.MESSAGE_RECEIVED, "sender", ""),
        (HookEventName.NOTIFICATION, "notification_type", ""),
        (HookEventName.OUTPUT, "hook_event_name", "Idle"),
    ],
)
def test_a_value_that_cannot_be_is_a_problem(event: HookEventName, field: str, wrong: Any) -> None:
    assert problem(event, {**VALID[event], field: wrong}).startswith(field)


@pytest.mark.parametrize("payload", [None, "text", 3, [], [("tool_name", "x")]])
def test_what_is_no_object_is_a_problem(payload: object) -> None:
    assert "not an object" in problem(HookEventName.BEFORE_TOOL, payload)


def test_a_key_that_is_no_string_is_a_problem() -> None:
    assert "the key 3" in problem(HookEventName.OUTPUT, {"output": "", 3: "x"})


@given(st.sampled_from(HookEventName), json_values)
def test_any_value_is_judged_in_a_short_sentence(event: HookEventName, payload: object) -> None:
    assert len(problem(event, payload)) < 400


@given(st.sampled_from(REQUIRED), json_values)
def test_any_value_of_a_field_is_judged(case: tuple[HookEventName, str], value: object) -> None:
    event, field = case
    found = problem(event, {**VALID[event], field: value})
    assert found == "" or found.startswith(field)
    assert len(found) < 400
