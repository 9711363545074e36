"""relay's MCP server in real agents: given for one run, and its calls are the agent's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.wrapped import relay_json
from tests.real_agents.conftest import Binary
from tests.real_agents.model import ScriptedModel, Tool
from tests.real_agents.people import wait_state
from tests.real_agents.recipe import Options
from tests.real_agents.wrapped import room
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("bob")

#: What each of them calls a tool of the server.
NAMES = {
    "claude": "mcp__relay__{}",
    "codex": "mcp__relay/{}",
}


@pytest.mark.parametrize("agent", NAMES)
def test_an_agent_sends_by_the_tool_and_is_the_sender(
    agent: str, binary_of: Binary, tmp_path: Path, model: ScriptedModel
) -> None:
    send = Tool(NAMES[agent].format("send"), {"to": "Bob", "text": "from a tool"})
    model.when("tell Bob$", send, times=1)
    with room(tmp_path, model) as people:
        # The person is asked about other tools.
        alice = people.start(
            "Alice", agent, binary_of(agent), Options(asks=True), options=["--mcp"], cols=100
        )
        alice.ask("tell Bob")
        wait_until(lambda: len(model.requests) >= 2, 90, "the tool's result")
        wait_state("Alice", "idle")
    assert "deliveries" in json.dumps(model.requests[-1].body).rpartition("tell Bob")[2]
    [row] = [row for row in relay_json("history") if row["body"] == "from a tool"]
    assert (row["from"], row["to"], row["state"]) == ("Alice", "Bob", "seen")
