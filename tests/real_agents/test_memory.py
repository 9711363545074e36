"""Two real Claude Codes share a memory: one saves, the other has it at its start and finds it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.wrapped import relay, relay_json
from tests.real_agents.model import Say, ScriptedModel
from tests.real_agents.test_two_claudes import agents, ask
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")

FACT = "The staging database is called heron"


def test_one_saves_and_the_next_one_knows(
    claude: Path,
    tmp_path: Path,
    model: ScriptedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = tmp_path / "Alice" / "project"
    project.mkdir(parents=True)
    (tmp_path / "Bob").mkdir()
    (tmp_path / "Bob" / "project").symlink_to(project)
    monkeypatch.chdir(project)  # whose store is exported
    model.when("keep what you know", Say(f"I keep it.\n\n@memory:save {FACT}\n\nThat is all."))
    model.when("look around", Say("I look.\n\n@memory:search the staging database\n"))
    model.when("memory: 1 found", Say("Its name is known here."))
    with agents(claude, tmp_path, model) as both:
        alice = both.start("Alice")
        ask(alice, "keep what you know")
        alice.wait_for("That is all.")
        wait_until(lambda: FACT in relay("memory", "export"), 30)
        ask(alice, "anything else?")
        alice.wait_for("OK.")
        # That it is saved was told beside the prompt, and cost no turn.
        assert len(model.requests) == 2
        assert "memory: saved as" in model.requests[1].last_text
        bob = both.start("Bob")
        ask(bob, "look around")
        bob.wait_for("Its name is known here.")
        first = model.requests[2]
        assert FACT in first.last_text and "saved in earlier sessions" in first.last_text
        wait_until(lambda: all(row["state"] == "seen" for row in relay_json("history")), 30)
    told = [row["body"] for row in relay_json("history") if row["to"] == "Bob"]
    assert len(told) == 1 and FACT in told[0]
    [kept] = [json.loads(line) for line in relay("memory", "export").splitlines()]
    assert (kept["text"], kept["agent"], kept["scope"]) == (FACT, "Alice", "project")
