from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.hooks.events import EVENTS, HookEventName
from relay.hooks.hook_types import Command, Dialect, HookDefinition
from relay.hooks.planner import MATCHED_MAX, PATTERN_MAX, matches, slow

MATCHED_FIELD = {event: spec.matched for event, spec in EVENTS.items() if spec.matched}

NAMES = st.text(alphabet=string.ascii_letters + string.digits + "_", min_size=1, max_size=20)


def hook(
    matcher: str,
    dialect: Dialect = Dialect.CLAUDE,
    event: HookEventName = HookEventName.BEFORE_TOOL,
) -> HookDefinition:
    return HookDefinition(
        event, "a hook", Command(shell="true"), "a file", matcher=matcher, dialect=dialect
    )


def selects(matcher: str, name: str, dialect: Dialect = Dialect.CLAUDE) -> bool:
    return matches(hook(matcher, dialect), {"tool_name": name})


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("matcher", ["", "*", " ", " * "])
@pytest.mark.parametrize("name", ["Bash", "", "x" * 1000])
def test_no_matcher_is_for_everything(matcher: str, dialect: Dialect, name: str) -> None:
    assert selects(matcher, name, dialect)


@pytest.mark.parametrize("dialect", [Dialect.CLAUDE, Dialect.RELAY])
def test_plain_words_are_a_list_of_exact_names(dialect: Dialect) -> None:
    for matcher in ("Edit|Write", "Edit,Write", "Edit, Write", " Edit | Write |"):
        assert selects(matcher, "Edit", dialect)
        assert selects(matcher, "Write", dialect)
        for name in ("MultiEdit", "Edit2", "edit", "", "Edit|Write"):
            assert not selects(matcher, name, dialect)
    assert selects("my-tool", "my-tool", dialect)
    assert not selects("|", "", dialect)


@pytest.mark.parametrize("dialect", [Dialect.CLAUDE, Dialect.RELAY])
def test_anything_else_is_searched_for(dialect: Dialect) -> None:
    assert selects("mcp__.*__write", "mcp__files__write_all", dialect)
    assert selects("^Notebook", "NotebookEdit", dialect)
    assert not selects("^Edit$", "NotebookEdit", dialect)
    assert selects(r"(?<kind>Ba)sh$", "Bash", dialect)
    assert not selects(r"(?<!Note)book.", "Notebook1", dialect)


def test_gemini_searches_tools_and_compares_everything_else() -> None:
    assert selects("write_file|replace", "my_write_file", Dialect.GEMINI)
    assert selects("Edit", "NotebookEdit", Dialect.GEMINI)
    start = hook("start.*", Dialect.GEMINI, HookEventName.SESSION_START)
    assert not matches(start, {"source": "startup"})
    assert matches(start, {"source": "start.*"})


def test_each_event_has_its_own_field() -> None:
    assert len(MATCHED_FIELD) == 6
    for event, field in MATCHED_FIELD.items():
        for dialect in Dialect:
            one = hook("clear", dialect, event)
            assert matches(one, {field: "clear"})
            assert not matches(one, {field: "resume", "other": "clear"})
            assert not matches(one, {field: None})
            assert not matches(one, {})


@pytest.mark.parametrize("event", [e for e in HookEventName if e not in MATCHED_FIELD])
def test_where_there_is_nothing_to_match_every_hook_runs(event: HookEventName) -> None:
    assert matches(hook("Bash", event=event), {"tool_name": "Edit"})


@pytest.mark.parametrize("matcher", ["(", "mcp__[", "*Bash", "+", "(?<x", "a{2,1}", "\\"])
@pytest.mark.parametrize("dialect", Dialect)
def test_what_is_no_regular_expression_matches_its_own_text(matcher: str, dialect: Dialect) -> None:
    assert selects(matcher, matcher, dialect)
    assert not selects(matcher, f"x{matcher}", dialect)
    assert not selects(matcher, "Bash", dialect)


SLOW = [
    r"(a+)+$",
    r"(\w+_?)+$",
    r"^(?:[a-z]+_*)*Edit$",
    r"((a|aa)*)b",
    r"(a|ab){2,}$",
    r"(a?){30}a{30}$",
    r".*a.*b.*c.*d$",
    r"(x|.*a.*b.*c.*d)$",
    "a?" * 40 + "$",
    "a" * (PATTERN_MAX + 1) + "+",
]


@pytest.mark.parametrize("matcher", SLOW)
@pytest.mark.parametrize("name", ["a" * 64 + "!", "Bash"])
def test_a_matcher_that_could_take_for_ever_selects_its_hook(matcher: str, name: str) -> None:
    assert slow(matcher)
    assert selects(matcher, name)
    assert selects(matcher, name, Dialect.GEMINI)


@pytest.mark.parametrize(
    "matcher",
    [
        "mcp__.*__(write|delete).*",
        "(mcp__.*)?write$",
        "^(?:Edit|Write|Notebook.*)$",
        "mcp__memory__.*|mcp__files__.*|mcp__git__.*|mcp__web__.*|mcp__mail__.*",
        "(ab){3}c*",
        r"[(a+)+]+",
        r"[]+*]+x",
        r"\(a+\)+",
        "(abc)+",
        "(a{3}){4}",
    ],
)
def test_ordinary_matchers_are_not_slow(matcher: str) -> None:
    re.compile(matcher)
    assert not slow(matcher)
    assert not selects(matcher, "Query")


def test_a_long_name_evades_no_regular_expression() -> None:
    assert selects("delete$", "x" * MATCHED_MAX + "delete")
    assert selects("delete$", "x" * (MATCHED_MAX + 1))
    assert not selects("delete$", "x" * MATCHED_MAX)
    assert not selects("delete", "x" * (MATCHED_MAX + 1) + "delete")  # a list is always exact


@given(st.lists(NAMES, min_size=1, max_size=5), NAMES, st.sampled_from("|,"))
def test_a_list_holds_exactly_its_names(names: list[str], other: str, separator: str) -> None:
    matcher = separator.join(names)
    assert all(selects(matcher, name) for name in names)
    assert selects(matcher, other) == (other in names)


@given(st.text(max_size=40), st.text(max_size=200), st.sampled_from(Dialect))
def test_no_matcher_and_no_name_raises(matcher: str, name: str, dialect: Dialect) -> None:
    for event in (HookEventName.BEFORE_TOOL, HookEventName.SESSION_START):
        assert matches(hook(matcher, dialect, event), {"tool_name": name, "source": name}) in (
            True,
            False,
        )


@given(st.text(alphabet="ab()|*+?{},1[]\\.", max_size=12), st.text(alphabet="ab", max_size=128))
def test_nothing_that_passes_as_quick_is_slow(matcher: str, name: str) -> None:
    # Were one exponential, this would not come back.
    selects(matcher, name)
    selects(matcher, name + "!")
