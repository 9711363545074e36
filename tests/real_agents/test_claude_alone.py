"""What relay relies on in the real Claude Code: each fact of docs/agents/claude.md, driven once."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from relay.core.message import AgentState
from relay.core.source_events import Degraded
from tests.real_agents import recipes
from tests.real_agents.claude_run import ClaudeRun, files_of
from tests.real_agents.model import Gate, Say, ScriptedModel, Think, Tool
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
        run.quit()
    assert sorted(marks.read_text().split()) == ["file", "flag"]
    assert files_of(made.home) == before
    assert files_of(made.cwd) == {}


def test_the_model_is_told_how_to_talk(claude: Path, tmp_path: Path, model: ScriptedModel) -> None:
    with ClaudeRun(recipe(claude, tmp_path, model)) as run:
        run.ready()
        run.ask("hello there")
        wait_until(lambda: run.ended() == 1)
    assert "Your name here is Alice" in model.requests[0].last_text


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


@pytest.mark.parametrize("renderer", RENDERERS)
def test_the_door_works_while_idle_streaming_and_beside_a_draft(
    claude: Path, tmp_path: Path, model: ScriptedModel, renderer: str
) -> None:
    model.when("stream now", Say("One line.\n\nTwo"), Gate("stream"))
    with ClaudeRun(recipe(claude, tmp_path, model, renderer)) as run:
        run.ready()
        run.send("MARK-IDLE to an agent that does nothing")
        wait_until(lambda: model.seen("MARK-IDLE"))
        wait_until(lambda: run.proven("MARK-IDLE"))
        run.wait_state(AgentState.IDLE)

        run.ask("stream now")
        wait_until(lambda: "One line." in run.lines())
        run.terminal.type("half a draft")
        run.terminal.wait_for("half a draft")
        run.send("MARK-STREAM in the middle of a stream")
        wait_until(lambda: run.source.accepted("MARK-STREAM"), what="the queued message")
        assert not run.proven("MARK-STREAM")
        model.open("stream")
        wait_until(lambda: model.seen("MARK-STREAM"))
        wait_until(lambda: run.proven("MARK-STREAM"))
        run.wait_state(AgentState.IDLE)
        assert "half a draft" in run.terminal.text()
        assert len(model.seen("MARK-IDLE")) == len(model.seen("MARK-STREAM")) == 1


@pytest.mark.parametrize("renderer", RENDERERS)
def test_a_message_never_answers_a_permission_dialog(
    claude: Path, tmp_path: Path, model: ScriptedModel, renderer: str
) -> None:
    command = {"command": "touch created; curl -V", "description": "make a file"}
    model.when("ask me", Say("I ask."), Tool("Bash", command))
    made = recipe(claude, tmp_path, model, renderer)
    with ClaudeRun(made) as run:
        run.ready()
        run.ask("ask me")
        run.terminal.wait_for("Do you want to proceed?")
        run.wait_state(AgentState.BLOCKED)
        run.send("MARK-DIALOG while a dialog is open")
        wait_until(lambda: run.source.accepted("MARK-DIALOG"))
        assert run.source.look(run.terminal.lines(), "", 0.0) == []
        assert run.source.agent_state is AgentState.BLOCKED
        assert "Do you want to proceed?" in run.terminal.text()
        assert not (made.cwd / "created").exists()
        run.terminal.type("\x1b")
        wait_until(lambda: model.seen("MARK-DIALOG"))
        wait_until(lambda: run.proven("MARK-DIALOG"))
        run.wait_state(AgentState.IDLE)
    assert not (made.cwd / "created").exists()
    assert len(model.seen("MARK-DIALOG")) == 1


def test_a_message_reaches_a_running_turn_after_the_tool(
    claude: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    made = recipe(claude, tmp_path, model, settings={"permissions": {"allow": ["Bash"]}})
    fifo = made.cwd / "fifo"
    os.mkfifo(fifo)
    command = {"command": "cat fifo", "description": "wait"}
    model.when("use the tool", Say("I wait."), Tool("Bash", command))
    model.when_tool(Say("Waited."))
    with ClaudeRun(made) as run:
        run.ready()
        run.ask("use the tool")
        # Opening it for writing succeeds once the tool reads it.
        with open(fifo, "w") as writer:
            run.send("MARK-TOOL while a tool runs")
            wait_until(lambda: run.source.accepted("MARK-TOOL"))
            writer.write("output\n")
        wait_until(lambda: run.proven("MARK-TOOL"))
        wait_until(lambda: model.seen("MARK-TOOL"))
        run.wait_state(AgentState.IDLE)
    [seen] = model.seen("MARK-TOOL")
    assert "output" in seen.last_text  # the same request carries the tool's result


def test_what_the_person_stops_is_broken_off(
    claude: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    model.when("stop this", Say("Begun.\n\n@relay:Bob part of a\nmessage"), Gate("stop"))
    with ClaudeRun(recipe(claude, tmp_path, model)) as run:
        run.ready()
        run.ask("stop this")
        wait_until(lambda: "@relay:Bob part of a" in run.lines())
        run.terminal.type("\x1b")
        wait_until(lambda: run.ended(aborted=True) == 1)
        run.wait_state(AgentState.IDLE)
        assert run.ended() == 0
        assert run.lines() == ["Begun.", "", "@relay:Bob part of a"]


def test_text_that_goes_on_after_thinking_begins_a_line(
    claude: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    model.when("two blocks", Say("First."), Think("hm"), Say("@relay:Bob second"))
    with ClaudeRun(recipe(claude, tmp_path, model)) as run:
        run.ready()
        run.ask("two blocks")
        wait_until(lambda: run.ended() == 1)
        assert run.lines() == ["First.", "@relay:Bob second"]


@pytest.mark.parametrize("trouble", ["refused", "never answered"])
@pytest.mark.parametrize("renderer", RENDERERS)
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


def test_a_door_whose_agent_was_killed_is_closed(
    claude: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    from relay.agents.base import ChannelClosed

    with ClaudeRun(recipe(claude, tmp_path, model)) as run:
        run.ready()
        wait_until(lambda: run.door.available)
        os.kill(run.terminal.pid, signal.SIGKILL)
        run.terminal.wait_end()
        with pytest.raises(ChannelClosed):
            run.call(run.door.submit("MARK-DEAD", ""))


def test_history_is_not_heard_again(claude: Path, tmp_path: Path, model: ScriptedModel) -> None:
    model.when("say it", Say("@relay:Bob from the first run"))
    model.when("once more", Say("@relay:Bob from the second run"))
    model.when("afresh", Say("@relay:Bob after the clearing"))
    with ClaudeRun(recipe(claude, tmp_path, model)) as run:
        run.ready()
        run.ask("say it")
        wait_until(lambda: run.ended() == 1)
        run.wait_state(AgentState.IDLE)
        run.quit()
    with ClaudeRun(recipe(claude, tmp_path, model, arguments=["--continue"])) as run:
        run.terminal.wait_for("from the first run")
        run.ready()
        run.ask("once more")
        wait_until(lambda: run.ended() == 1)
        run.wait_state(AgentState.IDLE)
        before = run.source.transcript_path
        run.ask("/clear")
        wait_until(lambda: run.source.transcript_path != before, what="the new session")
        run.ready()
        run.ask("afresh")
        wait_until(lambda: run.ended() == 2)
        run.quit()
        assert run.lines() == ["@relay:Bob from the second run", "@relay:Bob after the clearing"]
