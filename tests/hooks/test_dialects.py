from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.hooks.dialects import TranslationError, event_in, spelled, spelled_input, to_hook
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


CALL = {"functionCall": {"name": "ls", "args": {}}}
GEMINI: dict[str, Any] = {
    "model": "gemini",
    "contents": [
        {"role": "user", "parts": [{"text": "one "}, {"inlineData": {"x": 1}}, {"text": "two"}]},
        {"role": "model", "parts": [{"text": "hm", "thought": True}, CALL]},
        {"role": "user", "parts": [{"functionResponse": {"name": "ls"}}]},
        {"role": "model", "parts": [{"text": "done"}]},
    ],
    "config": {"temperature": 0.5},
}
OPENAI: dict[str, Any] = {
    "model": "gpt",
    "messages": [
        {"role": "developer", "content": "be good"},
        {"role": "user", "content": [{"type": "text", "text": "one two"}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        {"role": "tool", "tool_call_id": "1", "content": "a file"},
        {"role": "assistant", "content": "done"},
    ],
}
ANTHROPIC: dict[str, Any] = {
    "model": "claude",
    "system": "be good",
    "messages": [
        {"role": "user", "content": "one two"},
        {"role": "assistant", "content": [{"type": "tool_use", "name": "ls"}]},
        {"role": "user", "content": [{"type": "tool_result", "content": "a file"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
    ],
}
STABLE: dict[str, Any] = {
    "model": "gemini",
    "messages": [{"role": "user", "content": "one two"}, {"role": "model", "content": "done"}],
    "config": {"temperature": 0.5},
    "toolConfig": {"mode": "ANY", "allowedFunctionNames": ["ls"]},
}
REQUESTS = {"gemini": GEMINI, "openai": OPENAI, "anthropic": ANTHROPIC, "stable": STABLE}
REPLIES: dict[str, dict[str, Any]] = {
    "gemini": {
        "candidates": [
            {
                "content": {"role": "model", "parts": [{"text": "do"}, CALL, {"text": "ne"}]},
                "finishReason": "STOP",
            }
        ],
        "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4},
    },
    "openai": {
        "id": "x",
        "choices": [
            {
                "message": {"role": "assistant", "content": "done", "tool_calls": []},
                "finish_reason": "stop",
            }
        ],
    },
    "anthropic": {
        "type": "message",
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "done"}],
        "stop_reason": "end_turn",
    },
    "stable": {
        "text": "done",
        "candidates": [{"content": {"role": "model", "parts": ["done"]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4},
    },
}
by_request = pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
by_reply = pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)


def hooked(request: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = to_hook({"llm_request": request})["llm_request"]
    return found


def hooked_reply(reply: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = to_hook({"llm_response": reply})["llm_response"]
    return found


@by_request
def test_hooks_see_who_said_what(request_: dict[str, Any]) -> None:
    messages = hooked(request_)["messages"]
    spoken = [(one["role"], one["content"]) for one in messages if one["role"] != "system"]
    assert spoken == [("user", "one two"), ("model", "done")]


@by_request
def test_the_hooks_form_is_its_own_translation(request_: dict[str, Any]) -> None:
    assert hooked(hooked(request_)) == hooked(request_)


@by_reply
def test_hooks_see_what_was_answered(reply: dict[str, Any]) -> None:
    hook = hooked_reply(reply)
    assert hook["text"] == "done"
    assert "".join(hook["candidates"][0]["content"]["parts"]) == "done"
    assert hook["candidates"][0]["finishReason"] in ("STOP", "stop", "end_turn")
    assert hook.get("usageMetadata") == reply.get("usageMetadata")


@pytest.mark.parametrize(
    "payload",
    [
        {"llm_request": None},
        {"llm_request": "hi"},
        {"llm_request": {"model": "m", "prompt": "hi"}},
        {"llm_request": {"messages": [{"role": "oracle", "content": "x"}]}},
        {"llm_response": {"output": [{"text": "x"}]}},
        {"llm_request": {"messages": 3}},
        {"llm_request": {"messages": [3]}},
        {"llm_request": {"messages": [{"role": 3, "content": "x"}]}},
        {"llm_request": {"messages": [{"role": "user", "content": 3}]}},
        {"llm_request": {"model": 3}},
        {"llm_response": []},
        {"llm_response": {"candidates": {"a": 1}}},
        {"llm_response": {"candidates": ["x"]}},
        {"llm_response": {"choices": [{"message": "x"}]}},
        {"llm_response": {"content": 3}},
    ],
)
def test_a_form_that_is_not_known_is_an_error(payload: dict[str, Any]) -> None:
    with pytest.raises(TranslationError) as caught:
        to_hook(payload)
    assert "llm_re" in caught.value.message
    assert len(caught.value.message) < 300


@by_reply
def test_the_hooks_form_of_an_answer_is_its_own_translation(reply: dict[str, Any]) -> None:
    assert hooked_reply(hooked_reply(reply)) == hooked_reply(reply)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["contents", "messages", "role", "parts", "content", "text", "config"]
                + ["candidates", "choices", "message", "toolConfig", "usageMetadata"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_value_is_translated_or_refused(value: Any) -> None:
    for key in ("llm_request", "llm_response"):
        try:
            to_hook({key: value})
        except TranslationError as error:
            assert len(error.message) < 300


def test_what_is_not_about_a_model_stays() -> None:
    payload = {"session_id": "S", "llm_request": {"contents": "hi"}, "llm_response": {}}
    found = to_hook(payload)
    assert found["session_id"] == "S"
    assert found["llm_request"]["messages"] == [{"role": "user", "content": "hi"}]
    assert found["llm_response"] == {"candidates": []}
    assert payload["llm_request"] == {"contents": "hi"}
    assert to_hook({"tool_name": "x"}) == {"tool_name": "x"}
