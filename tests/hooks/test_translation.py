from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.hooks.translation import TranslationError, from_hook, to_hook

CALL = {"functionCall": {"name": "ls", "args": {}}}
GEMINI: dict[str, Any] = {
    "model": "gemini",
    "contents": [
        {"role": "user", "parts": [{"text": "one "}, {"inlineData": {"x": 1}}, {"text": "two"}]},
        {"role": "model", "parts": [{"text": "hm", "thought": True}, CALL]},
        {"role": "user", "parts": [{"functionResponse": {"name": "ls"}}]},
        {"role": "model", "parts": [{"text": "done"}]},
    ],
    "config": {
        "temperature": 0.5,
        "systemInstruction": "be good",
        "tools": [1],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["ls"]}},
    },
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
    "max_completion_tokens": 5,
    "stop": "END",
    "tools": [
        {"type": "function", "function": {"name": "ls"}},
        {"type": "function", "function": {"name": "rm"}},
    ],
    "tool_choice": "required",
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
    "max_tokens": 5,
    "tools": [{"name": "ls"}, {"name": "rm"}],
    "tool_choice": {"type": "any"},
}
RESPONSES: dict[str, Any] = {
    "model": "codex",
    "instructions": "be good",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "one two"}]},
        {"type": "function_call", "name": "ls"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
    ],
}
STABLE: dict[str, Any] = {
    "model": "gemini",
    "messages": [{"role": "user", "content": "one two"}, {"role": "model", "content": "done"}],
    "config": {"temperature": 0.5},
    "toolConfig": {"mode": "ANY", "allowedFunctionNames": ["ls"]},
}
REQUESTS = {
    "gemini": GEMINI,
    "openai": OPENAI,
    "anthropic": ANTHROPIC,
    "responses": RESPONSES,
    "stable": STABLE,
}
REPLIES: dict[str, dict[str, Any]] = {
    "gemini": {
        "candidates": [
            {
                "content": {"role": "model", "parts": [{"text": "do"}, CALL, {"text": "ne"}]},
                "finishReason": "STOP",
                "index": 0,
                "safetyRatings": [{"category": "c", "probability": "p"}],
            }
        ],
        "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4, "more": 5},
        "modelVersion": "x",
    },
    "openai": {
        "id": "x",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "done", "tool_calls": []},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    },
    "anthropic": {
        "type": "message",
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "done"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 4},
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


