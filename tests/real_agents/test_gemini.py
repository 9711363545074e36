"""Gemini CLI's own under ``relay wrap``; what all six do is in test_hearing and test_reaching."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relay.agents.launch import Primer
from tests.e2e.wrapped import relay
from tests.real_agents.model import Fail, Say, ScriptedModel
from tests.real_agents.people import (
    about,
    answered,
    bodies_from,
    wait_bodies,
    wait_held_up,
    wait_seen,
    wait_state,
)
from tests.real_agents.recipes import AGENTS, Options
from tests.real_agents.running import Running
from tests.real_agents.wrapped import Wrapped, room

pytestmark = pytest.mark.usefixtures("stop_broker")


def test_two_in_one_project_are_not_mixed_up(
    gemini: Path, tmp_path: Path, model: ScriptedModel, bob: None
) -> None:
    model.when("MARK-ONE", Say("@relay:Bob from the one"))
    model.when("MARK-OTHER", Say("@relay:Bob from the other"))
    model.when("MARK-CLEARED", Say("@relay:Bob from a cleared one"))
    model.when("MARK-ANEW", Say("@relay:Bob from a new one"))
    model.when("MARK-RESUMED", Say("@relay:Bob from a resumed one"))
    made = AGENTS["gemini"].recipe(gemini, tmp_path, model.url, Options())
    with Wrapped(made, "One") as one, Wrapped(made, "Other") as other:
        for agent, mark in ((one, "MARK-ONE"), (other, "MARK-OTHER")):
            agent.ready()
            agent.ask(mark)
            answered(agent, model, mark)
        wait_bodies("One", ["from the one"])
        wait_bodies("Other", ["from the other"])  # nothing is cleared away unheard
        for cleared, mark in ((other, "MARK-CLEARED"), (one, "MARK-ANEW")):
            cleared.ask("/clear")
            wait_cleared(cleared)
            cleared.ask(mark)
            answered(cleared, model, mark)
        wait_bodies("One", ["from the one", "from a new one"])
        wait_bodies("Other", ["from the other", "from a cleared one"])
        relay("send", "Other", "MARK-TYPED words", "--wait=60")
        one.quit()
        # The older one is resumed; the latest is in test_hearing.
        made.argv += ["--resume", session_with(made.home, "MARK-ONE")]
        with Wrapped(made, "Again", rows=50) as again:
            again.terminal.wait_for("> MARK-ONE")
            relay("send", "Again", "MARK-FIRST words", "--wait=60")
            again.ready()
            again.ask("MARK-RESUMED")
            answered(again, model, "MARK-RESUMED")
            wait_bodies("Again", ["from a resumed one"])
        assert bodies_from("One") == ["from the one", "from a new one"]
        assert bodies_from("Other") == ["from the other", "from a cleared one"]


def wait_cleared(agent: Running) -> None:
    """Until nothing of the conversation is shown any more, and it takes a prompt."""
    agent.terminal.wait_that(lambda: not agent.terminal.matches("MARK-"), what="an empty screen")
    agent.ready()


def session_with(home: Path, prompt: str) -> str:
    """The id of the conversation in which this was asked."""
    [path] = [p for p in (home / ".gemini").rglob("session-*.jsonl") if prompt in p.read_text()]
    return str(json.loads(path.read_text().split("\n")[0])["sessionId"])


def test_what_is_the_persons_stays_and_the_model_is_told(
    gemini: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    model.when("MARK-REFUSED", Fail(403, "scripted refusal"))
    own = {"ui": {"hideWindowTitle": True}, "context": {"fileName": "NOTES.md"}}
    with room(tmp_path, model) as agents:
        gem = agents.start("Gem", "gemini", gemini, Options(settings=own))
        before = gem.recipe.settings_file.read_bytes()
        gem.ask("MARK-TOLD")
        answered(gem, model, "MARK-TOLD")
        assert model.requests[0].last_text.count(Primer("Gem", ("relay", "memory")).text()) == 1
        gem.ask("MARK-REFUSED")
        wait_state("Gem", "limited")
        assert about("Gem")[1] == "the API refuses: scripted refusal"
        relay("send", "Gem", "MARK-LATER words")
        wait_held_up("MARK-LATER", "the API refuses: scripted refusal")
        gem.ready()
        gem.ask("MARK-OVER")
        answered(gem, model, "MARK-OVER")
        wait_seen(model, "MARK-LATER")
        relay("send", "Gem", "MARK-WORDS @README.md @property", "--wait=60")
        assert "MARK-WORDS \\@README.md @property (" in model.seen("MARK-WORDS")[0].last_text
        gem.quit()
        assert gem.recipe.settings_file.read_bytes() == before
        assert sorted(p.name for p in gem.recipe.cwd.iterdir()) == [".git", "README.md"]


def test_one_of_an_unknown_version_is_heard_by_its_screen(
    gemini: Path, tmp_path: Path, model: ScriptedModel, bob: None
) -> None:
    model.when("MARK-SCREEN", Say("Now.\n\n@relay:Bob read from the screen\n\nDone."))
    (tmp_path / "gemini").write_text(f'#!/bin/sh\nexec "{gemini}" "$@"\n')
    (tmp_path / "gemini").chmod(0o755)
    with room(tmp_path, model) as agents:
        gem = agents.start("Gem", "gemini", tmp_path / "gemini", options=["--no-primer"])
        gem.ask("MARK-SCREEN")
        answered(gem, model, "MARK-SCREEN")
        wait_bodies("Gem", ["read from the screen"])
        relay("send", "Gem", "MARK-TYPED words", "--wait=60")
        wait_seen(model, "MARK-TYPED")
        assert "gemini, read from its screen" in (shown := relay("status"))
        assert "this version is unknown" in shown
        assert "Your name here" not in json.dumps(model.requests[0].body)
