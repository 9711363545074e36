"""What an agent answered, in which turn: ``relay send --answer``, and messages that interrupt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.wrapped import relay
from tests.real_agents.conftest import Binary
from tests.real_agents.model import Say, ScriptedModel, Shell
from tests.real_agents.recipe import Options
from tests.real_agents.wrapped import room

pytestmark = pytest.mark.usefixtures("stop_broker")


@pytest.mark.parametrize("name", ["claude"])
def test_answer(name: str, binary_of: Binary, tmp_path: Path, model: ScriptedModel) -> None:
    model.when("MARK-ONE", Say("I look."), Shell("echo hello"), times=1)
    model.when_tool(Say("It is 42.\n\nThat is all."), times=1)
    with room(tmp_path, model) as people:
        ann = people.start("Ann", name, binary_of(name), Options(asks=False))
        told = json.loads(relay("send", "Ann", "MARK-ONE what is it?", "--answer=30", "--json"))
        (answer,) = told["answers"]
        assert (answer["text"], answer["state"], answer["inferred"]) == (
            *("I look.\nIt is 42.\n\nThat is all.", "completed"),
            False,
        )
        ann.quit()
