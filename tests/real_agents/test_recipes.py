"""Each of the six programs in each of its renderers: it starts, answers, runs a tool and ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_agents.conftest import Binary
from tests.real_agents.model import Say, ScriptedModel, Shell
from tests.real_agents.recipes import AGENTS, Options
from tests.real_agents.running import ANSWER_DEADLINE, Running, wait_nothing_left
from tests.support import wait_until

EACH = [
    pytest.param(agent.name, renderer, id=f"{agent.name}-{renderer}".rstrip("-"))
    for agent in AGENTS.values()
    for renderer in agent.renderers
]


@pytest.mark.parametrize(("name", "renderer"), EACH)
def test_it_answers_runs_a_tool_and_ends(
    name: str, renderer: str, binary_of: Binary, tmp_path: Path, model: ScriptedModel
) -> None:
    agent = AGENTS[name]
    model.when("say hello", Say("Hello from the script."))
    model.when("make the file", Say("I make it."), Shell("echo made >created"))
    model.when_tool(Say("It is made."))
    url = model.url_for("Alice")
    made = agent.recipe(binary_of(name), tmp_path, url, Options(renderer, asks=False))
    with Running(made) as run:
        run.ready()
        run.ask("say hello")
        run.terminal.wait_for("Hello from the script.", ANSWER_DEADLINE)
        run.ready()
        if agent.has_tools:
            run.ask("make the file")
            run.terminal.wait_for("It is made.")
            run.ready()
            assert (made.cwd / "created").read_text() == "made\n"
        wait_until(lambda: model.resting)
        asked = [request.said for request in model.requests if not request.after_tool]
        expected = ["say hello", "make the file"] if agent.has_tools else ["say hello"]
        assert len(asked) == len(expected), asked
        assert all(text in said for text, said in zip(expected, asked, strict=True))
        assert {request.by for request in model.all_requests} == {"Alice"}
        run.quit()
    wait_nothing_left(made)
