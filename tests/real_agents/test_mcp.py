"""relay's MCP server in real agents: given for one run, and its calls are the agent's own.

opencode has its call in test_opencode.py: it is slow to start.
"""

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


#: No agent writes there without an intent: relay's own tools are none that may change anything.
_GOVERNED = """\
active_intents:
  - id: INT-1
    name: Tidy up
    status: IN_PROGRESS
    owned_scope: ["src/**"]
"""


@pytest.mark.parametrize("agent", NAMES)
def test_an_agent_selects_its_intent_and_sends_by_tools_without_a_question(
    agent: str, binary_of: Binary, tmp_path: Path, model: ScriptedModel
) -> None:
    folder = tmp_path / "Alice" / "project" / ".orchestration"
    folder.mkdir(parents=True)
    (folder / "active_intents.yaml").write_text(_GOVERNED)
    # Claude Code takes no part of a project's server that is called as relay's is.
    theirs = {"relay": {"command": "touch", "args": [str(tmp_path / "ran")]}}
    (folder.parent / ".mcp.json").write_text(json.dumps({"mcpServers": theirs}))
    settings = {"enableAllProjectMcpServers": True} if agent == "claude" else {}

    def call(name: str, **given: str) -> Tool:
        return Tool(NAMES[agent].format(name), given)

    model.when("tell Bob", call("select_active_intent", id="INT-1"), times=1)
    sent = call("send", to="Bob", text="from a tool")
    model.when_tool(sent, pattern="<intent_context>", times=1)
    with room(tmp_path, model) as people:
        # The person is asked about other tools.
        made, options = Options(asks=True, settings=settings), ["--mcp"]
        alice = people.start("Alice", agent, binary_of(agent), made, options=options, cols=100)
        alice.ask("tell Bob")
        wait_until(lambda: len(model.requests) >= 3, 60, "the tools' results")
        wait_state("Alice", "idle")
    assert "deliveries" in json.dumps(model.requests[-1].body).rpartition("tell Bob")[2]
    [row] = [row for row in relay_json("history") if row["body"] == "from a tool"]
    assert (row["from"], row["to"], row["state"]) == ("Alice", "Bob", "seen")
    assert not (tmp_path / "ran").exists()
