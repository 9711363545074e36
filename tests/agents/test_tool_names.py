"""Whether a turn's permissions allow a tool call, however the agent or a server spells its name."""

from __future__ import annotations

import pytest

from relay.agents.tool_uses import TOOLS, refusal
from relay.core.dispatch import FULL, MINIMAL, PermissionLevel, PermissionSet


def some(*allow: str, deny: tuple[str, ...] = ()) -> PermissionSet:
    return PermissionSet(PermissionLevel.RESTRICTED, {"allow": allow, "deny": deny})


NO_SHELL = some("*", deny=("shell",))


@pytest.mark.parametrize(
    ("permissions", "tool"),
    [
        (FULL, "CronCreate"),
        (MINIMAL, "WebSearch"),
        (MINIMAL, "google_web_search"),
        (some("Bash"), "run_shell_command"),
        (some("web_*"), "WebFetch"),
        (some("mcp__github__*"), "mcp__github__create_issue"),
        (some("mcp__github__*"), "github_create_issue"),
        (some("mcp__github__*"), "mcp_github_create_issue"),
        (some("schedule"), "CronCreate"),
        (NO_SHELL, "Read"),
    ],
)
def test_what_is_allowed(permissions: PermissionSet, tool: str) -> None:
    assert refusal(permissions, tool) == ""


@pytest.mark.parametrize(
    ("permissions", "tool"),
    [
        (MINIMAL, "Bash"),
        (MINIMAL, ""),
        (MINIMAL, "web_searcher"),
        (MINIMAL, "mcp__web__search"),
        (MINIMAL, "mcp__evil__web_search"),
        (some(), "Read"),
        (some("read"), "Write"),
        (some("R*"), "Bash"),
        (NO_SHELL, "BASH"),
        (NO_SHELL, "exec_command"),
        (NO_SHELL, "write_stdin"),
        (NO_SHELL, "CronCreate"),
        (NO_SHELL, "batch"),
        (some("*", deny=("bash",)), "run_shell_command"),
        (some("*", deny=("MCP__*",)), "mcp__github__create_issue"),
        (some("*", deny=("mcp__github__*",)), "github_create_issue"),
        (some("shell", deny=("*",)), "Bash"),
        (some("mcp__github__*"), "mcp__githubber__x"),
    ],
)
def test_what_is_refused(permissions: PermissionSet, tool: str) -> None:
    assert refusal(permissions, tool)


def test_work_that_outlasts_the_turn_needs_its_own_permission() -> None:
    background = {"command": "x", "run_in_background": True}
    assert refusal(some("shell"), "Bash", background)
    assert refusal(some("shell", "schedule"), "Bash", background) == ""
    assert refusal(FULL, "Bash", background) == ""


def test_a_name_belongs_to_one_kind_of_tool() -> None:
    kinds: dict[str, str] = {}
    for ours, theirs in TOOLS.items():
        for name in theirs:
            assert kinds.setdefault(name.casefold(), ours) == ours
