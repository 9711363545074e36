from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.hooks.events import EVENTS, HookEventName
from relay.hooks.hook_files import (
    HookSpec,
    is_hook_file,
    read_hook_file,
    register_hook_files,
)
from relay.hooks.hook_types import Command, Dialect, OnFailure, Url
from relay.hooks.planner import Planner
from relay.hooks.registry import TIMEOUT_MAX, Registry

CLAUDE = "/project/.claude/settings.json"
GEMINI = "/project/.gemini/settings.json"


def read(content: Any, path: str = CLAUDE, **env: str) -> tuple[list[HookSpec], list[str]]:
    return read_hook_file(json.dumps(content).encode(), path, env=env)


def hooks(event: str, *entries: Any, **group: Any) -> dict[str, Any]:
    return {"hooks": {event: [{**group, "hooks": list(entries)}]}}


def command(line: str = "check", **more: Any) -> dict[str, Any]:
    return {"type": "command", "command": line, **more}


def one(content: Any, path: str = CLAUDE, **env: str) -> HookSpec:
    """The only hook of a file that has no problem."""
    specs, problems = read(content, path, **env)
    assert problems == []
    [spec] = specs
    return spec


def refused(content: Any, path: str = CLAUDE) -> str:
    """The only problem of a file that has no hook."""
    specs, problems = read(content, path)
    assert specs == []
    [problem] = problems
    return problem


def test_a_file_of_claude_code() -> None:
    spec = one(hooks("PreToolUse", command(timeout=5), matcher="Edit|Write"))
    assert spec == HookSpec(
        event=HookEventName.BEFORE_TOOL,
        action=Command(shell="check"),
        matcher="Edit|Write",
        timeout=5.0,
        on_failure=OnFailure.ALLOW,
        sequential=False,
        name="",
        dialect=Dialect.CLAUDE,
    )


def test_a_file_of_gemini_cli() -> None:
    entry = command("$GEMINI_PROJECT_DIR/check", name="a  check", timeout=1500, env={"A": "b"})
    spec = one(hooks("BeforeTool", entry, matcher="write_.*", sequential=True), GEMINI)
    assert spec == HookSpec(
        event=HookEventName.BEFORE_TOOL,
        action=Command(argv=("bash", "-c", "$GEMINI_PROJECT_DIR/check"), env=(("A", "b"),)),
        matcher="write_.*",
        timeout=1.5,
        on_failure=OnFailure.ALLOW,
        sequential=True,
        name="a check",
        dialect=Dialect.GEMINI,
    )


OURS_ONLY = {HookEventName.OUTPUT, HookEventName.IDLE, HookEventName.WEDGED}
OURS_ONLY |= {HookEventName.MESSAGE_RECEIVED}
OURS_ONLY |= {event for event, spec in EVENTS.items() if spec.of_broker}


@pytest.mark.parametrize("event", sorted(OURS_ONLY))
def test_relays_own_events_are_in_no_hook_file(event: HookEventName) -> None:
    assert "no such event" in refused(hooks(event.value, command()), GEMINI)


def test_events_that_both_have_go_by_the_rest_of_the_file() -> None:
    def dialect(path: str, *others: str) -> Dialect:
        events = {name: [{"hooks": [command()]}] for name in (*others, "SessionStart")}
        specs, problems = read({"hooks": events}, path)
        assert problems == []
        return specs[-1].dialect

    assert dialect("/x/settings.json", "BeforeTool") is Dialect.GEMINI
    assert dialect(GEMINI, "PreToolUse") is Dialect.CLAUDE
    assert dialect(GEMINI) is Dialect.GEMINI
    assert dialect("/x/settings.json") is Dialect.CLAUDE
    assert dialect(GEMINI, "PreToolUse", "BeforeTool") is Dialect.GEMINI


