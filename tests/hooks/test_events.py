from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.hooks.events import (
    EVENTS,
    HookEventName,
    RegistrationError,
    arguments,
    event_name,
    event_names,
    example,
    problem,
)


@pytest.mark.parametrize(
    "text",
    [
        "SessionStart",
        "session_start",
        "on_session_start",
        "sessionStart",
        "onSessionStart",
        "SESSION_START",
        "session-start",
        HookEventName.SESSION_START,
    ],
)
def test_every_spelling_is_the_same_event(text: str) -> None:
    assert event_name(text) is HookEventName.SESSION_START


@pytest.mark.parametrize("event", list(HookEventName))
def test_the_documented_spelling_of_every_event_is_accepted(event: HookEventName) -> None:
    assert event_name(event.registration) is event
    assert event.registration == event.registration.lower()


def test_an_unknown_event_names_the_nearest() -> None:
    with pytest.raises(RegistrationError) as caught:
        event_name("on_mesage_received")
    assert "on_mesage_received" in caught.value.message
    assert "on_message_received" in caught.value.hint


def test_a_name_that_is_no_string_is_refused() -> None:
    with pytest.raises(RegistrationError, match="not int"):
        event_name(3)  # type: ignore[arg-type]


def test_a_tool_call_is_two_events() -> None:
    both = (HookEventName.BEFORE_TOOL, HookEventName.AFTER_TOOL)
    assert event_names("on_tool_call") == event_names("toolCall") == both
    assert event_names("before_tool") == both[:1]
    with pytest.raises(RegistrationError, match="two events") as caught:
        event_name("on_tool_call")
    assert "on_before_tool or on_after_tool" in caught.value.hint


def test_an_event_of_claude_codes_is_told_what_it_is_called_here() -> None:
    for name, own in (("PreToolUse", "on_before_tool"), ("Stop", "on_after_agent")):
        with pytest.raises(RegistrationError, match="unknown event") as caught:
            event_name(name)
        assert own in caught.value.hint


@pytest.mark.parametrize("event", list(HookEventName))
def test_a_function_gets_what_is_offered_or_none(event: HookEventName) -> None:
    ctx, payload = object(), {"tool_name": "Bash", "tool_input": {"command": "ls"}}
    given = dict(zip(EVENTS[event].offered, arguments(event, payload, ctx), strict=True))
    assert given["event"] is payload
    assert EVENTS[event].of_broker or given["ctx"] is ctx
    assert given.get("tool", "Bash") == "Bash" and given.get("source") is None


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
    HookEventName.SESSION_END: {"reason": "exit"},
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
    HookEventName.WEDGED: {"why": "wedged"},
    **{event: example(event) for event in HookEventName if EVENTS[event].of_broker},
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
    assert problem(event, without) == f"the input of {event.registration} has no {field}"
    if field not in ("tool_response", "automations", "dispatches"):
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


@given(st.sampled_from(HookEventName), json_values)
def test_any_value_is_judged_in_a_short_sentence(event: HookEventName, payload: object) -> None:
    assert len(problem(event, payload)) < 400


@given(st.sampled_from(REQUIRED), json_values)
def test_any_value_of_a_field_is_judged(case: tuple[HookEventName, str], value: object) -> None:
    event, field = case
    found = problem(event, {**VALID[event], field: value})
    assert found == "" or found.startswith(field)
    assert len(found) < 400


def test_a_key_that_is_no_string_is_a_problem() -> None:
    assert "the key 3" in problem(HookEventName.OUTPUT, {"output": "", 3: "x"})
