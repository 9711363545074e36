"""Hook files as their users write them, and what is read from them."""

from __future__ import annotations

import json
from typing import Any

from relay.hooks.hook_files import HookSpec, read_hook_file

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
