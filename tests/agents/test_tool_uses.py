"""What each agent's tools do to files, with the fields that the real ones send."""

from __future__ import annotations

from typing import Any

import pytest

from relay.agents.tool_uses import TABLES, TOOLS, ToolUse, UseKind, patch_use, refusal, tool_use
from relay.core.dispatch import FULL, MINIMAL, PermissionLevel, PermissionSet

PATCH = """\
*** Begin Patch
*** Update File: src/a.py
*** Move to: src/b.py
@@ def f
-    old
+    new *** Delete File: no
*** Delete File: c d
  *** Add File: e
+*** Delete File: no
*** End of File
*** End Patch
"""
PATCHED: dict[str, Any] = {
    "writes": ("src/a.py", "e"),
    "deletes": ("c d",),
    "moves": (("src/a.py", "src/b.py"),),
}


def told(use: ToolUse) -> dict[str, Any]:
    names = ("reads", "writes", "deletes", "moves", "command", "cwd")
    return {name: getattr(use, name) for name in names if getattr(use, name)}


@pytest.mark.parametrize(
    ("agent", "tool", "params", "kind", "expected"),
    [
        ("claude", "Write", {"file_path": "/p/a", "content": ""}, "write", {"writes": ("/p/a",)}),
        ("claude", "Edit", {"file_path": "a"}, "write", {"writes": ("a",)}),
        ("claude", "NotebookEdit", {"notebook_path": "a"}, "write", {"writes": ("a",)}),
        ("claude", "Read", {"file_path": "a"}, "read", {"reads": ("a",)}),
        ("claude", "Bash", {"command": "ls"}, "execute", {"command": "ls"}),
        ("claude", "Monitor", {"command": "ls"}, "execute", {"command": "ls"}),
        ("claude", "TodoWrite", {"todos": []}, "other", {}),
        ("claude", "Agent", {"prompt": "x"}, "other", {}),
        ("codex", "apply_patch", {"command": PATCH}, "write", PATCHED),
        ("codex", "Bash", {"command": "ls"}, "execute", {"command": "ls"}),
        (
            "codex",
            "Bash",
            {"command": ["bash", "-c", "ls a"]},
            "execute",
            {"command": "bash -c 'ls a'"},
        ),
        ("gemini", "write_file", {"file_path": "a"}, "write", {"writes": ("a",)}),
        ("gemini", "replace", {"file_path": "a"}, "write", {"writes": ("a",)}),
        (
            "gemini",
            "run_shell_command",
            {"command": "ls", "dir_path": "s"},
            "execute",
            {"command": "ls", "cwd": "s"},
        ),
        ("qwen", "edit", {"file_path": " a"}, "write", {"writes": (" a", "a")}),
        ("qwen", "notebook_edit", {"notebook_path": "a"}, "write", {"writes": ("a",)}),
        (
            "qwen",
            "run_shell_command",
            {"command": "ls", "directory": "/s"},
            "execute",
            {"command": "ls", "cwd": "/s"},
        ),
        ("opencode", "write", {"filePath": "e\u0301"}, "write", {"writes": ("e\u0301", "\xe9")}),
        ("opencode", "apply_patch", {"patchText": PATCH}, "write", PATCHED),
        (
            "opencode",
            "bash",
            {"command": "ls", "workdir": "s"},
            "execute",
            {"command": "ls", "cwd": "s"},
        ),
    ],
)
def test_what_a_call_touches(
    agent: str, tool: str, params: dict[str, Any], kind: str, expected: dict[str, Any]
) -> None:
    use = tool_use(agent, tool, params)
    assert (use.kind, told(use), use.blind) == (kind, expected, "")


@pytest.mark.parametrize(
    ("agent", "tool", "params"),
    [
        ("claude", "mcp__files__write", {"path": "a"}),
        ("claude", "Write", {"content": "x"}),
        ("claude", "Write", {"file_path": ["a\0b"]}),
        ("claude", "Write", None),
        ("claude", "Agent", {"prompt": "x", "isolation": "worktree"}),
        ("claude", "write", {"file_path": "a"}),
        ("codex", "apply_patch", {"command": "*** Begin Patch\n*** Rename File: a\n*** End Patch"}),
        ("codex", "apply_patch", {"command": "nothing"}),
        ("codex", "Bash", {"command": 3}),
        ("gemini", "write_file", {"file_path": "@src/a"}),
        ("qwen", "edit", {"file_path": "src/../a\\ b"}),
        ("opencode", "batch", {"tool_calls": [{"tool": "batch"}]}),
        ("aider", "Write", {"file_path": "a"}),
    ],
)
def test_what_cannot_be_told_is_said_to_be_blind(agent: str, tool: str, params: object) -> None:
    use = tool_use(agent, tool, params)
    assert use.blind and use.kind not in (UseKind.READ, UseKind.OTHER)


def test_gemini_takes_another_file_of_a_name_that_is_not_there() -> None:
    assert tool_use("gemini", "replace", {"file_path": "a"}).guesses
    assert not tool_use("gemini", "replace", {"file_path": "/p/a"}).guesses


def test_a_line_is_the_agents_line() -> None:
    """Other ends of lines than the newline are a part of a name, for agents."""
    assert patch_use("*** Add File: a\u2028b\n+x").writes == ("a\u2028b",)


@pytest.mark.parametrize("agent", TABLES)
def test_no_call_makes_it_fail(agent: str) -> None:
    fields = {
        name: [1] for name in ("command", "file_path", "filePath", "path", "tool_calls", "edits")
    }
    for tool in TABLES[agent]:
        for params in ({}, fields, {**fields, "command": "*** Move to: x"}):
            assert isinstance(tool_use(agent, tool, params), ToolUse)


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
