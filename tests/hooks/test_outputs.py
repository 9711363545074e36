"""What a program's end means; what functions return is in test_answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.core.message import BODY_MAX
from relay.hooks.events import DENIABLE, HookEventName
from relay.hooks.hook_types import (
    Command,
    Decision,
    Dialect,
    HookDefinition,
    HookOutput,
    OnFailure,
    ToolMode,
    ToolSelection,
)
from relay.hooks.outputs import (
    CONTEXT_MAX,
    ERROR_MAX,
    TEXT_MAX,
    HandlerError,
    Reading,
    on_failure,
    read_pattern_value,
    read_process,
    read_value,
)

BEFORE = HookEventName.BEFORE_TOOL


def hook(
    event: HookEventName = BEFORE,
    on_failure: OnFailure = OnFailure.ALLOW,
    dialect: Dialect = Dialect.RELAY,
) -> HookDefinition:
    return HookDefinition(
        event, "guard.sh", Command(shell="guard.sh"), "x", on_failure=on_failure, dialect=dialect
    )


def read(
    status: int | None,
    stdout: object = b"",
    stderr: bytes = b"",
    event: HookEventName = BEFORE,
    on_failure: OnFailure = OnFailure.ALLOW,
    dialect: Dialect = Dialect.RELAY,
) -> Reading:
    printed = stdout if isinstance(stdout, bytes) else json.dumps(stdout).encode()
    return read_process(hook(event, on_failure, dialect), event, status, printed, stderr)


def denied(reason: str) -> HookOutput:
    return HookOutput(decision=Decision.DENY, reason=reason)


def specific(**said: object) -> dict[str, object]:
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **said}}


@pytest.mark.parametrize("printed", [b"", b" \r\n", b"\xef\xbb\xbf", b"null", b"{}", b'""'])
def test_saying_nothing_is_no_decision(printed: bytes) -> None:
    assert read(0, printed, b"chatter", on_failure=OnFailure.BLOCK) == Reading()


@pytest.mark.parametrize(
    ("said", "output"),
    [
        ({"decision": "block", "reason": " no\n"}, denied("no")),
        ({"decision": "deny", "reason": "no"}, denied("no")),
        ({"decision": "DENY", "reason": "no"}, denied("no")),
        ({"decision": "approve"}, HookOutput(decision=Decision.ALLOW)),
        ({"decision": "ask", "reason": "hm"}, HookOutput(decision=Decision.ASK, reason="hm")),
        (specific(permissionDecision="deny", permissionDecisionReason="no"), denied("no")),
        (specific(permissionDecisionReason="no", permissionDecision="deny"), denied("no")),
        (
            specific(permissionDecision="allow", updatedInput={"command": "ls"}),
            HookOutput(decision=Decision.ALLOW, input={"command": "ls"}),
        ),
        (specific(tool_input={"command": "ls"}), HookOutput(input={"command": "ls"})),
        ({"input": {"command": "ls"}}, HookOutput(input={"command": "ls"})),
        (specific(additionalContext="so"), HookOutput(context="so")),
        ({"continue": False}, HookOutput(stop=True)),
        ({"continue": False, "stopReason": "enough"}, HookOutput(stop=True, stop_reason="enough")),
        ({"stop": True}, HookOutput(last=True)),
        ({"inject": ["a", "", "b"]}, HookOutput(inject=("a", "b"))),
        (
            {"systemMessage": "hello", "suppressOutput": True},
            HookOutput(system_message="hello", suppress_output=True),
        ),
        ({"decision": None, "systemMessage": "hello"}, HookOutput(system_message="hello")),
        ({"terminalSequence": "x", "systemMessage": "hi"}, HookOutput(system_message="hi")),
    ],
)
def test_every_spelling_of_an_answer_is_read(said: dict[str, Any], output: HookOutput) -> None:
    assert read(0, said) == Reading(output)
    assert read(0, json.dumps(said)) == Reading(output)  # encoded twice
    assert read(0, json.dumps(json.dumps(said))) == Reading(output)


def test_the_strictest_of_two_decisions_counts_with_its_own_reason() -> None:
    said = {"decision": "allow", "reason": "fine", **specific(permissionDecision="deny")}
    assert read(0, said).output == denied("fine")
    said = {
        "decision": "deny",
        "reason": "no",
        **specific(permissionDecision="allow", permissionDecisionReason="yes"),
    }
    assert read(0, said).output == denied("no")


def test_stopping_takes_the_common_reason_and_can_be_said_beside_a_denial() -> None:
    output = read(0, {"continue": False, "decision": "block", "reason": " enough "}).output
    assert output == HookOutput(
        decision=Decision.DENY, reason="enough", stop=True, stop_reason="enough"
    )


@pytest.mark.parametrize(
    ("event", "said", "output"),
    [
        (HookEventName.AFTER_TOOL, {"updatedToolOutput": [1]}, HookOutput(response=[1])),
        (HookEventName.AFTER_TOOL, {"response": "text"}, HookOutput(response="text")),
        (HookEventName.BEFORE_MODEL, {"llm_request": {"m": 1}}, HookOutput(request={"m": 1})),
        (HookEventName.BEFORE_MODEL, {"llm_response": {"t": 1}}, HookOutput(response={"t": 1})),
        (HookEventName.AFTER_MODEL, {"llm_response": {"t": 1}}, HookOutput(request={"t": 1})),
        (
            HookEventName.BEFORE_TOOL_SELECTION,
            {"toolConfig": {"mode": "any", "allowedFunctionNames": ["a", "a", "b"]}},
            HookOutput(tools=ToolSelection(ToolMode.ANY, ("a", "b"))),
        ),
        (
            HookEventName.BEFORE_TOOL_SELECTION,
            {"toolConfig": {"allowedFunctionNames": []}},
            HookOutput(tools=ToolSelection(ToolMode.AUTO, ())),
        ),
        (
            HookEventName.BEFORE_TOOL_SELECTION,
            {"toolConfig": {"mode": "NONE"}},
            HookOutput(tools=ToolSelection(ToolMode.NONE)),
        ),
        # Another engine's hook may say more than there is a use for here.
        (HookEventName.OUTPUT, {"decision": "allow"}, None),
        (HookEventName.OUTPUT, {"updatedInput": {"a": 1}}, None),
    ],
)
def test_what_is_rewritten_depends_on_the_event(
    event: HookEventName, said: dict[str, Any], output: HookOutput | None
) -> None:
    assert read(0, {"hookSpecificOutput": said}, event=event) == Reading(output)


@pytest.mark.parametrize("printed", [b"all good", b"[info] fine", b"42", b'"all good"'])
def test_text_decides_nothing_and_is_shown(printed: bytes) -> None:
    reading = read(0, printed, on_failure=OnFailure.BLOCK)
    assert reading.error == ""
    assert reading.output == HookOutput(system_message=printed.decode().strip('"'))


def test_text_is_context_where_claude_code_takes_it_as_context() -> None:
    for event in (HookEventName.SESSION_START, HookEventName.BEFORE_AGENT):
        assert read(0, b"so", event=event, dialect=Dialect.CLAUDE).output == HookOutput(
            context="so"
        )
        assert read(0, b"so", event=event).output == HookOutput(system_message="so")


BROKEN = [
    b'{"decision": "deny"',
    b"{decision: deny}",
    b'{"decision": "deny"} trailing',
    b'"{\\"decision\\": \\"deny\\""',
    b'{"decision": NaN}',
    b'{"x": ' + b"[" * 100_000,
    b'{"x": ' + b"[" * 200 + b"]" * 200 + b"}",
    b'{"decision": "maybe"}',
    b'{"decision": ["deny"]}',
    b'{"decison": "deny"}',
    b'{"hookSpecificOuput": {"permissionDecision": "deny"}}',
    b'{"hookSpecificOutput": "deny"}',
    b'{"continue": "false"}',
    b'{"updatedInput": "ls"}',
    b'{"reason": 3}',
    b'[{"decision": "deny"}]',
    b'checking...\n{"decision": "deny"}',
    b'checking...\n{"decision": "deny"}\ndone',
]


@pytest.mark.parametrize("printed", BROKEN, ids=lambda b: b[:50].decode())
def test_a_broken_answer_is_a_failure_and_never_a_guess(printed: bytes) -> None:
    allowing, blocking = read(0, printed), read(0, printed, on_failure=OnFailure.BLOCK)
    assert allowing.error == blocking.error != ""
    assert "\n" not in allowing.error
    assert allowing.output is None
    assert blocking.output is not None
    assert blocking.output.decision is Decision.DENY
    assert "guard.sh" in blocking.output.reason
    assert blocking.error in blocking.output.reason


def test_status_2_denies_with_the_reason_from_stderr() -> None:
    for failure in OnFailure:
        assert read(2, b"", b"not today\n", on_failure=failure) == Reading(denied("not today"))


@pytest.mark.parametrize("printed", [b"", b"plain text", b'{"broken'])
def test_status_2_without_a_word_denies_in_the_name_of_the_hook(printed: bytes) -> None:
    reading = read(2, printed, b" \n")
    assert reading.error == ""
    assert reading.output is not None
    assert reading.output.decision is Decision.DENY
    assert "guard.sh" in reading.output.reason


def test_status_2_cannot_be_taken_back_by_what_is_printed() -> None:
    said = {"decision": "allow", "reason": "fine", "input": {"a": 1}, "continue": False}
    output = read(2, said, b"no").output
    assert output is not None
    assert (output.decision, output.reason, output.input, output.stop) == (
        Decision.DENY,
        "no",
        None,
        True,
    )
    assert read(2, {"decision": "deny", "reason": "from JSON"}).output == denied("from JSON")
    assert read(2, {"decision": "deny"}).output == read(2).output


def test_status_2_where_nothing_can_be_denied_is_a_failure_that_says_so() -> None:
    for event in set(HookEventName) - DENIABLE:
        reading = read(2, b"", b"no", event=event, on_failure=OnFailure.BLOCK)
        assert f"{event.registration} cannot be denied" in reading.error
        assert reading.output is None


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (1, "status 1"),
        (3, "status 3"),
        (126, "status 126"),
        (127, "status 127"),
        (-9, "signal 9 (SIGKILL)"),
        (-999, "signal 999"),
        (None, "did not run"),
    ],
)
def test_any_other_end_means_what_the_hook_says(status: int | None, words: str) -> None:
    allowing = read(status, b"", b"why")
    blocking = read(status, b"", b"why", on_failure=OnFailure.BLOCK)
    assert words in allowing.error
    assert allowing.error.endswith(": why")
    assert allowing.output == HookOutput(system_message="Warning: why")
    assert blocking.output is not None
    assert blocking.output.decision is Decision.DENY
    assert "guard.sh" in blocking.output.reason
    assert words in blocking.output.reason


def test_a_program_that_failed_can_deny_but_not_change_anything() -> None:
    said = {"decision": "deny", "reason": "own words", "inject": "x"}
    for failure in OnFailure:
        reading = read(1, said, on_failure=failure)
        assert reading.output == denied("own words")
        assert reading.error
    assert read(1, {"decision": "allow", "input": {"a": 1}}).output is None


def test_a_failure_blocks_only_where_there_is_something_to_block() -> None:
    for event in HookEventName:
        output = on_failure(hook(event, OnFailure.BLOCK), event, "it hung")
        assert (output is not None) == (event in DENIABLE)
        if output is not None:
            assert output.decision is Decision.DENY
            assert "guard.sh" in output.reason
            assert "it hung" in output.reason
        assert on_failure(hook(event, OnFailure.ALLOW), event, "it hung") is None


def test_what_a_terminal_obeys_does_not_reach_one() -> None:
    reading = read(1, b"", b"\x1b]0;title\x07\x1b[31mred")
    assert reading.output is not None
    assert reading.output.system_message is not None
    assert "\x1b" not in reading.error + reading.output.system_message


def test_a_long_complaint_keeps_its_beginning_and_end() -> None:
    reading = read(2, b"", b"first" + b"x" * 1_000_000 + b"last")
    assert reading.output is not None
    assert reading.output.reason.startswith("first")
    assert reading.output.reason.endswith("last")
    assert "left out" in reading.output.reason
    assert len(reading.output.reason) <= TEXT_MAX
    failed = read(1, b"", b"first" + b"x" * 1_000_000 + b"last")
    assert failed.error.endswith("last")
    assert len(failed.error) <= ERROR_MAX


def check(reading: Reading) -> None:
    """Bounded, one line, and everything in it can be encoded."""
    assert len(reading.error) <= ERROR_MAX
    assert "\n" not in reading.error
    reading.error.encode()
    if reading.output is None:
        return
    for field in fields(reading.output):
        value = getattr(reading.output, field.name)
        if isinstance(value, str):
            assert len(value) <= (CONTEXT_MAX if field.name == "context" else TEXT_MAX)
            value.encode()
    json.dumps([reading.output.input, reading.output.response, reading.output.request])
    "".join(reading.output.inject).encode()
    if reading.output.decision is Decision.DENY:
        assert reading.output.reason.strip()


statuses = st.sampled_from([0, 1, 2, 127, -9, None]) | st.integers()
events = st.sampled_from(HookEventName)
hooks = st.builds(hook, events, st.sampled_from(OnFailure), st.sampled_from(Dialect))
noise = st.binary(max_size=200) | st.sampled_from(BROKEN) | st.text(max_size=50).map(str.encode)
WORDS = """
decision reason continue stopReason systemMessage hookSpecificOutput permissionDecision inject stop
permissionDecisionReason updatedInput additionalContext deny block ask allow tools toolConfig mode
llm_request response suppress_output other
"""
keys = st.sampled_from(re.findall(r"\w+", WORDS)) | st.text(max_size=10)
scalars = (
    st.sampled_from(["deny", "allow", "ask", "\ud800", "\x1b[2J", "", " ", "NONE"])
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=6),
    max_leaves=15,
)


@given(hooks, events, statuses, noise, noise)
@example(hook(), BEFORE, 0, b"\x00" * 300_000, b"")
@example(hook(), BEFORE, 2, b"", b"\x1b" * 300_000)
@example(hook(), BEFORE, 1, b"", "\u202e".encode() * 100_000)
@example(hook(), BEFORE, 0, b'x\n{"a":' * 50_000, b"")
def test_any_bytes_and_any_status_give_a_reading(
    definition: HookDefinition, event: HookEventName, status: int | None, out: bytes, err: bytes
) -> None:
    reading = read_process(definition, event, status, out, err)
    check(reading)
    if status not in (0, 2):
        assert reading.error
    if status == 2 and event in DENIABLE:
        assert reading.output is not None
        assert reading.output.decision is Decision.DENY


@given(hooks, events, statuses, json_values, st.integers(0, 2))
def test_any_json_gives_a_reading(
    definition: HookDefinition, event: HookEventName, status: int | None, value: Any, times: int
) -> None:
    printed = json.dumps(value)
    for _more in range(times):
        printed = json.dumps(printed)
    check(read_process(definition, event, status, printed.encode(), b""))


class _Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, HookOutput()),
        ("", HookOutput()),
        ("text", HookOutput(inject=("text",))),
        ({}, HookOutput()),
        ({"inject": "text"}, HookOutput(inject=("text",))),
        ({"inject": ["one", "", " \n", "two"]}, HookOutput(inject=("one", "two"))),
        ({"inject": ("one",)}, HookOutput(inject=("one",))),
        ({"inject": None, "stop": None}, HookOutput()),
        ({"stop": True}, HookOutput(last=True)),
        ({"Inject": "text", "STOP": True}, HookOutput(inject=("text",), last=True)),
    ],
)
def test_what_is_allowed(value: object, expected: HookOutput) -> None:
    assert read_pattern_value(value, "h") == expected
    # Of a hook's function the same words mean the same, whatever the event is.
    for event in HookEventName:
        assert read_value(value, "h", event) == expected


@pytest.mark.parametrize(
    "value",
    [
        0,
        False,
        b"bytes",
        ["list"],
        object(),
        _Unprintable(),
        {"inject": 3},
        {"inject": ["one", 2]},
        {"inject": {"a": 1}},
        {"stop": "yes"},
        {"stop": 1},
        {"injct": "text"},
        {3: "text"},
        "x" * (BODY_MAX + 1),
        {"inject": ["x" * BODY_MAX, "y"]},
    ],
)
def test_nonsense_is_an_error_that_names_the_handler(value: Any) -> None:
    with pytest.raises(HandlerError) as caught:
        read_pattern_value(value, NAME)
    assert caught.value.message.startswith(f"{NAME} returned")
    assert caught.value.hint
    assert len(caught.value.message) < 300
    refused(value)


AFTER = HookEventName.AFTER_TOOL
NAME = "on_before_tool guard [relay.config.py]"


def refused(value: object, event: HookEventName = BEFORE) -> HandlerError:
    with pytest.raises(HandlerError) as caught:
        read_value(value, NAME, event)
    assert caught.value.message.startswith(f"{NAME} returned")
    assert len(caught.value.message) < 400
    assert caught.value.hint
    return caught.value


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
        ({"continue": False, "stop_reason": "enough"}, HookOutput(stop=True, stop_reason="enough")),
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


ANSWER_KEYS = st.sampled_from(
    ["decision", "reason", "deny", "block", "input", "context", "response", "inject", "stop"]
) | st.text(max_size=10)
ANSWERS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANSWER_KEYS, inner, max_size=6),
    max_leaves=12,
)


@given(st.sampled_from(HookEventName), ANSWERS)
def test_any_value_is_read_or_refused(event: HookEventName, value: Any) -> None:
    try:
        output = read_value(value, NAME, event)
    except HandlerError as error:
        assert len(error.message) < 400
        return
    json.dumps([output.input, output.response, output.request])
    assert len(output.reason) <= TEXT_MAX
    assert event in DENIABLE or output.decision is None
