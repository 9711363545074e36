"""``relay intent`` in the shell of a governed agent, and beside it for the person."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.hooked import hooked_agent
from tests.e2e.wrapped import relay, relay_json, wait_registered, wrapped
from tests.features.governance.e2e.test_governance import Agent, governed, reason, trace


def test_an_agent_selects_and_ends_its_intent_and_only_the_person_opens_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = governed(tmp_path)
    script = tmp_path / "bin" / "relay"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m relay "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    monkeypatch.chdir(project)
    target = project / "src" / "a.py"
    with wrapped([hooked_agent(tmp_path)], name="Bob", cwd=project, size=(24, 2000)) as program:
        agent = Agent(program)
        wait_registered("Bob")

        def shell(line: str) -> str:
            return agent.does(tool="Bash", input={"command": f"relay intent {line}"})

        assert "valid ids: INT-001" in shell("select INT-1")
        assert "an agent may only set" in shell("status INT-001 COMPLETE")  # it has not selected it
        assert "<scope>src/**</scope>" in shell("select INT-001")
        assert "INT-001  IN_PROGRESS  Bob" in shell("list")
        [listed] = relay_json("intent", "list")
        assert (listed["status"], listed["agents"]) == ("IN_PROGRESS", ["Bob"])
        assert agent.writes(target) == "written"
        assert shell("status INT-001 COMPLETE").strip() == "INT-001 is COMPLETE"
        assert "an agent may only set" in shell("status INT-001 IN_PROGRESS")
        assert "only the person" in shell("select INT-001")
        assert reason(agent.writes(target)) == "INTENT_INACTIVE"
        relay("intent", "status", "INT-001", "IN_PROGRESS")
        chosen = relay("intent", "select", "INT-001", "--agent", "Bob")
        assert chosen == "Bob works on INT-001 from now on\n"
        assert agent.writes(target) == "written"
        changed = [row for row in trace(project) if row["metadata"].get("event") == "status"]
        assert [(row["agent"], row["metadata"]["to"]) for row in changed] == [
            ("Bob", "COMPLETE"),
            ("", "IN_PROGRESS"),
        ]