def test_a_malformed_event_is_left_out_and_the_next_loads() -> None:
    specs, problems = read(
        {"hooks": {"Stop": {}, "SubagentStop": [], "PreToolUse": [{"hooks": [command()]}]}}
    )
    assert len(specs) == 1
    assert [problem.split(": ")[1] for problem in problems] == ["hooks.Stop", "hooks.SubagentStop"]
    assert "no such event" in problems[1]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"3", b'{"hooks": []}', b"\xff\xfe", b"[" * 100_000, b"1" * 10_000,
     b'{"a": "\\"\\"' + b'\\"' * 50_000, b"/*" * 50_000],
)  # fmt: skip
def test_a_damaged_file_has_no_hooks_and_says_so(data: bytes) -> None:
    specs, problems = read_hook_file(data, CLAUDE)
    assert specs == []
    [problem] = problems
    assert problem.startswith(CLAUDE)


def test_a_file_without_hooks_is_no_problem() -> None:
    assert read({"model": "m"}) == ([], [])
    assert read({"hooks": {}}) == ([], [])


def test_comments_and_a_byte_order_mark_are_no_harm() -> None:
    text = (
        '\ufeff// mine\n{"hooks": {/* a\n * b */ "BeforeTool": [{"hooks": [ // why\n'
        '{"type": "command", "command": "curl http://x/* \\"//\\""}]}]}}'
    )
    specs, problems = read_hook_file(text.encode(), GEMINI)
    assert problems == []
    assert specs[0].action == Command(argv=("bash", "-c", 'curl http://x/* "//"'))


def test_what_the_file_turns_off_is_off() -> None:
    both = {"PreToolUse": [{"hooks": [command("c")]}], "BeforeTool": [{"hooks": [command("g")]}]}
    for switch, left in (
        ({"disableAllHooks": True}, Dialect.GEMINI),
        ({"hooksConfig": {"enabled": False}}, Dialect.CLAUDE),
    ):
        specs, problems = read({"hooks": both, **switch})
        assert [spec.dialect for spec in specs] == [left]
        assert len(problems) == 1
    assert "enabled" in refused({"hooks": {"BeforeTool": both["BeforeTool"], "enabled": False}})


def test_names_that_gemini_cli_has_disabled_do_not_run() -> None:
    named = [command("g", name="mine"), command("g"), command("h", name="g"), command("h")]
    content = {**hooks("BeforeTool", *named), "hooksConfig": {"disabled": ["mine", "g", 3]}}
    spec = one(content, GEMINI)
    assert (spec.name, spec.action) == ("", Command(argv=("bash", "-c", "h")))
    content = hooks("PreToolUse", command("g"))
    assert one({**content, "hooksConfig": {"disabled": ["g"]}}).action == Command(shell="g")


def test_what_is_said_of_one_hook_is_bounded() -> None:
    _, problems = read(hooks("Stop", {"type": "x" * 10_000}))
    assert all(len(problem) <= 300 for problem in problems)


def test_what_is_said_cannot_draw_on_a_terminal() -> None:
    specs, problems = read_hook_file(
        b'{"hooks": {"Stop": [{"hooks": [{"type": "\\u009b31m"}]}], "\\u001b[2J": []}}', "/\x1bx"
    )
    assert specs == []
    assert len(problems) == 2
    assert all(problem.isprintable() for problem in problems)


