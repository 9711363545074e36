"""Programs that look like agents that are installed, and how they are started."""

from __future__ import annotations

import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from relay.agents.launch import PLANNERS, Endpoint, Folders, Launch, LaunchTerms, Primer, Run, plan

TOKEN = "5f0fe2a0d723"
#: What the model is told of itself, in the words of the primer.
TOLD = "Your name here is Alice"
assert TOLD in Primer("Alice").text()


def oldest(agent: str) -> str:
    """The oldest version that relay knows."""
    return ".".join(map(str, import_module(PLANNERS[agent]).OLDEST))


def install(base: Path, agent: str, version: str | None = None) -> str:
    """A program in a package of this version, by default the oldest one that is known."""
    package, version = import_module(PLANNERS[agent]).PACKAGE, version or oldest(agent)
    program = base / "installed" / "bin" / agent
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_bytes(b"\x7fELF a program")
    program.chmod(0o755)
    if agent == "aider":
        name = f"{package.replace('-', '_')}-{version}.dist-info"
        (base / "installed" / "lib" / "python3.12" / "site-packages" / name).mkdir(
            parents=True, exist_ok=True
        )
    else:
        described = {"name": package, "version": version}
        (base / "installed" / "package.json").write_text(json.dumps(described))
    return str(program)


def run_of(
    name: str = "Alice",
    *,
    port: int | None = None,
    token: str = TOKEN,
    folder: str = "",
    profiles: str = "",
    primer: bool = True,
    namespaces: tuple[str, ...] = ("relay",),
    **terms: Any,
) -> Run:
    """A run, of which a test says what matters to it."""
    return Run(
        name,
        "R",
        Endpoint(token, port),
        Folders(folder, profiles),
        LaunchTerms(**terms),
        Primer(name, namespaces) if primer else None,
    )


def start(base: Path, words: list[str], env: dict[str, str] | None = None, **facts: Any) -> Launch:
    """The plan for ``words``, with a home and settings of the machine that are empty."""
    run = run_of(**{"port": 4321, "primer": False, "folder": str(base / "run"), **facts})
    usual = {"HOME": str(base / "home"), "PATH": os.environ["PATH"], "TERM": "xterm"}
    for prefix in ("GEMINI_CLI", "QWEN_CODE"):
        usual[f"{prefix}_SYSTEM_SETTINGS_PATH"] = str(base / "system" / "settings.json")
    return plan(words, {**usual, **(env or {})}, run)


def everything(launch: Launch, base: Path) -> str:
    """All that the agent gets: words, environment, files."""
    files = [path.read_text() for path in (base / "run").rglob("*") if path.is_file()]
    return "\n".join([*launch.argv, *launch.env.values(), *files])


def documented_hooks() -> dict[str, Any]:
    """What docs/agents/gemini.md tells the person to put into their own settings."""
    text = (Path(__file__).parents[2] / "docs" / "agents" / "gemini.md").read_text()
    found: dict[str, Any] = json.loads(text.partition("```json\n")[2].partition("```")[0])
    return found
