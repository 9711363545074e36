"""Claude Code on one machine and Codex on another talk to each other over a link."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.features.link.test_link import free_port
from tests.real_agents.conftest import binary_of, claude, codex, model  # noqa: F401
from tests.real_agents.conversation import WIDE
from tests.real_agents.model import Say, ScriptedModel
from tests.real_agents.recipe import Options
from tests.real_agents.recipes import AGENTS
from tests.real_agents.wrapped import Wrapped
from tests.support import wait_until

pytestmark = pytest.mark.agents


def relay_at(home: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "relay", *words, "--json"]
    env = {**os.environ, "RELAY_HOME": str(home)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


def test_a_conversation_over_the_link(
    claude: Path,  # noqa: F811
    codex: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
    model: ScriptedModel,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = tmp_path_factory.mktemp("l")
    laptop, server = base / "laptop", base / "server"
    model.when("tell Bob what to do", Say(f"I tell Bob.\n\n@relay:Bob@server {WIDE}"), by="Alice")
    model.when(
        "please check the tests", Say("Done.\n\n@relay:Alice@laptop all tests pass"), by="Bob"
    )
    model.when("all tests pass", Say("Thank you, Bob."), by="Alice")
    with ExitStack() as ends:
        for home in (laptop, server):
            ends.callback(
                subprocess.run,
                [sys.executable, "-m", "relay", "broker", "stop"],
                env={**os.environ, "RELAY_HOME": str(home)},
                timeout=60,
            )
        made = relay_at(
            laptop, "link", "new", "--name", "laptop", "--address", f"127.0.0.1:{free_port()}"
        )
        relay_at(server, "link", "join", made["code"], "--name", "server")
        agents = {}
        for name, agent, binary, home in (
            ("Alice", "claude", claude, laptop),
            ("Bob", "codex", codex, server),
        ):
            monkeypatch.setenv("RELAY_HOME", str(home))
            recipe = AGENTS[agent].recipe(binary, base / name, model.url_for(name), Options())
            agents[name] = ends.enter_context(Wrapped(recipe, name))
            agents[name].ready()
        agents["Alice"].ask("tell Bob what to do")

        def are_seen(home: Path, *pairs: tuple[str, str]) -> bool:
            rows = relay_at(home, "history")
            states = [(row["from"], row["to"], row["state"]) for row in rows]
            return states == [(*pair, "seen") for pair in pairs]

        # Nothing else: no agent is told that the other one, who is there, is not.
        on_laptop = ("Alice", "Bob@server"), ("Bob@server", "Alice")
        wait_until(lambda: are_seen(laptop, *on_laptop), 30, "receipts on laptop")
        on_server = ("Alice@laptop", "Bob"), ("Bob", "Alice@laptop")
        wait_until(lambda: are_seen(server, *on_server), 30, "receipts on server")
        wait_until(lambda: model.seen("all tests pass"))
