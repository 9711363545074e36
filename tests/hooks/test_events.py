import pytest

from relay.hooks.events import (
    OFFERED,
    HookEventName,
    RegistrationError,
    event_name,
    offered,
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


def test_an_event_that_is_never_fired_is_refused_and_says_which_are() -> None:
    with pytest.raises(RegistrationError) as caught:
        offered(HookEventName.PRE_COMPRESS)
    assert "does not fire" in caught.value.message
    for event in OFFERED:
        assert event.registration in caught.value.hint
