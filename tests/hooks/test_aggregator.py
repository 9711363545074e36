from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.hooks.aggregator import aggregate
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import (
    Aggregated,
    Command,
    Decision,
    HookDefinition,
    HookOutput,
    HookRun,
    Plan,
    ToolMode,
    ToolSelection,
)

BEFORE = HookEventName.BEFORE_TOOL
AFTER = HookEventName.AFTER_TOOL
CHOOSING = HookEventName.BEFORE_TOOL_SELECTION


def results_of(*outputs: HookOutput | None) -> list[HookRun]:
    """One successful hook for each output, named h1, h2 and so on."""
    return [
        HookRun(
            HookDefinition(BEFORE, f"h{number}", Command(shell=str(number)), "a file"),
            success=True,
            output=output,
        )
        for number, output in enumerate(outputs, 1)
    ]


def merge(results: list[HookRun], event: HookEventName = BEFORE) -> Aggregated:
    return aggregate(event, results, Plan(event, tuple(result.hook for result in results)))


def merged(*outputs: HookOutput | None, event: HookEventName = BEFORE) -> Aggregated:
    return merge(results_of(*outputs), event)


ALLOW, ASK, DENY = (HookOutput(decision=decision) for decision in Decision)


def test_nothing_said_is_a_fresh_success() -> None:
    whole = merged(None, HookOutput())
    assert replace(whole, results=[]) == Aggregated()
    assert len(whole.results) == 2
    assert merged().inject is not merged().inject


def test_the_reasons_of_those_who_decided_are_joined() -> None:
    whole = merged(
        HookOutput(decision=Decision.ALLOW, reason="fine"),
        HookOutput(decision=Decision.DENY, reason=" no network \n"),
        HookOutput(decision=Decision.DENY, reason=" "),
        HookOutput(decision=Decision.DENY, reason="no network"),
        HookOutput(decision=Decision.DENY, reason="not on Friday"),
        HookOutput(reason="no decision"),
    )
    assert whole.reason == "no network\nnot on Friday"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (HookOutput(stop=True, stop_reason="  budget spent \n"), "budget spent"),
        (HookOutput(stop=True, stop_reason=" ", reason="over"), "over"),
        (HookOutput(stop=True, stop_reason=" \t"), "stopped by h2"),
    ],
)
def test_the_first_stop_counts_with_its_reason(first: HookOutput, expected: str) -> None:
    whole = merged(ALLOW, first, HookOutput(stop=True, stop_reason="later"))
    assert (whole.stop, whole.stop_reason) == (True, expected)


def test_a_failure_without_a_word_is_a_failure() -> None:
    results = results_of(ALLOW, None)
    results[1] = replace(results[1], success=False, stderr="trouble")
    whole = merge(results)
    assert not whole.success
    [failure] = whole.errors
    assert (failure.stage, failure.event) == ("hook", "BeforeTool")
    assert failure.message == "h2: it failed without saying why"
    assert failure.details == "trouble"


def test_a_hook_that_failed_decides_but_changes_nothing() -> None:
    output = HookOutput(
        decision=Decision.DENY,
        reason="h1 did not run",
        context="c",
        input={"a": 1},
        response="r",
        request={"b": 2},
        inject=("i",),
        tools=ToolSelection(ToolMode.NONE),
    )
    [result] = results_of(output)
    failed = merge([replace(result, success=False, error="crashed")], AFTER)
    assert (failed.blocked, failed.reason) == (True, "h1 did not run")
    assert (failed.input, failed.request, failed.response) == (None, None, None)
    assert (failed.context, failed.inject, failed.tools) == ("", [], None)


def test_the_last_system_message_counts_and_whoever_has_one_can_suppress() -> None:
    whole = merged(
        HookOutput(system_message="one", suppress_output=True),
        HookOutput(system_message="two"),
        HookOutput(system_message=""),
        HookOutput(),
    )
    assert (whole.system_message, whole.suppress_output) == ("two", True)
    assert merged(HookOutput()).suppress_output is False
    alone = HookOutput(suppress_output=True)
    assert merged(alone, HookOutput(system_message="told")).suppress_output is False


