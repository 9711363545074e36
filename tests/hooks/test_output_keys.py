"""What functions return, for every event."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.message import BODY_MAX
from relay.hooks.events import DENIABLE, HookEventName
from relay.hooks.hook_types import Decision, HookOutput, ToolMode, ToolSelection
from relay.hooks.output_keys import TEXT_MAX, HandlerError
from relay.hooks.outputs import read_pattern_value, read_value

BEFORE = HookEventName.BEFORE_TOOL
AFTER = HookEventName.AFTER_TOOL
NAME = "on_before_tool guard [relay.config.py]"


def refused(value: object, event: HookEventName = BEFORE) -> HandlerError:
    with pytest.raises(HandlerError) as caught:
        read_value(value, NAME, event)
    assert caught.value.message.startswith(f"{NAME} returned")
    assert len(caught.value.message) < 400
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("event", HookEventName)
@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "text",
        {},
        {"inject": "text"},
        {"inject": ["one", "", "two"]},
        {"inject": None, "stop": None},
        {"stop": True},
        {"Inject": "text", "STOP": True},
    ],
)
def test_what_handlers_could_always_return_means_what_it_did(
    event: HookEventName, value: Any
) -> None:
    result = read_pattern_value(value, NAME)
    expected = HookOutput(inject=result.inject, last=result.stop)
    assert read_value(value, NAME, event) == expected


@pytest.mark.parametrize(
    "value",
    [
        0,
        False,
        b"bytes",
        ["list"],
        {"inject": 3},
        {"inject": ["one", 2]},
        {"stop": "yes"},
        {"stop": 1},
        "x" * (BODY_MAX + 1),
    ],
)
def test_what_was_nonsense_still_is_in_the_same_words(value: Any) -> None:
    with pytest.raises(HandlerError) as caught:
        read_pattern_value(value, NAME)
    assert refused(value).message == caught.value.message


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ({"decision": "deny", "reason": "no"}, HookOutput(Decision.DENY, "no")),
        ({"block": "no"}, HookOutput(Decision.DENY, "no")),
        ({"deny": "no"}, HookOutput(Decision.DENY, "no")),
        ({"deny": True, "reason": "no"}, HookOutput(Decision.DENY, "no")),
        ({"deny": False}, HookOutput()),
        ({"deny": None}, HookOutput()),
        ({"allow": True}, HookOutput(Decision.ALLOW)),
        ({"ask": "really?"}, HookOutput(Decision.ASK, "really?")),
        ({"allow": True, "ask": "hm", "deny": "no"}, HookOutput(Decision.DENY, "no")),
        ({"deny": "one", "block": "two"}, HookOutput(Decision.DENY, "one\ntwo")),
        ({"input": {"command": "ls"}}, HookOutput(input={"command": "ls"})),
        ({"tool_input": {"command": "ls"}}, HookOutput(input={"command": "ls"})),
        ({"context": "so"}, HookOutput(context="so")),
        ({"context": " \n", "inject": " "}, HookOutput()),
        (
            {"continue": False, "stop_reason": "enough"},
            HookOutput(stop=True, stop_reason="enough"),
        ),
        ({"continue": True}, HookOutput()),
        (
            {"systemMessage": "hi", "suppress_output": True},
            HookOutput(system_message="hi", suppress_output=True),
        ),
    ],
)
def test_the_natural_forms(value: Any, output: HookOutput) -> None:
    assert read_value(value, NAME, BEFORE) == output


@pytest.mark.parametrize("value", [{"deny": True}, {"deny": ""}, {"decision": "deny"}])
def test_a_denial_always_has_a_reason(value: Any) -> None:
    output = read_value(value, NAME, BEFORE)
    assert output.decision is Decision.DENY
    assert NAME in output.reason


@pytest.mark.parametrize(
    ("event", "value", "output"),
    [
        (AFTER, {"response": ["any", 1]}, HookOutput(response=["any", 1])),
        (AFTER, {"block": "no"}, HookOutput(Decision.DENY, "no")),
        (HookEventName.BEFORE_MODEL, {"request": {"m": 1}}, HookOutput(request={"m": 1})),
        (HookEventName.AFTER_MODEL, {"response": {"t": 1}}, HookOutput(request={"t": 1})),
        (
            HookEventName.BEFORE_TOOL_SELECTION,
            {"tools": {"names": []}},
            HookOutput(tools=ToolSelection(names=())),
        ),
        (
            HookEventName.BEFORE_TOOL_SELECTION,
            {"tools": {"mode": "ANY", "names": None}},
            HookOutput(tools=ToolSelection(ToolMode.ANY)),
        ),
    ],
)
def test_what_other_events_can_answer(event: HookEventName, value: Any, output: HookOutput) -> None:
    assert read_value(value, NAME, event) == output


@pytest.mark.parametrize("event", sorted(set(HookEventName) - DENIABLE))
def test_a_decision_where_nothing_can_be_denied_is_an_error_that_says_so(
    event: HookEventName,
) -> None:
    for value in ({"deny": "no"}, {"block": True}, {"decision": "block"}):
        error = refused(value, event)
        assert f"{event.registration} cannot be denied" in error.message
        assert "on_before_tool" in error.hint
    assert f"{event.registration} cannot be allowed" in refused({"allow": True}, event).message


@pytest.mark.parametrize("event", sorted(set(HookEventName) - {BEFORE}))
def test_only_a_tool_that_is_about_to_run_can_be_asked_about(event: HookEventName) -> None:
    assert f"nobody is asked about {event.registration}" in refused({"ask": True}, event).message


def test_what_is_rewritten_elsewhere_is_an_error_that_says_where() -> None:
    assert "on_before_tool" in refused({"input": {}}, AFTER).hint
    assert "on_after_tool" in refused({"response": "x"}, BEFORE).hint
    assert "on_before_tool_selection" in refused({"tools": []}, BEFORE).hint
    assert "on_before_model" in refused({"request": {}}, BEFORE).hint


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ({"injct": "x"}, "inject"),
        ({"decison": "deny"}, "decision"),
        ({"contxt": "x"}, "context"),
        ({"stop_reson": "x"}, "stop_reason"),
        ({"decision": "dney"}, "deny"),
    ],
)
def test_a_misspelt_word_names_the_right_one(value: Any, word: str) -> None:
    assert f"did you mean {word!r}?" in refused(value).hint


class Hostile(Mapping[str, object]):
    def __getitem__(self, key: str) -> object:
        raise RuntimeError("no")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no")

    def __len__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    [
        {3: "x"},
        {"foo": 1},
        {"deny": 3},
        {"deny": ["no"]},
        {"reason": 3},
        {"context": 3},
        {"input": "ls"},
        {"input": {"path": Path("/")}},
        {"input": {1: "x"}},
        {"input": {"x": float("nan")}},
        {"continue": "no"},
        {"hookSpecificOutput": "x"},
        {"hookSpecificOutput": {"hookSpecificOutput": {}}},
        {"decision": True},
        Hostile(),
        {"input": Hostile()},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_is_an_error_that_names_the_handler(value: Any) -> None:
    refused(value)


@pytest.mark.parametrize("value", [3, {"mode": "SOME"}, {"names": "a"}, {"nmes": []}, [1]])
def test_tools_that_cannot_be_are_an_error(value: Any) -> None:
    refused({"tools": value}, HookEventName.BEFORE_TOOL_SELECTION)


def test_a_rewrite_is_not_changed_any_more_by_who_returned_it() -> None:
    value = {"input": {"files": ["a"]}}
    output = read_value(value, NAME, BEFORE)
    value["input"]["files"].append("b")
    assert output.input == {"files": ["a"]}


keys = st.sampled_from(
    ["decision", "reason", "deny", "block", "input", "context", "response", "inject", "stop"]
) | st.text(max_size=10)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=12,
)


@given(st.sampled_from(HookEventName), json_values)
def test_any_value_is_read_or_refused(event: HookEventName, value: Any) -> None:
    try:
        output = read_value(value, NAME, event)
    except HandlerError as error:
        assert len(error.message) < 400
        return
    json.dumps([output.input, output.response, output.request])
    assert len(output.reason) <= TEXT_MAX
    assert event in DENIABLE or output.decision is None
