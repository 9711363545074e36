"""The same tool call of every agent that can be gated: observed, blocked, rewritten, commented.

One start of each agent goes through all of it, with the person's own hook beside relay's.
"""

from __future__ import annotations

import json
import os
import pwd
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from relay.agents.tool_uses import TABLES
from relay.broker.client import connect
from relay.core.dispatch import MINIMAL
from relay.core.paths import Home
from relay.protocol.op import by_name
from tests.e2e.wrapped import kill_session, relay, relay_json
from tests.real_agents.conftest import Binary
from tests.real_agents.gated import (
    AFTERWARDS,
    CONTEXT,
    OWN,
    REASON,
    REPLACED,
    GatedAgent,
    command,
    gated,
)
from tests.real_agents.model import Say, ScriptedModel, Shell
from tests.real_agents.people import refused
from tests.real_agents.recipe import Options
from tests.support import wait_until

#: Those whose tool calls can be gated, and what they call their shell.
SHELLS = {
    "claude": "Bash",
    "codex": "Bash",
    "qwen": "run_shell_command",
    "gemini": "run_shell_command",
    "opencode": "bash",
}
#: Tools of which nobody can tell what they change, so that governance asks the person.
MAY_CHANGE_ANYTHING = {"Workflow", "artifact"}
#: What no hook of Codex's is asked about, and names of groups of tools.
NOT_ASKED = {"write_stdin", "multi_agent_v1", "mcp__codex_tui"}
#: What the model calls in the first turn, one after the other.
CASES = ("observe", "block", "rewrite", "context", "replace", "fail")
#: Those whose hooks can make them ask the person; with the others it is a refusal.
ASKS = {"claude", "qwen", "gemini"}
#: What compacts the conversation.
COMPACTS = {
    "claude": "/compact",
    "codex": "/compact",
    "qwen": "/compress",
    "gemini": "/compress",
    "opencode": "/compact",
}
#: Settings by which the agent itself asks the person about the command of one case.
DIALOGS: dict[str, dict[str, Any]] = {
    "opencode": {"permission": {"bash": {"*": "allow", "*case-dialog*": "ask"}}},
}
#: What turns all hooks off in the person's own settings.
OFF: dict[str, dict[str, Any]] = {
    "claude": {"disableAllHooks": True},
    "codex": {"features": {"hooks": False}},
}


@pytest.fixture(autouse=True)
def stop_broker(isolated_home: Path) -> Iterator[None]:
    yield
    relay("broker", "stop", status=None)


#: Those whose hooks stand in the environment, which what their tools start has, too; and how one
#: turn of another of them is started.
INNER = {"qwen": "-p", "opencode": "run"}


@pytest.mark.parametrize("agent", SHELLS)
def test_a_tool_call_is_seen_and_decided_on(
    agent: str, binary_of: Binary, tmp_path: Path, model: ScriptedModel
) -> None:
    options = Options(asks=False, settings=DIALOGS.get(agent, {}))
    cases = [*CASES, *(["ask"] if agent not in ASKS else [])]
    with gated(agent, binary_of(agent), tmp_path, model, options, cases=cases) as ann:
        told = ann.call_each()
        observed(ann, told["observe"], SHELLS[agent])
        offered = {tool for request in model.requests for tool in request.tools}
        assert offered - TABLES[agent].keys() <= MAY_CHANGE_ANYTHING | NOT_ASKED
        # Gemini CLI tells of turns where relay's folders are root's only: see below.
        tells = agent != "gemini"
        if tells:
            turned(ann, "observe")
        blocked(ann, told["block"])
        rewritten(ann, told["rewrite"])
        commented(told["context"])
        assert REPLACED in told["replace"] and ann.ran("replace")
        failing(ann, told["fail"])
        if agent not in ASKS:
            assert REASON in told["ask"] and not ann.ran("ask")
        if agent in OWN:
            # It ran for every call, also for those that were blocked.
            assert ann.own() == ann.calls()
        if agent in ASKS:
            asking(ann, "ask", tells)
        if agent in DIALOGS:
            asking(ann, "dialog")
        if tells:
            compacted(ann, COMPACTS[agent])
        if agent != "codex":
            held(ann)
        if agent in INNER:
            inner(ann, f"{binary_of(agent)} {INNER[agent]}")
        without_a_session(ann)
        ann.wrapped.quit()


