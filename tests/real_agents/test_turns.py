"""What an agent answered, in which turn: ``relay send --answer``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.wrapped import relay, relay_json
from tests.real_agents.conftest import Binary
from tests.real_agents.model import Say, ScriptedModel, Shell
from tests.real_agents.people import PATIENCE, rest, send, wait_delivery
from tests.real_agents.recipe import Options
from tests.real_agents.wrapped import room
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")


WATCHES = """
from relay import Automation

def handler(ctx):
    return {"enrich": {"flight": "UA123"}}

kinds = ["message", "tool_call"]
automation = Automation("watches", "watches", handler, {"event": {"types": kinds}}, blocking=True)
"""


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_an_automation_adds_to_a_message_and_hears_of_the_tool_calls_that_follow(
    name: str, binary_of: Binary, tmp_path: Path, model: ScriptedModel
) -> None:
    """Without a relay.config.py."""
    model.when("MARK-GO", Shell("echo gone"), times=1)
    (tmp_path / "watches.py").write_text(WATCHES)
    relay("automation", "register", str(tmp_path / "watches.py"))
    with room(tmp_path, model) as people:
        people.start("Ann", name, binary_of(name), Options(asks=False))
        relay("send", "Ann", "MARK-GO when you can.", f"--answer={PATIENCE}")
        wait_until(
            lambda: (
                "tool_call" in {one["kind"] for one in relay_json("automation", "runs", "watches")}
            ),
            what="the tool call",
        )
    told = next(one.last_text for one in model.requests if "MARK-GO" in one.last_text)
    assert re.search(
        r"(Context \[\w+\]) by your user's automations, not your user's words:"
        r' \{"flight":"UA123"\} End of context',
        told,
    )


#: What those answer whose transcripts are read in, by which model, and how many tools they call.
ANSWERS = {
    "claude": ("I look.\nIt is 42.\n\nThat is all.", "claude-sonnet-4-5", 0),
    "codex": ("I look.\nIt is 42.\n\nThat is all.", "gpt-5", 1),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_its_transcript_is_read_in_without_the_turns_that_relay_has(
    name: str, binary_of: Binary, tmp_path: Path, model: ScriptedModel
) -> None:
    model.when("MARK-ONE", Say("I look."), Shell("echo hello"), times=1)
    # As models do, it thinks for a moment: Claude Code's reports of two messages may overtake
    # each other where there is nothing between them.
    model.when_tool(Say("It is 42.\n\nThat is all.", pause=0.5), times=1)
    model.when("MARK-TWO", Say("I see."), times=1)
    with room(tmp_path, model) as people:
        ann = people.start("Ann", name, binary_of(name), Options(asks=False))
        question = ("Ann", "MARK-ONE what is it?", f"--answer={PATIENCE}", "--json")
        told = json.loads(relay("send", *question))
        (answer,) = told["answers"]
        assert (answer["state"], answer["inferred"]) == ("completed", False)
        got = (answer["text"], answer["model"], answer["tool_calls"])
        assert got == ANSWERS[name]
        plain = send("Ann", "MARK-TWO by the way.")
        wait_delivery(plain, "seen")
        rest(ann, model)
        ann.quit()
        relay("ledger", "ingest", str(tmp_path), "--source", name)
        rows = json.loads(
            relay(
                *("ledger", "query", "--json"),
                "SELECT m.role, m.content, e.id FROM agent_messages m JOIN agent_sessions s"
                " ON s.id = m.session LEFT JOIN events e ON e.seq = m.event"
                f" WHERE s.source = '{name}' ORDER BY m.seq",
            )
        )
    assert [(row["role"], row["id"]) for row in rows] == [("user", plain), ("assistant", None)]
    assert ["MARK-TWO by the way." in rows[0]["content"], rows[1]["content"]] == [True, "I see."]
