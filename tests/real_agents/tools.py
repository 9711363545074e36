"""The agents' own tools for a shell command, a file written and a file read."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.real_agents.steps import Block, Gate, Read, Say, Shell, Step, Tool, Write

SHELLS = (
    "Bash",
    "bash",
    "run_shell_command",
    "exec_command",
    "shell_command",
    "shell",
    "run_commands",
    "execute",
)
WRITERS = ("Write", "write_file", "write")
READERS = ("Read", "read_file", "read")
PATHS = ("file_path", "filePath", "path", "absolute_path")
#: What some shell tools insist on, besides the command.
EXTRAS: dict[str, Any] = {
    "description": "Run a scripted command",
    "is_background": False,
    "timeout": 20000,
}


@dataclass(frozen=True)
class ToolSpec:
    """A tool as a request offers it; ``more`` are arguments for a call that is to be let through.

    (An agent in a sandbox runs what the person allows only when the call asks for it.)
    """

    name: str
    schema: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def properties(self) -> dict[str, Any]:
        return dict(self.schema.get("properties") or {})

    @property
    def required(self) -> list[str]:
        return list(self.schema.get("required") or [])


class NoSuchTool(Exception):
    """The request offers no tool for this step; the text says which there are."""


def named(steps: Iterable[Step], offered: list[ToolSpec]) -> tuple[Block | Gate, ...]:
    """The steps with each abstract tool call as a call of a tool that is offered."""
    return tuple(_named(step, offered) for step in steps)


def listed(steps: Iterable[Step]) -> tuple[Block | Gate, ...]:
    """The steps for an agent whose model has no tools, but lists the files to be written."""
    return tuple(
        Say(f"\n\n{step.path}\n```\n{step.text}\n```\n")
        if isinstance(step, Write)
        else _named(step, [])
        for step in steps
    )


def _named(step: Step, offered: list[ToolSpec]) -> Block | Gate:
    if isinstance(step, Shell):
        return _shell(step.command, offered)
    if isinstance(step, Write):
        spec = _find(WRITERS, offered)
        if spec is None:  # an agent without one writes through its shell
            return _shell(f"printf %s {shlex.quote(step.text)} >{shlex.quote(step.path)}", offered)
        return Tool(spec.name, {_path_name(spec): step.path, "content": step.text})
    if isinstance(step, Read):
        spec = _find(READERS, offered)
        if spec is None:
            return _shell(f"cat {shlex.quote(step.path)}", offered)
        return Tool(spec.name, {_path_name(spec): step.path})
    assert isinstance(step, Block | Gate), step
    return step


def _shell(command: str, offered: list[ToolSpec]) -> Tool:
    spec = _find(SHELLS, offered)
    if spec is None:
        raise NoSuchTool(f"no shell among the tools {[tool.name for tool in offered]}")
    if "code" in spec.properties:
        return Tool(spec.name, {"language": "shell", "code": command})
    name = "cmd" if "cmd" in spec.properties else "command"
    takes_words = str(spec.properties.get(name, {}).get("type")).lower() == "array"
    value: Any = ["bash", "-lc", command] if takes_words else command
    extras = {key: EXTRAS[key] for key in spec.required if key in EXTRAS}
    return Tool(spec.name, {name: value, **extras, **spec.more})


def _find(names: tuple[str, ...], offered: list[ToolSpec]) -> ToolSpec | None:
    known = {tool.name: tool for tool in offered}
    return next((known[name] for name in names if name in known), None)


def _path_name(spec: ToolSpec) -> str:
    return next((name for name in PATHS if name in spec.properties), PATHS[0])
