"""What relay relies on in the real Claude Code: each fact of docs/agents/claude.md, driven once."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from relay.agents.base import ChannelClosed
from relay.core.message import AgentState
from relay.core.source_events import Degraded
from tests.real_agents import recipes
from tests.real_agents.claude_run import ClaudeRun, files_of
from tests.real_agents.model import Say, ScriptedModel, Think, Tool
from tests.real_agents.recipes import RENDERERS, ClaudeOptions, Recipe
from tests.support import wait_until

LONG = "please check the tests and report back, " * 8 + "for sure"
FIRST = [
    "I start now.",
    "",
    f"@relay:Bob {LONG}",
    "",
    "```",
    "@relay:Fake in a fence",
    "```",
    "",
    "\\@relay:Nobody escaped",
    "",
    "@relay:Ann one",
    "@relay:Ben two",
    "",
    "Now a command.",
]
SECOND = ["The command is done.", "", "@relay:Last *final* words"]


def recipe(
    claude: Path,
    base: Path,
    model: ScriptedModel,
    renderer: str = "fullscreen",
    settings: dict[str, Any] | None = None,
    arguments: list[str] | None = None,
) -> Recipe:
    options = ClaudeOptions(renderer, settings or {}, arguments or [])
    return recipes.claude(claude, base, model.url, options)


def say_and_run(model: ScriptedModel) -> None:
    command = {"command": "printf '@relay:Tool x\\n'", "description": "print"}
    model.when(
        "run the demo", Think("@relay:Thought x"), Say("\n".join(FIRST)), Tool("Bash", command)
    )
    model.when_tool(Say("\n".join(SECOND)))


def test_the_users_settings_and_files_stay_as_they_are(
    claude: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    say_and_run(model)
    model.when("two blocks", Say("First."), Think("hm"), Say("@relay:Bob second"))
    marks = tmp_path / "marks"
    hook = {"type": "command", "command": f"echo file >> {marks}"}
    flag = {"type": "command", "command": f"echo flag >> {marks}"}
    given = json.dumps({"hooks": {"UserPromptSubmit": [{"hooks": [flag]}]}})
    settings = {"hooks": {"UserPromptSubmit": [{"hooks": [hook]}]}}
    made = recipe(claude, tmp_path, model, settings=settings, arguments=["--settings", given])
    before = files_of(made.home)
    with ClaudeRun(made) as run:
        run.ready()
        run.ask("run the demo")
        wait_until(lambda: run.ended() == 2)
        # Text that goes on after a thought begins a line.
        run.ask("two blocks")
        wait_until(lambda: run.ended() == 3)
        assert run.lines()[-2:] == ["First.", "@relay:Bob second"]
        run.quit()
    assert "Your name here is Alice" in model.requests[0].last_text
    assert sorted(marks.read_text().split()) == ["file", "file", "flag", "flag"]
    assert files_of(made.home) == before
    assert files_of(made.cwd) == {}


def test_disabled_hooks_stay_disabled_and_the_transcript_is_read(
    claude: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    say_and_run(model)
    marks = tmp_path / "marks"
    hook = {"type": "command", "command": f"echo ran >> {marks}"}
    settings = {"disableAllHooks": True, "hooks": {"UserPromptSubmit": [{"hooks": [hook]}]}}
    with ClaudeRun(recipe(claude, tmp_path, model, settings=settings)) as run:
        run.ready()
        run.ask("run the demo")
        wait_until(lambda: "@relay:Last *final* words" in run.lines(), what="the last words")
        run.wait_state(AgentState.IDLE)
        wait_until(lambda: any(isinstance(event, Degraded) for event in list(run.events)))
        run.quit()
        assert run.hooks == []
        assert run.lines() == FIRST + SECOND
    assert not marks.exists()


@pytest.mark.parametrize(
    ("trouble", "renderer"), [("refused", RENDERERS[0]), ("never answered", RENDERERS[1])]
)
def test_trouble_with_relay_is_not_seen(
    claude: Path, tmp_path: Path, model: ScriptedModel, renderer: str, trouble: str
) -> None:
    say_and_run(model)
    other = socket.create_server(("127.0.0.1", 0), backlog=8)
    port = other.getsockname()[1]
    if trouble == "refused":
        other.close()
    with ClaudeRun(recipe(claude, tmp_path, model, renderer), port=port) as run:
        run.ready()
        run.ask("run the demo")
        wait_until(lambda: "@relay:Last *final* words" in run.lines())
        run.terminal.wait_for("? for shortcuts")
        shown = run.terminal.text().lower()
        for word in ("hook", "econnrefused", "timed out", "fetch failed"):
            assert word not in shown
        run.quit()
        assert run.lines() == FIRST + SECOND
        assert run.hooks == []
    other.close()


def test_two_in_one_runtime_folder_have_doors_of_their_own(
    claude: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    made = recipe(claude, tmp_path, model)
    with ClaudeRun(made) as one, ClaudeRun(made) as two:
        one.ready()
        two.ready()
        one.send("MARK-ONE")
        two.send("MARK-TWO")
        wait_until(lambda: one.proven("MARK-ONE") and two.proven("MARK-TWO"))
        assert not one.proven("MARK-TWO")
        assert not two.proven("MARK-ONE")
        # The door of one that was killed is closed.
        os.kill(two.terminal.pid, signal.SIGKILL)
        two.terminal.wait_end()
        with pytest.raises(ChannelClosed):
            two.call(two.door.submit("MARK-DEAD", ""))
