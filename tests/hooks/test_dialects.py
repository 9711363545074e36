from __future__ import annotations

from typing import Any

import pytest

from relay.hooks.dialects import event_in, spelled, spelled_input
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Dialect


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (HookEventName.BEFORE_TOOL, "PreToolUse"),
        (HookEventName.AFTER_TOOL, "PostToolUse"),
        (HookEventName.BEFORE_AGENT, "UserPromptSubmit"),
        (HookEventName.AFTER_AGENT, "Stop"),
        (HookEventName.PRE_COMPRESS, "PreCompact"),
        (HookEventName.SESSION_START, "SessionStart"),
        (HookEventName.SESSION_END, "SessionEnd"),
        (HookEventName.NOTIFICATION, "Notification"),
    ],
)
def test_claude_code_has_names_of_its_own(event: HookEventName, name: str) -> None:
    assert spelled(event, Dialect.CLAUDE) == name
    assert event_in(name, Dialect.CLAUDE) is event


@pytest.mark.parametrize("event", HookEventName)
def test_gemini_clis_names_are_ours(event: HookEventName) -> None:
    assert spelled(event, Dialect.GEMINI) == spelled(event, Dialect.RELAY) == event.value
    assert event_in(event.value, Dialect.RELAY) is event


@pytest.mark.parametrize(
    ("name", "dialect"),
    [
        ("BeforeTool", Dialect.CLAUDE),
        ("BeforeModel", Dialect.CLAUDE),
        ("SubagentStop", Dialect.CLAUDE),
        ("pretooluse", Dialect.CLAUDE),
        ("PreToolUse", Dialect.GEMINI),
        ("Idle", Dialect.GEMINI),
        ("", Dialect.RELAY),
    ],
)
def test_what_a_dialect_does_not_have_is_no_event(name: str, dialect: Dialect) -> None:
    assert event_in(name, dialect) is None


def _spelled(event: HookEventName, dialect: Dialect, **fields: Any) -> dict[str, Any]:
    payload = {"session_id": "S", "hook_event_name": event.value, **fields}
    spoken = spelled_input(event, payload, dialect)
    assert payload == {"session_id": "S", "hook_event_name": event.value, **fields}
    return spoken


def test_the_input_is_in_the_names_of_the_dialect() -> None:
    after = HookEventName.AFTER_TOOL
    spoken = _spelled(after, Dialect.CLAUDE, tool_name="Bash", tool_response="x", duration=1.2345)
    assert spoken == {
        "session_id": "S",
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_response": "x",
        "duration": 1.2345,
        "duration_ms": 1234,
    }
    assert "duration_ms" not in _spelled(after, Dialect.CLAUDE, duration=None)
    assert "duration_ms" not in _spelled(after, Dialect.GEMINI, duration=1.0)


def test_the_end_of_a_turn_is_never_taken_for_a_prolonged_one() -> None:
    event = HookEventName.AFTER_AGENT
    claude = _spelled(event, Dialect.CLAUDE, prompt_response="done")
    assert (claude["stop_hook_active"], claude["last_assistant_message"]) == (False, "done")
    assert _spelled(event, Dialect.GEMINI)["stop_hook_active"] is False
    assert _spelled(event, Dialect.CLAUDE, stop_hook_active=True)["stop_hook_active"] is True
    assert "stop_hook_active" not in _spelled(event, Dialect.RELAY)