def test_what_one_hook_built_on_anothers_output_is_no_conflict() -> None:
    said = results_of(HookOutput(input={"command": "ls"}), HookOutput(input={"command": "ls -l"}))
    plan = Plan(BEFORE, tuple(result.hook for result in said), sequential=True)
    whole = aggregate(BEFORE, said, plan)
    assert (whole.input, whole.conflicts) == ({"command": "ls -l"}, [])


def test_contexts_and_texts_are_joined_in_order() -> None:
    whole = merged(
        HookOutput(context="a", inject=("1", "2")),
        HookOutput(),
        HookOutput(context="b\nc", inject=("3",)),
    )
    assert whole.context == "a\nb\nc"
    assert whole.inject == ["1", "2", "3"]


def test_rewrites_are_merged_by_key_and_the_later_counts() -> None:
    whole = merged(
        HookOutput(input={"command": "ls", "cwd": "/"}, request={"model": "m"}),
        HookOutput(input={"command": "ls -l", "nested": {"a": 1}}),
        HookOutput(input={"cwd": "/"}, request={"temperature": 0}),
    )
    assert whole.input == {"command": "ls -l", "cwd": "/", "nested": {"a": 1}}
    assert whole.request == {"model": "m", "temperature": 0}
    [conflict] = whole.conflicts
    assert conflict == ("input.command: h1 sets 'ls', h2 sets 'ls -l'; the last counts, of h2")
    assert merged(HookOutput(input={})).input is None


def test_two_responses_are_a_conflict_and_false_is_a_response() -> None:
    whole = merged(HookOutput(response="long" * 99), HookOutput(response=False), event=AFTER)
    assert whole.response is False
    [conflict] = whole.conflicts
    assert conflict.startswith("response: h1 sets 'long")
    assert len(conflict) < 150


def test_values_that_cannot_be_compared_or_shown_break_nothing() -> None:
    class Odd:
        def __eq__(self, _other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]

        def __repr__(self) -> str:
            raise RuntimeError

    odd = Odd()
    whole = merged(HookOutput(input={"x": odd, "y": odd}), HookOutput(input={"x": Odd(), "y": odd}))
    assert [line.partition(":")[0] for line in whole.conflicts] == ["input.x"]
    assert "Odd" in whole.conflicts[0]
    assert merged(HookOutput(input={"x": True}), HookOutput(input={"x": 1})).conflicts


def test_a_denial_drops_the_rewrite_of_what_is_still_to_come() -> None:
    one = HookOutput(input={"a": 1}, request={"b": 2}, response="synthetic")
    other = HookOutput(input={"a": 2})
    for event in (BEFORE, HookEventName.BEFORE_MODEL):
        whole = merged(one, DENY, other, event=event)
        assert (whole.input, whole.request, whole.conflicts) == (None, None, [])
        assert whole.response == "synthetic"
    # A question does not, and what has happened stays redacted.
    assert merged(one, ASK, other).input == {"a": 2}
    redacted = merged(HookOutput(response="***"), DENY, event=AFTER)
    assert redacted.response == "***"


def test_a_result_that_no_plan_has_comes_last() -> None:
    planned, stray = results_of(HookOutput(context="planned"), HookOutput(context="stray"))
    whole = aggregate(BEFORE, [stray, planned], Plan(BEFORE, (planned.hook,)))
    assert whole.context == "planned\nstray"


