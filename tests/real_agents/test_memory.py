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


@pytest.mark.parametrize("backend", ["local", "mem0"])
def test_one_saves_and_the_next_one_knows(
    claude: Path,
    tmp_path: Path,
    model: ScriptedModel,
    models: Path,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project = tmp_path / "Alice" / "project"
    project.mkdir(parents=True)
    (tmp_path / "Bob").mkdir()
    (tmp_path / "Bob" / "project").symlink_to(project)
    config = project / "relay.config.py"
    config.write_text(f'config = {{"memory": {{"backend": "{backend}"}}}}\n')
    relay("trust", str(config))
    model.when("keep what you know", Say(f"I keep it.\n\n@memory:save {FACT}\n\nThat is all."))
    model.when("memory: saved as", Say("It is saved."))
    model.when("saved in earlier sessions", Say("I look.\n\n@memory:search the staging database\n"))
    model.when("memory: 1 found", Say("Its name is known here."))
    with agents(claude, tmp_path, model) as both:
        alice = both.start("Alice")
        ask(alice, "keep what you know")
        alice.wait_for("It is saved.")
        bob = both.start("Bob")
        bob.wait_for("Its name is known here.")
        wait_until(lambda: all(row["state"] == "seen" for row in relay_json("history")), 30)
    told = [row["body"] for row in relay_json("history") if row["to"] == "Bob"]
    assert len(told) == 2 and all(FACT in body for body in told)
    monkeypatch.chdir(project)
    [kept] = [json.loads(line) for line in relay("memory", "export").splitlines()]
    assert (kept["text"], kept["agent"], kept["scope"]) == (FACT, "Alice", "project")
