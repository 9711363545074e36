"""The tools of agents: their names, what a permission set allows, what a call does to files. Pure.

Names: ``allow`` is read strictly: a tool of the table is known by relay's name of it, any other by
its own, which must not be one of the table's. ``deny`` is read widely: any name or spelling of the
tool counts. So a set means the same with each agent, and no server can name its tool into what is
allowed.

Files: the tables are those of the pinned versions (tests/real_agents/install.py). What is not
certain is reported as blind, never guessed: a tool that stands in no table may change anything.
"""

from __future__ import annotations

import shlex
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from relay.agents.launch import MCP
from relay.core.dispatch import PermissionSet


class UseKind(StrEnum):
    """What a tool does."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    MOVE = "move"
    EXECUTE = "execute"
    OTHER = "other"  # touches no file of the project: plans, questions, the web
    UNKNOWN = "unknown"  # stands in no table: it may change anything


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call of a tool. Paths are as the model gave them, relative to ``cwd``."""

    kind: UseKind
    reads: tuple[str, ...] = ()
    #: What it makes or changes.
    writes: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    moves: tuple[tuple[str, str], ...] = ()
    #: The shell's line of one that executes.
    command: str = ""
    #: The folder that the call names to work in; "": the agent's own.
    cwd: str = ""
    #: Why it cannot be told which paths are touched ("the patch cannot be read"); "" where it can.
    blind: str = ""
    #: Where the file is not there, the tool looks for one of that name and changes that.
    guesses: bool = False

    @property
    def changed(self) -> tuple[str, ...]:
        """Every path that is made, changed, moved or deleted."""
        return (*self.writes, *self.deletes, *(path for move in self.moves for path in move))


#: Bytes of a text that is read as a patch; a longer one is told as blind.
PATCH_MAX = 4 * 1024 * 1024
#: Files of one patch; one that has more is told as blind.
PARTS_MAX = 1000
#: Why a call is blind.
NOT_KNOWN = "relay does not know what this tool changes"
NO_PATCH = "the patch cannot be read"
NO_PATH = "the call names no path that can be read"

_Params = Mapping[str, object]
_Reader = Callable[[_Params], ToolUse]


def tool_use(agent_kind: str, tool: str, params: object) -> ToolUse:
    """What the call of ``tool`` by an agent of this kind does. ``params`` are the model's: hostile.

    Never raises. ``blind`` may be set beside paths that are known.
    """
    reader = TABLES.get(agent_kind, {}).get(tool)
    if reader is None:
        return ToolUse(UseKind.UNKNOWN, blind=NOT_KNOWN)
    if not isinstance(params, Mapping):
        return ToolUse(UseKind.UNKNOWN, blind="the call has no parameters")
    return reader(params)


#: The tools of relay's own MCP server (relay.features.mcp.mcp_tools): none of them touches a file.
RELAY_TOOLS = (
    *("send", "ask", "inbox", "agents", "peek", "history", "memory_save", "memory_search"),
    *("list_intents", "read_intent", "select_active_intent"),
)


def is_relays(agent_kind: str, tool: str) -> bool:
    """Whether ``tool`` is one of relay's own, in an agent that was given relay's server: any other
    server could have these names."""
    form = f"{MCP}_" if agent_kind == "opencode" else f"mcp__{MCP}__"
    return tool.startswith(form) and tool[len(form) :] in RELAY_TOOLS


def patch_use(text: str) -> ToolUse:
    """What a patch in the form of Codex's apply_patch adds, changes, moves and deletes.

    Agents read patches leniently (blanks, wrappings), so each line that could be a header counts as
    one, and a header that is not known makes the patch blind.
    """
    writes: list[str] = []
    deletes: list[str] = []
    moves: list[tuple[str, str]] = []
    if len(text) > PATCH_MAX:
        return ToolUse(UseKind.UNKNOWN, blind="the patch is too large")
    last, blind = "", ""
    for line in text.split("\n"):
        if line.startswith(("+", "-")) or not (header := line.strip()).startswith("***"):
            continue
        word, _, path = (part.strip() for part in header.removeprefix("***").partition(":"))
        match word.lower():
            case "add file" | "update file" | "delete file" if known := spellings(path):
                (deletes if word.lower() == "delete file" else writes).extend(known)
                last = path
            case "move to" if last and (known := spellings(path)):
                moves += [(last, to) for to in known]
            case "begin patch" | "end patch" | "end of file" if not path:
                pass
            case _:
                blind = NO_PATCH
    count = len(writes) + len(deletes) + len(moves)
    if not count or count > PARTS_MAX:
        blind = NO_PATCH
    return ToolUse(UseKind.WRITE, (), tuple(writes), tuple(deletes), tuple(moves), blind=blind)