@pytest.mark.parametrize("agent", OFF)
def test_hooks_that_are_turned_off_are_said_to_be(
    agent: str, binary_of: Binary, tmp_path: Path, model: ScriptedModel
) -> None:
    options = Options(asks=False, settings=OFF[agent])
    with gated(agent, binary_of(agent), tmp_path, model, options) as ann:
        ann.call("block")
        assert ann.ran("block") and ann.log("block") == []
        [row] = relay_json("status")["agents"]
        tools, turns = row["notes"]
        assert "tool calls do not reach on_before_tool" in tools
        assert turns.startswith("these hooks never run here") and not ann.turns()
        for note in (tools, turns):
            assert str(ann.recipe.settings_file) in note


@pytest.mark.parametrize("place", ["everybody's", "root's"])
def test_gemini_takes_hooks_of_one_run_from_root_s_folders_only(
    place: str,
    binary_of: Binary,
    tmp_path: Path,
    model: ScriptedModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The person has nothing in their settings; who cannot have hooks then is told so."""
    believed = place == "root's" and os.getuid() == 0
    with ExitStack() as stack:
        if believed:  # the temporary folder is everybody's
            home = tempfile.TemporaryDirectory(dir=pwd.getpwuid(0).pw_dir)
            monkeypatch.setenv("RELAY_HOME", stack.enter_context(home))
            stack.callback(relay, "broker", "stop", status=None)
        agent = gated("gemini", binary_of("gemini"), tmp_path, model, own=False)
        ann = stack.enter_context(agent)
        told = ann.call("block")
        [row] = relay_json("status")["agents"]
        notes = [note for note in row["notes"] if "from root's files" in note]
        if believed:
            assert REASON in told and not ann.ran("block") and not notes
            turned(ann, "block")
            asking(ann, "ask")
            compacted(ann, COMPACTS["gemini"])
        else:
            tools, turns = notes
            assert "on_before_tool" in tools and "your own settings" in tools
            assert "on_before_agent, on_after_agent, on_notification, on_pre_compress" in turns
            assert ann.ran("block") and not ann.turns()


def observed(ann: GatedAgent, told: str, shell: str) -> None:
    assert "ran-case-observe" in told and ann.ran("observe")
    before, after = ann.log("observe")
    assert (before["hook_event_name"], after["hook_event_name"]) == ("BeforeTool", "AfterTool")
    for event in (before, after):
        assert event["tool_name"] == shell
        assert command("observe") in event["tool_input"].values()
        assert event["agent_name"] == "Ann" and event["cwd"] == str(ann.recipe.cwd)
    assert before["tool_use_id"] == after["tool_use_id"]
    assert "ran-case-observe" in str(after["tool_response"])
    stored = (
        "SELECT meta_json FROM events WHERE kind='tool_call' AND agent='Ann'"
        " AND meta_json LIKE '%case-observe%' ORDER BY seq"
    )
    wait_until(lambda: len(relay_json("ledger", "query", stored)) == 2, what="both in the ledger")
    calls = [json.loads(row["meta_json"])["meta"] for row in relay_json("ledger", "query", stored)]
    assert [(one["phase"], one["tool"]) for one in calls] == [("before", shell), ("after", shell)]
    assert command("observe") in calls[0]["input"].values()
    assert calls[0].get("id") == calls[1].get("id") and "ran-case-observe" in str(calls[1])


def turned(ann: GatedAgent, case: str) -> None:
    """A turn's prompt and its end are told of, once each, though tools were called between."""
    turn = [("BeforeAgent", f"please {case}"), ("AfterAgent", "Done.")]
    wait_until(lambda: len(ann.turns()) >= len(turn), what=f"{turn} in {ann.turns()}")
    assert ann.turns() == turn


def blocked(ann: GatedAgent, told: str) -> None:
    assert REASON in told
    assert not ann.ran("block")
    assert [event["hook_event_name"] for event in ann.log("block")] == ["BeforeTool"]


def rewritten(ann: GatedAgent, told: str) -> None:
    assert "ran-case-rewritten" in told
    assert ann.ran("rewritten") and not ann.ran("rewrite")


def commented(told: str) -> None:
    assert "ran-case-context" in told and CONTEXT in told and AFTERWARDS in told


def failing(ann: GatedAgent, told: str) -> None:
    """A hook that fails keeps the gate shut, and the model is told which and how."""
    assert "the hook is broken" in told
    assert not ann.ran("fail")


def asking(ann: GatedAgent, case: str, tells: bool = True) -> None:
    """The person is asked, by relay's hook or by the agent itself: no message answers for them,
    and they may refuse from a shell."""
    ann.ask(case)
    ann.wrapped.dialog()
    assert ("MARK-REASON" in ann.wrapped.terminal.text()) == (case == "ask")
    if tells:  # Claude Code tells of it when it was open for a while
        wait_until(lambda: ann.told("Notification", "permission_prompt"))
    refused(ann.wrapped, ann.model)
    ann.rest()
    assert not ann.ran(case)
    assert len(ann.told("Notification", "permission_prompt")) == tells


def compacted(ann: GatedAgent, command: str) -> None:
    """A compaction that the person wants is told of, once, and begins no turn."""
    prompts = len(ann.told("BeforeAgent"))
    ann.wrapped.ask(command)
    wait_until(lambda: ann.told("PreCompress", "manual"))
    ann.rest()
    assert len(ann.told("PreCompress")) == 1 and len(ann.told("BeforeAgent")) == prompts


def held(ann: GatedAgent) -> None:
    """A turn that a stranger begins is held to its permissions, and only that turn is."""
    ann.model.when("a stranger asks", Shell("touch asked"), times=1)
    with connect(Home.from_env()) as client:
        asked: dict[str, Any] = {
            "persona": "Ann",
            "body": "a stranger asks",
            "permissions": MINIMAL.to_json(),
        }
        client.request(by_name("dispatch"), **asked)
    words = "this turn may not use"
    wait_until(lambda: words in json.dumps([one.body for one in ann.model.requests]), 90)
    # A prompt of the person's within half a second of the turn's end would still belong to it.
    wait_until(lambda: relay_json("broker", "queue") == [], 60, "the turn's report")
    ann.rest()
    assert not (ann.recipe.cwd / "asked").exists()
    assert "ran-case-after" in ann.call("after") and ann.ran("after")


def inner(ann: GatedAgent, start: str) -> None:
    """The turns of another agent that the agent's shell starts are not told as its own."""
    wait_until(lambda: ann.turns()[-1][0] == "AfterAgent", what="the end of the turn before")
    turns = ann.turns()
    ann.model.when("words for another", Say("I am another."))
    line = f"{start} 'words for another' </dev/null >inner 2>&1"
    ann.model.when("please start$", Shell(line), times=1)
    ann.wrapped.ask("please start")
    own = [*turns, ("BeforeAgent", "please start"), ("AfterAgent", "Done.")]
    wait_until(lambda: ann.turns()[-1] == own[-1] and len(ann.turns()) >= len(own), 60)
    ann.rest()
    assert "I am another." in (ann.recipe.cwd / "inner").read_text()
    assert ann.turns() == own


def without_a_session(ann: GatedAgent) -> None:
    """A session that is killed while its hooks think lets nothing through; the next one works."""
    before = len(ann.model.requests)
    ann.ask("held")
    wait_until(lambda: ann.log("held"))
    kill_session(ann.wrapped.terminal)
    wait_until(lambda: len(ann.model.requests) >= before + 2, 90, "the tool's result")
    ann.rest()
    assert not ann.ran("held")
    assert "ran-case-again" in ann.call("again") and ann.ran("again")
    assert len(ann.log("again")) == 2
