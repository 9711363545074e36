"""What tools are called: one table across agents, and whether a permission set allows a call. Pure.

``allow`` is read strictly: a tool of the table is known by relay's name of it, any other by its
own, which must not be one of the table's. ``deny`` is read widely: any name or spelling of the tool
counts. So a set means the same with each agent, and no server can name its tool into what is
allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from relay.core.dispatch import PermissionSet

#: relay's name of a tool, and the agents' own.
TOOLS: dict[str, tuple[str, ...]] = {
    "shell": (
        *("Bash", "BashOutput", "KillShell", "KillBash", "PowerShell", "Monitor"),
        *("exec_command", "write_stdin", "shell", "shell_command", "local_shell", "unified_exec"),
        *("js_repl", "run_shell_command", "monitor", "bash", "execute"),
        *("list_background_processes", "read_background_output"),
    ),
    "read": (
        *("Read", "NotebookRead", "read_file", "read_many_files", "read", "view_image"),
        "zoom_image",
    ),
    "search": (
        *("Glob", "Grep", "LS", "LSP", "glob", "grep", "grep_search", "list_directory", "list"),
        *("search_file_content", "list_dir", "grep_files", "lsp", "codesearch"),
    ),
    "write": (
        *("Write", "Edit", "MultiEdit", "NotebookEdit", "write_file", "edit", "replace"),
        *("apply_patch", "patch", "write", "multiedit", "notebook_edit", "EnterWorktree"),
        *("ExitWorktree", "enter_worktree", "exit_worktree", "record_artifact"),
    ),
    "web_search": ("WebSearch", "google_web_search", "web_search", "websearch"),
    "web_fetch": ("WebFetch", "web_fetch", "webfetch"),
    "agent": (
        *("Task", "Agent", "agent", "task", "invoke_agent", "spawn_agent", "SendMessage"),
        *("send_message", "send_input", "resume_agent", "Workflow", "workflow", "Skill", "skill"),
        *("activate_skill", "complete_task", "codebase_investigator", "cli_help"),
    ),
    "schedule": (
        *("CronCreate", "CronDelete", "ScheduleWakeup", "RemoteTrigger", "cron_create"),
        *("cron_delete", "loop_wakeup", "update_goal", "create_goal"),
    ),
    "memory": ("save_memory",),
    "message": (),
    "tools": ("ToolSearch", "tool_search", "DeferredToolPlaceholder"),
    "ask": ("AskUserQuestion", "ask_user", "ask_user_question", "question", "request_user_input"),
    "plan": (
        *("TodoWrite", "TodoRead", "TaskCreate", "TaskGet", "TaskList", "TaskUpdate", "TaskStop"),
        *("todo_write", "todowrite", "todoread", "write_todos", "update_plan", "update_topic"),
        *("EnterPlanMode", "ExitPlanMode", "enter_plan_mode", "exit_plan_mode"),
        *("CronList", "cron_list", "ListAgents", "list_agents", "get_goal"),
        *("ReportFindings", "report_findings", "plan_exit", "plan_enter", "task_stop"),
    ),
}
#: Work that outlasts its turn, and so would go on when the turn's limits are gone: ``*`` does not
#: allow it, only its own name.
OUTLASTS = "schedule"
#: What loads the descriptions of tools, and does nothing else: without it what is allowed could not
#: be used. Allowed unless it is denied.
LOOK_UP = "tools"
#: Arguments that ask for that.
_BACKGROUND = ("run_in_background", "is_background", "background")
#: Tools that call others of which nobody is asked; Qwen Code's asks about each by its own name.
_CALLERS = ("batch", "tool_call")
_CANONICAL = {
    **{name.casefold(): ours for ours, names in TOOLS.items() for name in names},
    **{ours: ours for ours in TOOLS},
}
#: Tools about which no gate is asked: those that run where the model is, and what Codex types into
#: a command that runs already.
UNASKED = {"codex": ("web_search", "write_stdin")}


def canonical(name: str) -> str | None:
    """relay's name of the tool that some agent calls ``name``; None for one that is not known."""
    return _CANONICAL.get(name.casefold())


def limits(permissions: PermissionSet) -> bool:
    """Whether anything is kept from a turn with these."""
    return bool(permissions.tools.deny) or "*" not in permissions.allowed


def refusal(permissions: PermissionSet, name: str, params: object = None) -> str:
    """Why a call of the tool ``name`` is refused, for its model to read; "" where it is not."""
    if not limits(permissions):
        return ""
    given: Mapping[str, Any] = params if isinstance(params, Mapping) else {}
    if not name:
        return "this turn has limits, and the tool that is called has no name"
    if name.casefold() in _CALLERS or not _allows(permissions, name):
        return f"this turn may not use {name}{_other(name)}"
    stays = any(given.get(key) not in (None, False, "", 0, "false") for key in _BACKGROUND)
    if stays and not _names(permissions, OUTLASTS):
        return "this turn may not leave work behind that goes on in the background"
    return ""


def _allows(permissions: PermissionSet, name: str) -> bool:
    ours = canonical(name)
    every = _spellings(name) + (["", *TOOLS[ours], ours] if ours else [])
    lowered = {one.casefold() for one in every if one}
    for pattern in permissions.tools.deny:
        wide = {pattern.casefold(), _CANONICAL.get(pattern.casefold(), "")} - {""}
        if any(fnmatchcase(one, glob) for one in lowered for glob in wide):
            return False
    if ours == OUTLASTS:
        return _names(permissions, OUTLASTS)
    if ours == LOOK_UP:
        return True
    strict = [ours] if ours else [one for one in _spellings(name) if canonical(one) is None]
    patterns = {_CANONICAL.get(one.casefold(), one) for one in permissions.allowed}
    return any(fnmatchcase(one, pattern) for one in strict for pattern in patterns)


def _names(permissions: PermissionSet, ours: str) -> bool:
    """Whether it is allowed by its name, not only by a glob that means anything."""
    return ours in {_CANONICAL.get(one.casefold()) for one in permissions.allowed}


def _spellings(name: str) -> list[str]:
    """An unknown tool's name, and what a server's tool is called where servers are marked:
    ``mcp__SERVER__TOOL``; Gemini CLI has ``mcp_SERVER_TOOL``, opencode ``SERVER_TOOL``."""
    if canonical(name) is not None or name.startswith("mcp__"):
        return [name]
    bare = name.removeprefix("mcp_")
    cuts = [at for at, one in enumerate(bare) if one == "_" and 0 < at < len(bare) - 1]
    return [name, *(f"mcp__{bare[:at]}__{bare[at + 1 :].lstrip('_')}" for at in cuts[:16])]


def _other(name: str) -> str:
    ours = canonical(name)
    return f" ({ours})" if ours and ours != name else ""
