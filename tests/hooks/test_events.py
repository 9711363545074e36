import pytest

from relay.hooks.events import (
    EVENTS,
    HookEventName,
    RegistrationError,
    arguments,
    event_name,
    event_names,
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
    assert given["ctx"] is ctx and given["event"] is payload
    assert given.get("tool", "Bash") == "Bash" and given.get("source") is None


def test_what_a_tool_gave_back_is_offered_after_it_only() -> None:
    payload = {"tool_name": "Bash", "tool_response": "three files"}
    for event, phase, response in (
        (HookEventName.BEFORE_TOOL, "before", None),
        (HookEventName.AFTER_TOOL, "after", "three files"),
    ):
        given = dict(zip(EVENTS[event].offered, arguments(event, payload, None), strict=True))
        assert (given["phase"], given["response"]) == (phase, response)