def spellings(path: object) -> tuple[str, ...]:
    """The path as the model gave it, and as agents may read it: without blanks, in form NFC.

    None for one with what some of them take out: backslashes, characters without a form.
    """
    if not isinstance(path, str) or not path.strip() or "\0" in path or "\\" in path:
        return ()
    bare = path.strip()
    return tuple(dict.fromkeys((path, bare, unicodedata.normalize("NFC", bare))))


def _paths(params: _Params, names: str) -> tuple[str, ...]:
    """The paths in the fields ``names``; a field may be a list."""
    found: list[str] = []
    for name in names.split():
        value = params.get(name)
        for one in value[: PARTS_MAX + 1] if isinstance(value, list) else (value,):
            found += spellings(one)
    return tuple(found)


def _reads(*names: str) -> _Reader:
    """A tool that reads, and shows its model the files that these fields name."""
    return lambda params: ToolUse(UseKind.READ, reads=_paths(params, " ".join(names)))


def _writes(name: str) -> _Reader:
    """A tool that makes or changes the one file that this field names."""

    def read(params: _Params) -> ToolUse:
        writes = _paths(params, name)
        return ToolUse(UseKind.WRITE, writes=writes, blind="" if writes else NO_PATH)

    return read


def _gemini_writes(*, guesses: bool) -> _Reader:
    """Gemini CLI takes a leading ``@`` away, unless something of that name is there."""

    def read(params: _Params) -> ToolUse:
        use = _writes("file_path")(params)
        if any(path.startswith("@") for path in use.writes):
            return replace(use, blind="a path that begins with @ may be another one")
        return replace(use, guesses=guesses and not any(one.startswith("/") for one in use.writes))

    return read


def _shell(command: str = "command", cwd: str = "") -> _Reader:
    """A shell, with its fields for the line and for the folder to work in."""

    def read(params: _Params) -> ToolUse:
        given, folder = params.get(command), params.get(cwd, "") if cwd else ""
        if isinstance(given, list) and given and all(isinstance(one, str) for one in given):
            given = shlex.join(given)
        if not isinstance(given, str) or not isinstance(folder, str | None):
            return ToolUse(UseKind.EXECUTE, blind="the call has no command")
        return ToolUse(UseKind.EXECUTE, command=given, cwd=folder or "")

    return read


def _patch(name: str) -> _Reader:
    def read(params: _Params) -> ToolUse:
        given = params.get(name)
        if not isinstance(given, str):
            return ToolUse(UseKind.WRITE, blind=NO_PATCH)
        return patch_use(given)

    return read


def _other(*unless: str) -> _Reader:
    """A tool that touches no file, unless one of these fields is set: then it may change any."""

    def read(params: _Params) -> ToolUse:
        if any(params.get(name) for name in unless):
            return ToolUse(UseKind.UNKNOWN, blind=NOT_KNOWN)
        return ToolUse(UseKind.OTHER)

    return read


def _each(readers: Mapping[str, _Reader], names: str) -> dict[str, _Reader]:
    """A table of its rows and of ``names``, which touch no file."""
    return {**dict.fromkeys(names.split(), _other()), **readers}


def _monitor(params: _Params) -> ToolUse:
    return _shell()(params) if params.get("command") else ToolUse(UseKind.OTHER)


