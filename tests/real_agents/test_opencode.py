"""What is opencode's own, beside what the tests of all six drive: its server, sessions, agents."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from relay.core.agent_names import owner_name
from tests.e2e.wrapped import relay_json
from tests.real_agents.conversation import AT
from tests.real_agents.model import Gate, Say, ScriptedModel, Tool
from tests.real_agents.people import (
    PATIENCE,
    answered,
    arrived_once,
    bodies_from,
    delivery,
    send,
    wait_bodies,
    wait_state,
)
from tests.real_agents.recipes import Options
from tests.real_agents.wrapped import room
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_what_only_opencode_has(opencode: Path, tmp_path: Path, model: ScriptedModel) -> None:
    task = {"description": "x", "prompt": "be the helper", "subagent_type": "general"}
    model.when("never ends", Say("I begin."), Gate("never"))
    model.when("be the helper", Say(f"{AT} no: from a subagent"))
    model.when("delegate", Say("I delegate."), Tool("task", task), times=1)
    sent = {"to": owner_name(), "text": "by the tool"}
    model.when("use the tool", Tool("relay_send", sent), times=1)
    model.when_tool(Say("I have sent it."), pattern='"deliveries"', times=1)
    model.when_tool(Say(f"{AT} the helper is done"))
    model.when("MARK-", Say("I have read it."))
    with room(tmp_path, model) as people:
        ann = people.start("Ann", "opencode", opencode, Options(asks=False), options=["--mcp"])
        before = ann.recipe.settings_file.read_bytes()

        # Nobody else on the machine can use the server.
        [row] = relay_json("agents")
        arguments = Path(f"/proc/{row['pid']}/cmdline").read_bytes().split(b"\0")
        port = int(arguments[arguments.index(b"--port") + 1])
        assert status_of(f"http://127.0.0.1:{port}/session") == 401

        # What a subagent says is not the agent's own.
        ann.ask("delegate it")
        wait_bodies("Ann", ["the helper is done"])
        assert "Your name here is Ann" in model.requests[0].system
        wait_state("Ann", "idle")
        ann.ready()

        # What it calls of relay's own server, where that is given, is its own.
        ann.ask("use the tool")
        wait_bodies("Ann", ["the helper is done", "by the tool"])
        answered(ann, model, "use the tool")

        # opencode begins no turn for what is queued when the person stops one; and a draft stays.
        ann.ask("say what never ends")
        ann.terminal.wait_for("I begin.")
        left = send("Ann", "MARK-LEFT while you speak.", mode="steer")
        wait_until(lambda: delivery(left)[0] == "submitted", PATIENCE)
        ann.terminal.type("half a draft")
        ann.terminal.wait_for("half a draft")
        ann.terminal.type("\x1b")
        ann.terminal.wait_for("again to interrupt")
        ann.terminal.type("\x1b")
        arrived_once(model, left, "MARK-LEFT while you speak.")
        model.open("never")
        answered(ann, model, "MARK-LEFT")
        ann.terminal.wait_for("half a draft")
        ann.terminal.type("\x03")
        wait_until(lambda: "half a draft" not in ann.terminal.text(), PATIENCE)

        # What comes in is answered by the agent that the person has chosen, with its rights only.
        ann.terminal.type("\t")
        ann.terminal.wait_match(r"┃\s+Plan ·")
        planned = send("Ann", "MARK-PLAN for the one who plans.")
        arrived_once(model, planned, "MARK-PLAN for the one who plans.")
        answered(ann, model, "MARK-PLAN")
        ann.terminal.wait_match(r"▣\s+Plan ·")
        assert "Plan" in model.seen("MARK-PLAN")[0].last_text  # opencode reminds it of its rights
        assert ann.recipe.settings_file.read_bytes() == before
        ann.quit()
    assert bodies_from("Ann") == ["the helper is done", "by the tool"]
