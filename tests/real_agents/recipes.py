"""How to start the real programs so that they reach their prompt with no account and no dialog.

    made = recipes.codex(binary, tmp_path / "Alice", model.url, Options("inline", asks=False))

Every recipe has a home, a project and a temporary folder of its own under its base folder, and an
environment that holds nothing of ours: the person's own files are neither read nor written, and
nothing leaves 127.0.0.1. ``model_url`` is ``ScriptedModel.url`` or what its ``url_for`` gave.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.real_agents.recipe import (
    KEY,
    NOWHERE,
    Marks,
    Options,
    Recipe,
    make_recipe,
    merged,
    place,
    save,
)

__all__ = ["AGENTS", "KEY", "RENDERERS", "Agent", "ClaudeOptions", "Marks", "Options", "Recipe"]

#: Claude Code's.
RENDERERS = ("fullscreen", "classic")
ClaudeOptions = Options


class Builder(Protocol):
    def __call__(self, binary: Path, base: Path, model_url: str, options: Options) -> Recipe: ...


@dataclass(frozen=True)
class Agent:
    """One of the six: its name (the fixture of its binary has it too), recipe and renderers."""

    name: str
    recipe: Builder
    renderers: tuple[str, ...] = ("",)
    has_tools: bool = True


def claude(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """Claude Code; renderers ``fullscreen`` and ``classic``."""
    where = place(base)
    known = {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}
    state = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "numStartups": 5,
        "customApiKeyResponses": {"approved": [KEY[-20:]], "rejected": []},
        "projects": {str(where.project.resolve()): known},
    }
    save(where.home / ".claude.json", state)
    settings: dict[str, Any] = {"theme": "dark"}
    if not options.asks:
        settings["permissions"] = {"allow": ["Bash", "Write", "Edit", "Read"]}
    if options.renderer == "classic":
        settings["tui"] = "default"
    file = save(where.home / ".claude" / "settings.json", merged(settings, options.settings))
    env = {
        **where.env,
        "ANTHROPIC_BASE_URL": model_url,
        "ANTHROPIC_API_KEY": KEY,
        "ANTHROPIC_MODEL": "claude-sonnet-4-5",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    marks = Marks(r"\? for shortcuts", r"esc to interrupt", r"Do you want to proceed\?")
    return make_recipe("claude", [str(binary)], env, where, file, marks, options)


def codex(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """Codex; renderers ``alternate`` (its own default) and ``inline``."""
    where = place(base)
    settings = {
        "model": "gpt-5",
        "model_provider": "scripted",
        "approval_policy": "on-request" if options.asks else "never",
        "sandbox_mode": "read-only" if options.asks else "danger-full-access",
        "check_for_update_on_startup": False,
        "analytics": {"enabled": False},
        "model_providers": {
            "scripted": {
                "name": "scripted",
                "base_url": f"{model_url}/v1",
                "env_key": "SCRIPTED_KEY",
                "wire_api": "responses",
                "request_max_retries": 1,
                "stream_max_retries": 1,
            }
        },
        "projects": {str(where.project.resolve()): {"trust_level": "trusted"}},
    }
    file = save(where.home / ".codex" / "config.toml", _toml(merged(settings, options.settings)))
    env = {**where.env, "CODEX_HOME": str(file.parent), "SCRIPTED_KEY": KEY}
    # Its daemon would outlive it.
    argv = [str(binary), "--no-daemon"]
    if options.renderer == "inline":
        argv.append("--no-alt-screen")
    # While it writes its answer, only the title tells.
    marks = Marks(
        r"\? for shortcuts",
        r"esc to interrupt|^     loading$",
        r"Would you like to run|Would you like to make",
        r"^[\u2800-\u28ff] |Action Required",
    )
    return make_recipe("codex", argv, env, where, file, marks, options)


def gemini(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """Gemini CLI."""
    where = place(base)
    settings = {
        "security": {
            "auth": {"selectedType": "gemini-api-key"},
            "folderTrust": {"enabled": False},
        },
        "general": {
            "disableAutoUpdate": True,
            "enableAutoUpdate": False,
            "enableAutoUpdateNotification": False,
            "disableUpdateNag": True,
        },
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "ui": {"theme": "Default", "hideTips": True},
        "ide": {"hasSeenNudge": True},
        "model": {"name": "gemini-2.5-pro"},
    }
    folder = where.home / ".gemini"
    file = save(folder / "settings.json", merged(settings, options.settings))
    save(folder / "trustedFolders.json", {str(where.project.resolve()): "TRUST_FOLDER"})
    env = {
        **where.env,
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": model_url,
        "GEMINI_CLI_NO_RELAUNCH": "true",
    }
    argv = [str(binary), "--approval-mode", "default" if options.asks else "yolo"]
    # Until its settings are read it shows an input line, and takes it away again: for a moment, or
    # until a conversation is loaded, whose prompts it shows then. What is typed meanwhile is lost.
    resumes = "--resume" in options.arguments
    marks = Marks(
        r"Type your message",
        r"esc to cancel|Resuming session",
        r"Allow execution of",
        taken=r"Type your message|esc to cancel|Allow execution of",
        booted=r"^ > \S" if resumes else r"Authenticated with",
    )
    return make_recipe("gemini", argv, env, where, file, marks, options)


def qwen(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """Qwen Code."""
    where = place(base)
    settings = {
        "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": False}},
        "general": {
            "disableAutoUpdate": True,
            "enableAutoUpdate": False,
            "disableUpdateNag": True,
        },
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "model": {"name": "mock-model"},
    }
    file = save(where.home / ".qwen" / "settings.json", merged(settings, options.settings))
    env = {
        **where.env,
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": f"{model_url}/v1",
        "OPENAI_MODEL": "mock-model",
        # It starts itself again, for more memory; one test has it so.
        "QWEN_CODE_NO_RELAUNCH": "true",
    }
    # Without a mode a model judges what may run.
    argv = [str(binary), "--approval-mode", "default" if options.asks else "yolo"]
    marks = Marks(r"Type your message", r"esc to cancel", r"Waiting for user confirmation")
    return make_recipe("qwen", argv, env, where, file, marks, options)


def opencode(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """opencode."""
    where = place(base)
    served = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Mock",
        "options": {"baseURL": f"{model_url}/v1", "apiKey": KEY},
        "models": {
            "mock-model": {
                "name": "Mock Model",
                "limit": {"context": 128000, "output": 8192},
                "tool_call": True,
            }
        },
    }
    allowed = "ask" if options.asks else "allow"
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": "mock/mock-model",
        "small_model": "mock/mock-model",
        "provider": {"mock": served},
        "permission": {"bash": allowed, "edit": allowed, "external_directory": allowed},
    }
    path = where.home / ".config" / "opencode" / "opencode.json"
    file = save(path, merged(settings, options.settings))
    # It would fetch its plugin interface from npm, and wait for it.
    save(where.home / ".npmrc", f"registry={NOWHERE}/\nfetch-retries=0\naudit=false\n")
    # It reads a catalogue of every maker's models at its start and before the first answer: more
    # than half of its time on the processor. The one model that it is given stands in its settings.
    catalogue = save(where.home / "models.json", {})
    env = {
        **where.env,
        "npm_config_registry": f"{NOWHERE}/",
        "OPENCODE_MODELS_PATH": str(catalogue),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    }
    marks = Marks(r"ctrl\+p", r"esc (?:again to )?interrupt", r"Permission required")
    return make_recipe("opencode", [str(binary)], env, where, file, marks, options)


def aider(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """aider; it offers its model no tools, so its URL says so."""
    where = place(base)
    settings = {
        "check-update": False,
        "analytics-disable": True,
        "show-release-notes": False,
        "show-model-warnings": False,
        "gitignore": False,
    }
    lines = [f"{key}: {_yaml(value)}" for key, value in {**settings, **options.settings}.items()]
    file = save(where.home / ".aider.conf.yml", "\n".join(lines) + "\n")
    # Without these it asks GitHub for them.
    prices = {"max_tokens": 8192, "max_input_tokens": 128000, "max_output_tokens": 8192}
    known = {"litellm_provider": "openai", "mode": "chat", **prices}
    caches = where.home / ".aider" / "caches"
    save(caches / "model_prices_and_context_window.json", {"openai/mock-model": known})
    env = {
        **where.env,
        "OPENAI_API_KEY": KEY,
        "OPENAI_API_BASE": f"{model_url}/toolless/v1",
        "AIDER_ANALYTICS": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    argv = [str(binary), "--model", "openai/mock-model"]
    if not options.asks:
        argv.append("--yes-always")
    # While it answers there is no prompt; what it shows at the start of a turn is a spinner.
    marks = Marks(
        r"^>\s*\Z", r"Waiting for \S+$", r"\(Y\)es/\(N\)o.*:\s*\Z", refuse="n\r", quit=("\x04",)
    )
    return make_recipe("aider", argv, env, where, file, marks, options)


def _toml(table: dict[str, Any], path: tuple[str, ...] = ()) -> str:
    """A table of strings, numbers, truth values and tables as TOML."""
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    nested = {key: value for key, value in table.items() if isinstance(value, dict)}
    lines = [f"[{'.'.join(json.dumps(part) for part in path)}]"] if path and plain else []
    lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in plain.items()]
    return "\n".join([*lines, *(_toml(value, (*path, key)) for key, value in nested.items()), ""])


def _yaml(value: object) -> str:
    """A string, number, truth value or list of these as YAML, which JSON is part of."""
    return json.dumps(value)


AGENTS: dict[str, Agent] = {
    agent.name: agent
    for agent in (
        Agent("claude", claude, RENDERERS),
        Agent("codex", codex, ("alternate", "inline")),
        Agent("gemini", gemini),
        Agent("qwen", qwen),
        Agent("opencode", opencode),
        Agent("aider", aider, has_tools=False),
    )
}
