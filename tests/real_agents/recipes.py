"""How to start a real program so that it reaches its prompt with no account and no dialog."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEY = "sk-test-local"
RENDERERS = ("fullscreen", "classic")


@dataclass
class Recipe:
    """A program, ready to be started: ``argv`` in ``cwd`` with exactly ``env``."""

    argv: list[str]
    env: dict[str, str]
    cwd: Path
    home: Path

    @property
    def user_settings(self) -> Path:
        return self.home / ".claude" / "settings.json"

    def start(self, argv: list[str] | None = None, **more_env: str) -> dict[str, Any]:
        """Keyword arguments for Terminal."""
        return {"argv": argv or self.argv, "env": {**self.env, **more_env}, "cwd": self.cwd}


@dataclass
class ClaudeOptions:
    renderer: str = "fullscreen"
    settings: dict[str, Any] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)


def claude(binary: Path, base: Path, model_url: str, options: ClaudeOptions) -> Recipe:
    """Claude Code with a home and a project of its own under ``base``."""
    home, project, runtime = base / "home", base / "project", base / "run"
    for folder in (home / ".claude", project, runtime):
        folder.mkdir(parents=True, exist_ok=True)
    runtime.chmod(0o700)
    (project / "README.md").write_text("# A project\n")
    git = {"PATH": os.environ["PATH"], "HOME": str(home)}
    subprocess.run(["git", "init", "-q", str(project)], env=git, check=True, timeout=30)
    known = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    state = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "numStartups": 5,
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {str(project.resolve()): known},
    }
    (home / ".claude.json").write_text(json.dumps(state))
    settings = {"theme": "dark", **options.settings}
    if options.renderer == "classic":
        settings["tui"] = "default"
    (home / ".claude" / "settings.json").write_text(json.dumps(settings))
    env = {
        "HOME": str(home),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
        "USER": "tester",
        # Without these two it makes folders in the temporary folder that everybody shares.
        "XDG_RUNTIME_DIR": str(runtime),
        "TMPDIR": str(runtime),
        "NO_PROXY": "127.0.0.1,localhost",
        "ANTHROPIC_BASE_URL": model_url,
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_MODEL": "claude-sonnet-4-5",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return Recipe([str(binary), *options.arguments], env, project, home)