#: What the tools of each kind of agent do, by their names. Agents of agents are hooked themselves.
TABLES: dict[str, dict[str, _Reader]] = {
    "claude": _each(
        {
            **dict.fromkeys(("Write", "Edit", "MultiEdit"), _writes("file_path")),
            "NotebookEdit": _writes("notebook_path"),
            "Read": _reads("file_path"),
            "NotebookRead": _reads("notebook_path"),
            **dict.fromkeys(("Glob", "Grep", "LS"), _reads("path")),
            "LSP": _reads(),
            "Bash": _shell(),
            "Monitor": _monitor,
            **dict.fromkeys(("Agent", "Task"), _other("isolation")),
            "CronCreate": _other("durable"),
        },
        "BashOutput KillShell KillBash TaskOutput TaskStop TodoWrite TodoRead TaskCreate TaskGet"
        " TaskUpdate TaskList WebFetch WebSearch AskUserQuestion EnterPlanMode ExitPlanMode Skill"
        " ToolSearch SendMessage ListAgents CronList CronDelete ScheduleWakeup ReportFindings"
        " DeferredToolPlaceholder ListMcpResources ListMcpResourcesTool ReadMcpResource"
        " ReadMcpResourceTool ReadMcpResourceDir RefreshMcpTools PushNotification"
        " ReadNotifications StructuredOutput",
    ),
    "codex": _each(
        {
            **dict.fromkeys(
                ("Bash", "shell", "shell_command", "local_shell"), _shell(cwd="workdir")
            ),
            **dict.fromkeys(("exec_command", "unified_exec"), _shell("cmd", "workdir")),
            "apply_patch": _patch("command"),
            "view_image": _reads("path"),
            "read_file": _reads("file_path"),
            "list_dir": _reads("dir_path"),
            "grep_files": _reads("path"),
        },
        "update_plan request_user_input web_search tool_search spawn_agent send_input wait_agent"
        " resume_agent close_agent list_agents exec get_goal create_goal update_goal"
        " list_mcp_resources list_mcp_resource_templates read_mcp_resource"
        " collaborationspawn_agent collaborationfollowup_task collaborationsend_message"
        " collaborationinterrupt_agent collaborationlist_agents collaborationwait_agent"
        " mcp__codex_tui__create_thread mcp__codex_tui__send_message_to_thread"
        " mcp__codex_tui__fork_thread mcp__codex_tui__read_thread mcp__codex_tui__wait_threads"
        " mcp__codex_tui__list_threads",
    ),
    "gemini": _each(
        {
            "write_file": _gemini_writes(guesses=False),
            "replace": _gemini_writes(guesses=True),
            "read_file": _reads("file_path"),
            "read_many_files": _reads(),
            **dict.fromkeys(("glob", "grep_search", "search_file_content"), _reads("dir_path")),
            "list_directory": _reads("dir_path"),
            "run_shell_command": _shell(cwd="dir_path"),
        },
        "google_web_search web_fetch write_todos ask_user activate_skill get_internal_docs"
        " enter_plan_mode exit_plan_mode update_topic complete_task invoke_agent"
        " list_mcp_resources read_mcp_resource list_background_processes read_background_output"
        " tracker_create_task tracker_update_task tracker_get_task tracker_list_tasks"
        " tracker_add_dependency tracker_visualize",
    ),
    "qwen": _each(
        {
            **dict.fromkeys(("write_file", "edit"), _writes("file_path")),
            "notebook_edit": _writes("notebook_path"),
            **dict.fromkeys(("read_file", "zoom_image", "display_image"), _reads("file_path")),
            **dict.fromkeys(("glob", "grep_search", "list_directory"), _reads("path")),
            "agent": _other("isolation"),
            "lsp": _reads(),
            "run_shell_command": _shell(cwd="directory"),
            "monitor": _shell(cwd="directory"),
        },
        "todo_write web_fetch web_search skill exit_plan_mode enter_plan_mode"
        " ask_user_question cron_list cron_delete loop_wakeup list_agents task_stop task_create"
        " task_update task_list send_message structured_output tool_call tool_search"
        " read_mcp_resource report_findings get_goal update_goal propose_goal",
    ),
    "opencode": _each(
        {
            **dict.fromkeys(("write", "edit"), _writes("filePath")),
            "apply_patch": _patch("patchText"),
            "patch": _patch("patchText"),
            "read": _reads("filePath"),
            **dict.fromkeys(("glob", "grep", "list"), _reads("path")),
            "lsp": _reads(),
            "bash": _shell(cwd="workdir"),
        },
        "todowrite todoread webfetch websearch task skill question plan_exit plan_enter invalid",
    ),
}


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
        return f"this turn may not use {name}{_own_name(name)}"
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


def _own_name(name: str) -> str:
    ours = canonical(name)
    return f" ({ours})" if ours and ours != name else ""
