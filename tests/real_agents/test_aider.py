"""aider's own under ``relay wrap``; what all six do is in test_hearing and test_reaching."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.wrapped import relay, relay_json
from tests.real_agents import recipes
from tests.real_agents.model import Fail, Say, ScriptedModel
from tests.real_agents.people import (
    about,
    answered,
    bodies_from,
    outcome,
    wait_bodies,
    wait_held_up,
    wait_seen,
    wait_state,
)
from tests.real_agents.recipes import Options
from tests.real_agents.wrapped import Wrapped, room
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")


def test_no_question_is_answered(aider: Path, tmp_path: Path, model: ScriptedModel) -> None:
    model.when("MARK-MAKE", Say("It is new:\n\ncreated.txt\n```\nwords\n```\n"))
    made = recipes.aider(aider, tmp_path, model.url, Options())
    subprocess.run(["git", "add", "README.md"], cwd=made.cwd, env=made.env, check=True)
    with Wrapped(made, "Ada") as ada:
        ada.ready()
        ada.ask("MARK-MAKE")
        ada.terminal.wait_for("Create new file?")
        wait_state("Ada", "blocked")
        assert about("Ada")[1] == "aider asks: Create new file?"
        relay("send", "Ada", "MARK-ASKED words")
        dialog = "a dialog waits for the person"
        wait_held_up("MARK-ASKED", dialog)
        [item] = relay_json("items")
        assert [one["label"] for one in item["choices"]] == ["Yes", "No"]
        assert relay("answer", "Ada", "no") == "Ada: No\n"
        wait_seen(model, "MARK-ASKED")
        answered(ada, model, "MARK-ASKED")

        # What it is sent names a file of the repository: aider offers to add it, the person says.
        relay("send", "Ada", "MARK-FILE in README.md")
        ada.terminal.wait_for("Add file to the chat?")
        wait_state("Ada", "blocked")
        wait_until(lambda: outcome("MARK-FILE")[0] == "submitted", 30)
        ada.terminal.type("n\r")
        wait_seen(model, "MARK-FILE")
        answered(ada, model, "MARK-FILE")
        assert not (ada.recipe.cwd / "created.txt").exists()

        os.mkfifo(ada.recipe.cwd / "fifo")
        ada.ask("/run cat fifo")
        with open(ada.recipe.cwd / "fifo", "w") as writer:  # opens once the command reads it
            relay("send", "Ada", "MARK-TOOL words")
            wait_held_up("MARK-TOOL", "the agent is busy")
            writer.write("output\n")
        ada.terminal.wait_for("command output to the chat?")
        wait_held_up("MARK-TOOL", dialog)
        ada.terminal.type("n\r")
        wait_seen(model, "MARK-TOOL")
        answered(ada, model, "MARK-TOOL")

        ada.ask("/multiline-mode")
        ada.terminal.wait_match(r"^multi>\s*\Z")
        relay("send", "Ada", "MARK-MULTI words", "--wait=60")
        wait_seen(model, "MARK-MULTI")
        assert relay_json("agents")[0]["state"] in ("busy", "idle")


def test_a_model_that_does_not_answer_is_waited_for(
    aider: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    model.when("MARK-LIMIT", Fail(429))
    with room(tmp_path, model) as agents:
        ada = agents.start("Ada", "aider", aider)
        ada.ask("MARK-LIMIT")
        wait_state("Ada", "limited")
        ada.terminal.type("\x03")
        ada.terminal.wait_for("^C again to exit")
        relay("send", "Ada", "MARK-HELD words")
        wait_held_up("MARK-HELD", "a usage limit is reached")
        assert about("Ada") == ("limited", "a usage limit is reached")
        ada.terminal.wait_match(r"^>\s*\Z")
        ada.ask("/clear")  # else the next request holds this one
        ada.terminal.wait_for("All chat history cleared.")
        ada.ask("MARK-OVER")
        wait_seen(model, "MARK-HELD")


def test_the_persons_own_files_stay_as_they_are(
    aider: Path, tmp_path: Path, model: ScriptedModel, bob: None
) -> None:
    model.when("MARK-FIRST", Say("@relay:Bob from the first run"))
    model.when("MARK-SECOND", Say("@relay:Bob from the second run"))
    own = {"llm-history-file": "mine.log", "read": ["README.md"], "restore-chat-history": True}
    made = recipes.aider(aider, tmp_path, model.url, Options(settings=own))
    before = made.settings_file.read_bytes()
    for name, marker in (("Ada", "MARK-FIRST"), ("Eve", "MARK-SECOND")):
        with Wrapped(made, name) as agent:
            agent.ready()
            agent.ask(marker)
            answered(agent, model, marker)
            agent.quit()
    assert (bodies_from("Ada"), bodies_from("Eve")) == (
        ["from the first run"],
        ["from the second run"],
    )
    for told in ("# A project", "This terminal runs under relay"):
        assert all(told in str(request.body) for request in model.requests)
    assert made.settings_file.read_bytes() == before
    for kept in ("mine.log", ".aider.chat.history.md", ".aider.input.history"):
        text = (made.cwd / kept).read_text()
        assert text.index("MARK-FIRST") < text.index("MARK-SECOND")
    assert not list(Path(os.environ["RELAY_HOME"], "run").glob("*/aider-llm-history"))


def test_the_screen_stands_in_where_no_history_is_written(
    aider: Path, tmp_path: Path, model: ScriptedModel, bob: None
) -> None:
    model.when("MARK-ONE", Say("Words."))
    model.when("MARK-TWO", Say("@relay:Bob seen on the screen"))
    options = Options(settings={"llm-history-file": "/dev/null"})
    with room(tmp_path, model) as agents:
        ada = agents.start("Ada", "aider", aider, options)
        ada.ask("MARK-ONE")
        answered(ada, model, "MARK-ONE")
        wait_until(lambda: "does not write the LLM history" in relay("status"), 30)
        ada.ask("MARK-TWO")
        answered(ada, model, "MARK-TWO")
        wait_bodies("Ada", ["seen on the screen"])
        relay("send", "Ada", "MARK-TYPED words", "--wait=60")
        wait_seen(model, "MARK-TYPED")
