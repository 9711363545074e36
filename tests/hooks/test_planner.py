from __future__ import annotations

import re
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.hooks.events import EVENTS, HookEventName
from relay.hooks.hook_types import Command, Dialect, HookDefinition, OnFailure, Plan, Url
from relay.hooks.planner import MATCHED_MAX, Planner, matches, slow
from relay.hooks.registry import Registry

BEFORE = HookEventName.BEFORE_TOOL
PAYLOAD = {"tool_name": "Bash"}


def names(plan: Plan) -> list[str]:
    return [hook.name for hook in plan.hooks]


def planned(registry: Registry, payload: dict[str, Any] | None = None) -> Plan:
    return Planner(registry).plan(BEFORE, PAYLOAD if payload is None else payload)


def test_what_has_no_usable_name_is_for_hooks_without_a_matcher_only() -> None:
    registry = Registry()
    registry.add_hook(BEFORE, Command(shell="all"), name="all")
    registry.add_hook(BEFORE, Command(shell="bash"), name="bash", matcher="Bash")
    planner = Planner(registry)
    for odd in ({}, {"tool_name": 3}, {"tool_name": ["Bash"]}, {"tool_name": "Bash" * 100}):
        assert names(planner.plan(BEFORE, odd)) == ["all"]
    assert names(planner.plan(BEFORE, PAYLOAD)) == ["all", "bash"]


def test_what_is_not_trusted_never_runs_nor_counts() -> None:
    registry = Registry()
    registry.add_hook(BEFORE, Command(shell="x"), trusted=False, sequential=True)
    registry.add_hook(BEFORE, Command(shell="y"), trusted=False, on_failure="block")
    mine = registry.add_hook(BEFORE, Command(shell="y"), on_failure="allow")
    plan = planned(registry)
    assert plan == Plan(BEFORE, (mine,), sequential=False)
    assert [hook.trusted for hook in registry.all_hooks()] == [False, False, True]


def test_the_same_program_runs_once() -> None:
    registry = Registry()
    for source in ("the user's", "the project's"):
        registry.add_hook(BEFORE, Command(shell="lint"), source=source)
        registry.add_hook(BEFORE, Command(argv=("lint",)), source=source, name="lint (argv)")
        registry.add_hook(BEFORE, Url("http://127.0.0.1:1/lint"), source=source)
    registry.add_hook(BEFORE, Command(shell="lint"), matcher="Ba.*")
    registry.add_hook(BEFORE, Command(shell="lint", cwd="/elsewhere"))
    plan = planned(registry)
    assert names(plan) == ["lint", "lint (argv)", "http://127.0.0.1:1/lint", "lint"]
    assert [hook.source for hook in plan.hooks[:3]] == ["the user's"] * 3


def test_a_function_that_is_registered_twice_runs_twice() -> None:
    registry = Registry()

    def check(tool: str) -> None: ...

    entries = [registry.add_hook(BEFORE, check, name="check") for _ in range(2)]
    assert list(planned(registry).hooks) == entries


@pytest.mark.parametrize("order", [("allow", "block"), ("block", "allow")])
def test_of_two_the_same_the_stricter_failure_counts(order: tuple[str, str]) -> None:
    registry = Registry()
    for meaning in order:
        registry.add_hook(BEFORE, Command(shell="guard"), on_failure=meaning)
    [hook] = planned(registry).hooks
    assert hook.on_failure is OnFailure.BLOCK


def test_one_sequential_hook_makes_all_sequential() -> None:
    registry = Registry()
    registry.add_hook(BEFORE, Command(shell="a"))
    assert not planned(registry).sequential
    registry.add_hook(BEFORE, Command(shell="b"), sequential=True, matcher="Edit")
    assert not planned(registry).sequential
    assert planned(registry, {"tool_name": "Edit"}).sequential
    registry.add_hook(BEFORE, Command(shell="a"), sequential=True)
    assert planned(registry).sequential


HOOKS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["a", "a:b", "b"]),
        "shell": st.sampled_from(["x", "b:x", "y"]),
        "priority": st.integers(-1, 1),
        "matcher": st.sampled_from(["", "Bash", "Edit", "Ba.*"]),
        "trusted": st.booleans(),
        "sequential": st.booleans(),
    }
)


@given(st.lists(HOOKS, max_size=12))
def test_plans_are_the_same_each_time_and_have_each_program_once(
    entries: list[dict[str, Any]],
) -> None:
    def registry() -> Registry:
        made = Registry()
        for entry in entries:
            options = {key: value for key, value in entry.items() if key != "shell"}
            made.add_hook(BEFORE, Command(shell=entry["shell"]), on_failure="allow", **options)
        return made

    one, other = planned(registry()), planned(registry())
    shape = [(hook.name, hook.action, hook.order) for hook in one.hooks]
    assert shape == [(hook.name, hook.action, hook.order) for hook in other.hooks]
    ranks = [(-hook.priority, hook.order) for hook in one.hooks]
    assert ranks == sorted(ranks)
    selected = {
        (entry["name"], entry["shell"])
        for entry in entries
        if entry["trusted"] and entry["matcher"] != "Edit"
    }
    keys = [(name, action.shell) for name, action, _ in shape if isinstance(action, Command)]
    assert sorted(keys) == sorted(selected)


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
    r"a.*[|].*b.*c.*d$",
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
