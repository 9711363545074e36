"""How to start the programs from PyPI that relay knows by a profile alone (see recipes.py)."""

from __future__ import annotations

import json
from pathlib import Path

from tests.real_agents import install
from tests.real_agents.recipe import KEY, NEVER, Marks, Options, Recipe, make_recipe, place, save
from tests.real_agents.recipes import Agent

MODEL = "mock-model"
#: What litellm brings is as good as what it would ask GitHub for.
LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_API_KEY": KEY}


def gptme(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """gptme; the renderer ``asking`` begins with the question which conversation to go on with."""
    where = place(base)
    file = save(
        where.home / ".config" / "gptme" / "config.toml", '[prompt]\nabout_user = "A tester."\n'
    )
    env = {**where.env, "OPENAI_BASE_URL": f"{model_url}/v1", "OPENAI_API_KEY": KEY}
    env["TIKTOKEN_CACHE_DIR"] = _tokenizers()
    argv = [str(binary), "-m", f"local/{MODEL}"]
    if options.renderer != "asking":
        argv += ["--name", "talk"]
    if not options.asks:
        argv.append("-y")
    marks = Marks(
        r"^User:\s*\Z", r"Thinking|Generating", r"\[Y/n/\S+\]", refuse="n\r", quit=("\x04",)
    )
    return make_recipe("gptme", argv, env, where, file, marks, options)


def llm(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """``llm chat``, which offers its model no tools, so its URL says so."""
    where = place(base)
    folder = where.home / ".config" / "io.datasette.llm"
    served = {"model_id": "mock", "model_name": MODEL, "api_base": f"{model_url}/toolless/v1"}
    file = save(folder / "extra-openai-models.yaml", json.dumps([served]))
    env = {**where.env, "LLM_USER_PATH": str(folder), "OPENAI_API_KEY": KEY}
    marks = Marks(r"^>\s*\Z", NEVER, NEVER, quit=("\x04",))
    return make_recipe("llm", [str(binary), "chat", "-m", "mock"], env, where, file, marks, options)


def interpreter(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """Open Interpreter."""
    where = place(base)
    env = {**where.env, **LITELLM, "PYTHONWARNINGS": "ignore"}
    argv = [str(binary), "--offline", "--disable_telemetry", "--llm_supports_functions"]
    argv += ["--model", f"openai/{MODEL}", "--api_base", f"{model_url}/v1", "--api_key", KEY]
    argv += ["--context_window", "64000", "--max_tokens", "4000"]
    if not options.asks:
        argv.append("-y")
    marks = Marks(r"^>\s*\Z", NEVER, r"\(y/n\)", refuse="n\r", quit=("\x04",))
    return make_recipe("interpreter", argv, env, where, where.home, marks, options)


def elia(binary: Path, base: Path, model_url: str, options: Options) -> Recipe:
    """elia, which offers its model no tools, so its URL says so."""
    where = place(base)
    served = {
        "id": "mock",
        "name": f"openai/{MODEL}",
        "display_name": "Mock",
        "api_base": f"{model_url}/toolless/v1",
        "api_key": KEY,
    }
    lines = ['default_model = "mock"', "[[models]]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in served.items()]
    file = save(where.home / ".config" / "elia" / "config.toml", "\n".join(lines) + "\n")
    marks = Marks(
        r"Enter your message", r"Agent is responding|Awaiting response", NEVER, quit=("\x03",)
    )
    return make_recipe("elia", [str(binary)], {**where.env, **LITELLM}, where, file, marks, options)


def _tokenizers() -> str:
    """The words of OpenAI's models, which aider brings: without them gptme warns at each turn."""
    within = "lib/python3*/site-packages/litellm/litellm_core_utils/tokenizers"
    return str(next(install.binary("aider").parents[1].glob(within)))


PYPI: dict[str, Agent] = {
    agent.name: agent
    for agent in (
        Agent("gptme", gptme, ("", "asking")),
        Agent("llm", llm, has_tools=False),
        Agent("interpreter", interpreter),
        Agent("elia", elia, has_tools=False),
    )
}
