"""What one definition in a hook file means, and which are left out."""

from __future__ import annotations

from typing import Any

import pytest

from relay.hooks.hook_types import Command, OnFailure, Url
from relay.hooks.registration import TIMEOUT_MAX
from tests.hooks.hookfiles import CLAUDE, GEMINI, command, hooks, one, read, refused


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
