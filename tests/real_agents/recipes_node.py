"""How to start the programs from npm that relay knows by a profile alone (see recipes.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.real_agents.recipe import (
    KEY,
    NEVER,
    NOWHERE,
    Marks,
    Options,
    Recipe,
    make_recipe,
    merged,
    place,
    save,
)
from tests.real_agents.recipes import Agent

MODEL = "mock-model"
#: cn asks its maker for the newest version whatever its settings say, and past HTTPS_PROXY.
OFFLINE = """\
const real = globalThis.fetch;
globalThis.fetch = (url, ...rest) =>
  String(url.url ?? url).startsWith("http://127.0.0.1")
    ? real(url, ...rest)
    : Promise.reject(new Error("offline"));
"""

#: Some have a worker of their own that would ask npm for a newer version.
NO_NPM = {"npm_config_registry": f"{NOWHERE}/"}


def pi(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """pi; it never asks before it runs a command."""
    where = place(base)
    served = {
        "baseUrl": f"{model_url}/v1",
        "api": "openai-completions",
        "apiKey": KEY,
        "models": [{"id": MODEL}],
    }
    folder = where.home / ".pi" / "agent"
    save(folder / "models.json", {"providers": {"scripted": served}})
    settings = {"defaultProvider": "scripted", "defaultModel": MODEL, "quietStartup": True}
    file = save(folder / "settings.json", merged(settings, options.settings))
    env = {**where.env, "PI_OFFLINE": "1", "PI_TELEMETRY": "0"}
    marks = Marks(r"mock-model", r"[\u2800-\u28ff] Working", NEVER, quit=("\x04",))
    return make_recipe("pi", [str(binary)], env | NO_NPM, where, file, marks, options)


def cline(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """cline."""
    where = place(base)
    folder = where.home / ".cline" / "data" / "settings"
    provider = {
        "provider": "openai-compatible",
        "apiKey": KEY,
        "model": MODEL,
        "baseUrl": f"{model_url}/v1",
    }
    known = {
        "version": 1,
        "lastUsedProvider": "openai-compatible",
        "modes": {},
        "providers": {
            "openai-compatible": {
                "settings": provider,
                "updatedAt": "2026-01-01T00:00:00.000Z",
                "tokenSource": "manual",
            }
        },
    }
    file = save(folder / "providers.json", merged(known, options.settings))
    env = {
        **where.env,
        "CLINE_NO_AUTO_UPDATE": "1",
        "CLINE_DISABLE_CLINE_PASS_NOTICE": "1",
    }
    # A folder for its data, named, keeps it from starting a daemon that would outlive it.
    argv = [
        str(binary),
        "--tui",
        "--data-dir",
        str(folder.parent),
        "--auto-approve",
        "false" if options.asks else "true",
    ]
    marks = Marks(
        r"^\s*❯ (?:Ask anything|What can I do)",
        r"^ [\u2800-\u28ff] ",
        r"Cline needs permission",
        refuse="n",
        again="Ctrl\\+C",
    )
    return make_recipe("cline", argv, env | NO_NPM, where, file, marks, options)


def cn(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """cn, Continue's."""
    where = place(base)
    config = f"""\
name: Scripted
version: 1.0.0
schema: v1
models:
  - name: Mock
    provider: openai
    model: {MODEL}
    apiBase: {model_url}/v1
    apiKey: {KEY}
    roles: [chat]
    capabilities: [tool_use]
"""
    folder = where.home / ".continue"
    file = save(folder / "config.yaml", config)
    save(folder / ".onboarding_complete", "")
    offline = save(where.home / "offline.cjs", OFFLINE)
    env = {
        **where.env,
        "CONTINUE_METRICS_ENABLED": "0",
        "CONTINUE_CLI_AUTO_UPDATED": "1",
        "NODE_OPTIONS": f"--require={offline}",
    }
    argv = [str(binary), "--config", str(file), *([] if options.asks else ["--auto"])]
    marks = Marks(
        r"Ask anything", r"esc to interrupt", r"Would you like to continue", again="again"
    )
    return make_recipe("cn", argv, env | NO_NPM, where, file, marks, options)


def copilot(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """GitHub Copilot CLI with a model provider of one's own, so without an account."""
    where = place(base)
    settings: dict[str, Any] = {
        "trusted_folders": [str(where.project.resolve())],
        "banner": "never",
    }
    file = save(where.home / ".copilot" / "config.json", merged(settings, options.settings))
    env = {
        **where.env,
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_PROVIDER_BASE_URL": f"{model_url}/v1",
        "COPILOT_PROVIDER_API_KEY": KEY,
        "COPILOT_MODEL": MODEL,
        "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "128000",
    }
    argv = [str(binary), *([] if options.asks else ["--allow-all-tools"])]
    marks = Marks(r"^❯$", r"Working", r"Do you want to")
    return make_recipe("copilot", argv, env | NO_NPM, where, file, marks, options)


def grok(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """grok-cli."""
    where = place(base)
    settings = {
        "apiKey": KEY,
        "baseURL": f"{model_url}/v1",
        "defaultModel": MODEL,
        "models": [MODEL],
    }
    file = save(where.home / ".grok" / "user-settings.json", merged(settings, options.settings))
    env = {**where.env, "GROK_API_KEY": KEY, "GROK_BASE_URL": f"{model_url}/v1"}
    argv = [str(binary), "--model", MODEL]
    marks = Marks(
        r"Ask me anything",
        r"esc to interrupt",
        r"Do you want to proceed",
        quit=("exit", "\r"),
        again="exit",
    )
    return make_recipe("grok", argv, env | NO_NPM, where, file, marks, options)


NODE: dict[str, Agent] = {
    agent.name: agent
    for agent in (
        Agent("pi", pi),
        Agent("cline", cline),
        Agent("cn", cn),
        Agent("copilot", copilot),
        Agent("grok", grok),
    )
}
