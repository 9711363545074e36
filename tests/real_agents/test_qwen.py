"""Qwen Code's own under ``relay wrap``; what all six do is in test_hearing and test_reaching."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.wrapped import (
    relay,
    session_pid,
)
from tests.real_agents.conversation import MANY
from tests.real_agents.model import Fail, Say, ScriptedModel, Shell
from tests.real_agents.people import (
    answered,
    bodies_from,
    wait_about,
    wait_bodies,
    wait_held_up,
    wait_seen,
)
from tests.real_agents.recipes import Options
from tests.real_agents.wrapped import Wrapped, room
from tests.support import found, wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")


def test_a_session_that_is_stopped_costs_the_agent_and_the_messages_nothing(
    qwen: Path, tmp_path: Path, model: ScriptedModel, bob: None
) -> None:
    model.when("MARK-MANY", Say(MANY, chunk=4), Shell("touch made"))
    with room(tmp_path, model) as agents:
        one = agents.start("Qwen", "qwen", qwen, Options(asks=False))
        stopped = found(lambda: session_pid(one.terminal))
        os.kill(stopped, signal.SIGSTOP)
        one.ask("MARK-MANY")
        wait_until(lambda: (one.recipe.cwd / "made").exists(), 30, "the tool after 200 lines")
        assert bodies_from("Qwen") == []
        os.kill(stopped, signal.SIGCONT)
        wait_bodies("Qwen", ["in the middle", "after many lines"])
        answered(one, model, "MARK-MANY")
        one.quit()


def test_what_is_the_persons_stays_and_the_model_is_told(
    qwen: Path, tmp_path: Path, model: ScriptedModel, bob: None
) -> None:
    model.when("MARK-REFUSED", Fail(401, "bad key"), times=1)
    model.when("MARK-SCREEN", Say("Now.\n\n@relay:Bob read from the screen\n\nDone."))
    arguments = ["--append-system-prompt", "My own words.", "--json-file", "mine.jsonl"]
    with room(tmp_path, model) as agents:
        itself = Options(env={"QWEN_CODE_NO_RELAUNCH": ""})
        one = agents.start("Qwen", "qwen", qwen, itself)
        before = one.recipe.settings_file.read_bytes()
        one.ask("MARK-REFUSED")
        wait_about("Qwen", "limited", "the API refuses the account")
        relay("send", "Qwen", "MARK-LATER words")
        wait_held_up("MARK-LATER", "the API refuses the account")
        one.ready()
        one.ask("MARK-OVER")
        answered(one, model, "MARK-OVER")
        answered(one, model, "MARK-LATER")
        assert json.dumps(model.requests[0].body).count("Your name here is Qwen") == 1
        one.quit()
        assert one.recipe.settings_file.read_bytes() == before
        assert sorted(p.name for p in one.recipe.cwd.iterdir()) == [".git", "README.md"]
        one.recipe.argv += arguments
        with Wrapped(one.recipe, "Qwen") as again:
            again.ready()
            again.ask("MARK-SCREEN")
            wait_until(lambda: model.seen("MARK-SCREEN"))
            wait_bodies("Qwen", ["read from the screen"])
            relay("send", "Qwen", "MARK-TYPED words", "--wait=60")
            wait_seen(model, "MARK-TYPED")
            assert "qwen, read from its screen" in (shown := relay("status"))
            assert "its events go to a file of yours" in shown
            told = json.dumps(model.requests[-1].body)
            assert "My own words." in told
            assert "Your name here is Qwen" in told
        assert '"session_start"' in (one.recipe.cwd / "mine.jsonl").read_text()