def test_what_is_a_hook_file() -> None:
    assert is_hook_file("/x/settings.json", b"")
    for data in (b"{", b"\xef\xbb\xbf\n {", b"// mine\n{", b"/* mine */ {"):
        assert is_hook_file("/x/hooks", data)
    for data in (b"", b'"""Mine."""', b"patterns = {}", b"# {"):
        assert not is_hook_file("/x/relay.config.py", data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
KEYS = ["type", "command", "args", "url", "headers", "timeout", "onFailure", "name", "shell", "env"]
ENTRY = st.dictionaries(
    st.sampled_from(KEYS), JSON | st.sampled_from(["command", "http", "http://x", "block"])
)
GROUP = st.fixed_dictionaries({"hooks": st.lists(ENTRY | JSON, max_size=3) | JSON, "matcher": JSON})


@given(
    st.dictionaries(
        st.sampled_from(["PreToolUse", "BeforeTool", "SessionStart", "X"]),
        st.lists(GROUP | JSON, max_size=3) | JSON,
    ),
    st.sampled_from([CLAUDE, GEMINI]),
)
def test_whatever_is_read_can_be_registered(table: dict[str, Any], path: str) -> None:
    data = json.dumps({"hooks": table}).encode()
    specs, problems = read_hook_file(data, path)
    registry = Registry()
    assert register_hook_files(registry, [(path, data, True)]) == problems
    assert len(registry.all_hooks()) == len(specs)


@given(st.binary(max_size=200))
def test_no_content_raises(data: bytes) -> None:
    specs, _ = read_hook_file(data, CLAUDE)
    assert specs == []


FILES = {
    "/a": json.dumps(hooks("PreToolUse", command("a1"), command("a2"))).encode(),
    "/b": json.dumps(hooks("BeforeTool", command("b", name="B"))).encode(),
    "/bad": b"{",
}


def registered(paths: list[str], trusted: tuple[str, ...]) -> tuple[Registry, list[str]]:
    registry = Registry()
    files = [(path, FILES[path], path in trusted) for path in paths]
    return registry, register_hook_files(registry, files)


def test_an_untrusted_files_hooks_are_listed_and_never_planned() -> None:
    registry, problems = registered(["/a", "/b"], ("/b",))
    assert [hook.trusted for hook in registry.all_hooks()] == [False, False, True]
    plan = Planner(registry).plan(HookEventName.BEFORE_TOOL, {"tool_name": "Bash"})
    assert [hook.name for hook in plan.hooks] == ["B"]
    [problem] = problems
    assert "2 hooks do not run" in problem
    assert problem.endswith("relay trust /a")


def test_a_file_that_cannot_be_used_costs_its_own_hooks_only() -> None:
    registry, [problem] = registered(["/bad", "/b"], ("/bad", "/b"))
    assert [hook.name for hook in registry.all_hooks()] == ["B"]
    assert problem.startswith("/bad:1: ")


@pytest.mark.parametrize(
    ("event", "path", "expected"),
    [
        ("PreToolUse", CLAUDE, 600.0),
        ("UserPromptSubmit", CLAUDE, 30.0),
        ("SessionEnd", CLAUDE, None),
        ("BeforeTool", GEMINI, 60.0),
        ("SessionEnd", GEMINI, 60.0),
    ],
)
def test_each_engine_has_its_own_time_limits(event: str, path: str, expected: float | None) -> None:
    assert one(hooks(event, command()), path).timeout == expected


def test_a_failure_lets_the_agent_go_on_unless_the_file_says_block() -> None:
    for path, event in ((CLAUDE, "PreToolUse"), (GEMINI, "BeforeTool")):
        assert one(hooks(event, command()), path).on_failure is OnFailure.ALLOW
        spec = one(hooks(event, command(onFailure="block")), path)
        assert spec.on_failure is OnFailure.BLOCK
    assert "onFailure" in refused(hooks("PreToolUse", command(onFailure="deny")))


def test_an_http_hook_gets_only_the_variables_that_it_names() -> None:
    entry = {
        "type": "http",
        "url": "http://127.0.0.1:1/hook",
        "headers": {"Authorization": "Bearer $TOKEN", "X-Other": "${SECRET}.$MISSING.$"},
        "allowedEnvVars": ["TOKEN", "MISSING"],
    }
    spec = one(hooks("PreToolUse", entry), TOKEN="abc", SECRET="hidden")
    assert spec.action == Url(
        "http://127.0.0.1:1/hook", (("Authorization", "Bearer abc"), ("X-Other", "..$"))
    )


def test_a_program_with_arguments_needs_no_shell() -> None:
    spec = one(hooks("Stop", command("/bin/check it", args=["a b", "", "$HOME"])))
    assert spec.action == Command(argv=("/bin/check it", "a b", "", "$HOME"))


def test_the_folder_of_the_files_project_is_filled_in_as_one_word() -> None:
    entry = command("printf", args=["%s|", "-${CLAUDE_PROJECT_DIR}/$(id) `x`", "", "'\""])
    action = one(hooks("Stop", entry), "/my project/$(id)/.claude/settings.json").action
    assert action == Command(argv=("printf", "%s|", "-/my project/$(id)/$(id) `x`", "", "'\""))


def test_a_shell_is_the_one_that_is_named() -> None:
    assert one(hooks("Stop", command("a", shell="bash"))).action == Command(
        argv=("bash", "-c", "a")
    )
    assert "powershell" in refused(hooks("Stop", command(shell="powershell")))


@pytest.mark.parametrize(
    "entry",
    [
        None,
        "check",
        {},
        {"command": "check"},
        {"type": "command"},
        {"type": "prompt", "prompt": "Is this fine?"},
        {"type": "agent"},
        {"type": "mcp_tool", "server": "s", "tool": "t"},
        {"type": ["command"], "command": "check"},
        command(" "),
        command("a\0b"),
        command(line=3),  # type: ignore[arg-type]
        command(args="a"),
        command(args=["a", 1]),
        command(timeout="5"),
        command(timeout=0),
        command(timeout=-1),
        command(timeout=True),
        command(timeout=float("nan")),
        command(timeout=5e-324),
        command(onFailure=None),
        command(name=3),
        {**command(), "if": "Bash(rm *)"},
        {**command(), "async": True},
        command(asyncRewake=True),
        {"type": "http"},
        {"type": "http", "url": "file:///etc/passwd"},
        {"type": "http", "url": "http://x", "headers": ["a"]},
        {"type": "http", "url": "http://x", "headers": {"a": 1}},
        {"type": "http", "url": "http://x", "allowedEnvVars": "TOKEN"},
    ],
)
def test_what_is_malformed_or_unknown_is_left_out_and_said_and_its_siblings_load(
    entry: Any,
) -> None:
    specs, problems = read(hooks("PreToolUse", command("first"), entry, command("last")))
    assert [spec.action for spec in specs] == [Command(shell="first"), Command(shell="last")]
    [problem] = problems
    assert problem.startswith(f"{CLAUDE}: hooks.PreToolUse[0].hooks[1]: ")
    assert problem.endswith("so it does not run")


@pytest.mark.parametrize(
    "group", [None, [], "x", {}, {"hooks": {}}, {"hooks": [], "matcher": 3}, {"matcher": "Bash"}]
)
def test_a_malformed_group_is_left_out_and_the_next_loads(group: Any) -> None:
    specs, problems = read({"hooks": {"Stop": [group, {"hooks": [command()]}]}})
    assert len(specs) == 1
    [problem] = problems
    assert problem.startswith(f"{CLAUDE}: hooks.Stop[0]: ")


def test_a_time_limit_beyond_relays_is_cut_and_said() -> None:
    for value in (TIMEOUT_MAX + 1, 10**400, float("inf")):
        specs, problems = read(hooks("Stop", command(timeout=value)))
        assert specs[0].timeout == TIMEOUT_MAX
        assert "cut to 86400 seconds" in problems[0]
    assert one(hooks("AfterAgent", command(timeout=TIMEOUT_MAX * 1000))).timeout == TIMEOUT_MAX


def test_a_matcher_that_could_take_too_long_is_said() -> None:
    specs, problems = read(hooks("PreToolUse", command(), matcher="(a+)+$"))
    assert len(specs) == 1
    assert "matches everything" in problems[0]
    assert one(hooks("Stop", command(), matcher="(a+)+$")).matcher == "(a+)+$"
    assert one(hooks("SessionStart", command(), matcher="(a+)+$"), GEMINI)