def back(rewrite: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    before = copy.deepcopy(base)
    found: dict[str, Any] = from_hook({"llm_request": rewrite}, {"llm_request": base})[
        "llm_request"
    ]
    assert base == before
    return found


def reply_back(rewrite: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = from_hook({"llm_response": rewrite}, {"llm_response": base})[
        "llm_response"
    ]
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
def test_a_request_that_no_hook_changed_comes_back_as_it_was(request_: dict[str, Any]) -> None:
    assert back(hooked(request_), request_) == request_
    assert back({}, request_) == request_


@by_request
def test_the_hooks_form_is_its_own_translation(request_: dict[str, Any]) -> None:
    assert hooked(hooked(request_)) == hooked(request_)


@by_request
def test_a_changed_text_changes_nothing_else(request_: dict[str, Any]) -> None:
    messages = copy.deepcopy(hooked(request_)["messages"])
    messages[-1]["content"] = "undone"
    changed = back({"messages": messages}, request_)
    assert hooked(changed)["messages"] == messages
    key = next(key for key in ("contents", "messages", "input") if key in request_)
    assert changed[key][:-1] == request_[key][:-1]
    assert {k: v for k, v in changed.items() if k != key} == {
        k: v for k, v in request_.items() if k != key
    }


@by_request
def test_a_message_can_be_added_and_taken_away(request_: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "first"}, *hooked(request_)["messages"][:-1]]
    messages.append({"role": "model", "content": "last"})
    messages.append({"role": "user", "content": "more"})
    assert hooked(back({"messages": messages}, request_))["messages"] == messages
    assert hooked(back({"messages": messages[:1]}, request_))["messages"] == messages[:1]
    assert hooked(back({"messages": []}, request_))["messages"] == []


@by_request
def test_the_model_and_settings_can_be_replaced(request_: dict[str, Any]) -> None:
    rewrite = {"model": "other", "config": {"temperature": 0.1, "maxOutputTokens": 7}}
    changed = hooked(back(rewrite, request_))
    assert changed["model"] == "other"
    assert changed["config"].items() >= rewrite["config"].items()  # type: ignore[attr-defined]
    assert changed["messages"] == hooked(request_)["messages"]


def test_settings_keep_the_names_of_their_service() -> None:
    assert hooked(OPENAI)["config"] == {"maxOutputTokens": 5, "stopSequences": ["END"]}
    assert back({"config": {"maxOutputTokens": 7}}, OPENAI) == {
        **OPENAI,
        "max_completion_tokens": 7,
    }
    changed = back({"config": {"temperature": 0}}, GEMINI)
    assert changed["config"] == {**GEMINI["config"], "temperature": 0}


def test_what_tools_may_be_called_is_translated() -> None:
    for request in (GEMINI, OPENAI, ANTHROPIC, STABLE):
        assert hooked(request)["toolConfig"]["mode"] == "ANY"
        changed = hooked(back({"toolConfig": {"mode": "NONE"}}, request))
        assert changed["toolConfig"]["mode"] == "NONE"
    only = {"toolConfig": {"allowedFunctionNames": ["rm"]}}
    assert back(only, OPENAI)["tools"] == OPENAI["tools"][1:]
    assert back(only, ANTHROPIC)["tools"] == ANTHROPIC["tools"][1:]
    assert hooked(back(only, GEMINI))["toolConfig"]["allowedFunctionNames"] == ["rm"]


@by_reply
def test_hooks_see_what_was_answered(reply: dict[str, Any]) -> None:
    hook = hooked_reply(reply)
    assert hook["text"] == "done"
    assert "".join(hook["candidates"][0]["content"]["parts"]) == "done"
    assert hook["candidates"][0]["finishReason"] == "STOP"
    assert hook["usageMetadata"] == {"promptTokenCount": 3, "candidatesTokenCount": 4}


@by_reply
def test_an_answer_that_no_hook_changed_comes_back_as_it_was(reply: dict[str, Any]) -> None:
    before = copy.deepcopy(reply)
    assert reply_back(hooked_reply(reply), reply) == reply == before
    assert reply_back({}, reply) == reply
    assert hooked_reply(hooked_reply(reply)) == hooked_reply(reply)


@by_reply
def test_an_answers_text_can_be_replaced_either_way(reply: dict[str, Any]) -> None:
    candidates = [{"content": {"role": "model", "parts": ["un", "done"]}}]
    for rewrite in ({"text": "undone"}, {"candidates": candidates}):
        changed = reply_back(rewrite, reply)
        assert hooked_reply(changed)["text"] == "undone"
        assert changed.keys() == reply.keys()
    gemini = reply_back({"text": "undone"}, REPLIES["gemini"])
    assert gemini["candidates"][0]["content"]["parts"] == [{"text": "undone"}, CALL]


def test_what_is_not_about_a_model_stays() -> None:
    payload = {"session_id": "S", "llm_request": {"contents": "hi"}, "llm_response": {}}
    found = to_hook(payload)
    assert found["session_id"] == "S"
    assert found["llm_request"]["messages"] == [{"role": "user", "content": "hi"}]
    assert found["llm_response"] == {"candidates": []}
    assert payload["llm_request"] == {"contents": "hi"}
    assert to_hook({"tool_name": "x"}) == {"tool_name": "x"}


@pytest.mark.parametrize(
    "payload",
    [
        {"llm_request": None},
        {"llm_request": "hi"},
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


@pytest.mark.parametrize(
    "rewrite",
    [
        {"model": 3},
        {"messages": "x"},
        {"messages": [{"role": "user", "content": 3}]},
        {"config": []},
        {"config": {"colour": "red"}},
        {"toolConfig": {"mode": "SOME"}},
        {"toolConfig": {"allowedFunctionNames": [3]}},
    ],
)
def test_a_rewrite_that_cannot_be_is_an_error(rewrite: dict[str, Any]) -> None:
    with pytest.raises(TranslationError):
        back(rewrite, OPENAI)


parts = st.lists(
    st.builds(lambda text: {"text": text}, st.text(max_size=3)) | st.just(CALL), max_size=3
)
conversations = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "model"]), "parts": parts}),
    max_size=6,
)
wishes = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "model", "system"]),
            "content": st.text("ab", min_size=1, max_size=2),
        }
    ),
    max_size=6,
)


@given(conversations, wishes)
def test_what_hooks_ask_for_is_said_and_what_they_do_not_see_stays(
    contents: list[dict[str, Any]], wanted: list[dict[str, Any]]
) -> None:
    base = {"model": "m", "contents": contents}
    assert back(hooked(base), base) == base
    changed = back({"messages": wanted}, base)
    assert hooked(changed)["messages"] == wanted
    silent = [one for one in contents if not any(part.get("text") for part in one["parts"])]
    assert [one for one in changed["contents"] if one in silent] == silent


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["contents", "messages", "role", "parts", "content", "text", "config"]
                + ["candidates", "choices", "message", "toolConfig", "tool_choice", "usage"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(json_values, json_values)
def test_any_value_is_translated_or_refused(base: Any, rewrite: Any) -> None:
    for key in ("llm_request", "llm_response"):
        try:
            to_hook({key: base})
            from_hook({key: rewrite}, {key: base})
        except TranslationError as error:
            assert len(error.message) < 300
