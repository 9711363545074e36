"""A real Claude Code that nobody sits at: spawned, looked at, and brought back into its talk."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from relay.app.driven_program import DrivenProgram
from relay.config import names
from relay.config.spawned_agents import spawned
from relay.core.paths import Home
from tests.e2e.wrapped import RELAY, relay
from tests.real_agents import recipes
from tests.real_agents.model import Say, ScriptedModel
from tests.real_agents.recipes import ClaudeOptions
from tests.support import wait_until


@pytest.mark.usefixtures("stop_broker")
def test_claude_is_spawned_and_goes_on_with_its_conversation_after_its_host_was_killed(
    claude: Path, tmp_path: Path, model: ScriptedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.when("remember the number 4711", Say("It is noted."))
    made = recipes.claude(claude, tmp_path, model.url, ClaudeOptions("fullscreen"))
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(made.cwd)
    relay("spawn", "Bob", "--", *made.argv)
    try:
        relay("send", "Bob", "remember the number 4711", "--wait=40")
        with DrivenProgram([*RELAY, "attach", "Bob"], dict(os.environ), 100, 30) as looking:
            wait_until(lambda: looking.shows("It is noted."))
        [row] = spawned(Home.from_env())
        os.kill(row["host"], signal.SIGKILL)
        wait_until(lambda: names.holder(Home.from_env(), "Bob") is None)
        assert "in its last conversation" in relay("resume")
        relay("send", "Bob", "which one was it?", "--wait=40")
        both = ("remember the number 4711", "which one was it?")
        wait_until(
            lambda: any(all(one in str(asked.body) for one in both) for asked in model.requests)
        )
    finally:
        relay("release", "Bob", "--yes", status=None)