WORDS = st.sampled_from(["", " ", "a", "b", "c d"])
REWRITES = st.none() | st.dictionaries(WORDS, st.integers(0, 2) | st.booleans(), max_size=3)
OUTPUTS = st.none() | st.builds(
    HookOutput,
    decision=st.none() | st.sampled_from(Decision),
    reason=WORDS,
    stop=st.booleans(),
    stop_reason=WORDS,
    system_message=st.none() | WORDS,
    suppress_output=st.booleans(),
    context=WORDS,
    input=REWRITES,
    response=st.none() | WORDS,
    request=REWRITES,
    tools=st.none()
    | st.builds(
        ToolSelection,
        st.sampled_from(ToolMode),
        st.none() | st.lists(st.sampled_from("xyz"), max_size=3).map(tuple),
    ),
    inject=st.lists(WORDS, max_size=2).map(tuple),
)
ENDED = st.lists(st.tuples(OUTPUTS, st.booleans()), max_size=6)
EVENTS = st.sampled_from([BEFORE, AFTER, CHOOSING])


def ended(pairs: list[tuple[HookOutput | None, bool]]) -> list[HookRun]:
    results = results_of(*(output for output, _ in pairs))
    return [
        replace(result, success=success, duration=0.25)
        for result, (_, success) in zip(results, pairs, strict=True)
    ]


@given(ENDED, EVENTS, st.data())
def test_the_order_in_which_hooks_end_changes_nothing(
    pairs: list[tuple[HookOutput | None, bool]], event: HookEventName, data: st.DataObject
) -> None:
    results = ended(pairs)
    plan = Plan(event, tuple(result.hook for result in results))
    shuffled = data.draw(st.permutations(results))
    assert aggregate(event, shuffled, plan) == aggregate(event, results, plan)


@given(ENDED, EVENTS)
def test_what_holds_for_all_outputs(
    pairs: list[tuple[HookOutput | None, bool]], event: HookEventName
) -> None:
    whole = merge(ended(pairs), event)
    outputs = [output for output, _ in pairs if output is not None]
    decisions = {output.decision for output in outputs}
    assert whole.blocked is (Decision.DENY in decisions)
    ranks = (Decision.DENY, Decision.ASK, Decision.ALLOW, None)
    assert whole.decision is next((one for one in ranks if one in decisions), None)
    assert whole.stop is any(output.stop for output in outputs)
    assert bool(whole.stop_reason) is whole.stop
    assert whole.success is all(success for _, success in pairs)
    assert whole.duration == 0.25 * len(pairs)
    assert len(whole.errors) == sum(not success for _, success in pairs)
    if whole.blocked and event is not AFTER:
        assert (whole.input, whole.request) == (None, None)


@given(st.lists(st.tuples(OUTPUTS, st.just(True)), max_size=6))
def test_tools_only_ever_get_fewer(pairs: list[tuple[HookOutput | None, bool]]) -> None:
    tools = merge(ended(pairs), CHOOSING).tools
    said: list[Any] = [o.tools for o, _ in pairs if o is not None and o.tools is not None]
    if not said:
        assert tools is None
        return
    assert tools is not None
    order = list(ToolMode)
    assert tools.mode is max((one.mode for one in said), key=order.index)
    limits = [set(one.names) for one in said if one.names is not None]
    assert (tools.names is None) is (not limits)
    if tools.names is not None:
        assert set(tools.names) == set.intersection(*limits)


@given(st.lists(st.tuples(OUTPUTS, st.just(True)), max_size=6))
def test_a_key_is_in_conflict_exactly_when_its_values_differ(
    pairs: list[tuple[HookOutput | None, bool]],
) -> None:
    whole = merge(ended(pairs), AFTER)
    values: dict[str, list[Any]] = {}
    for output, _ in pairs:
        for key, value in ((output.input if output else None) or {}).items():
            values.setdefault(key, []).append(value)
    assert whole.input == ({key: found[-1] for key, found in values.items()} or None)
    named = [line for line in whole.conflicts if line.startswith("input.")]
    differing = [key for key, found in values.items() if len({repr(v) for v in found}) > 1]
    assert len(named) == len(differing)
