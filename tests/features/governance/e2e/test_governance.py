"""A governed project, by the real program: refused, an intent selected, written, in the trace."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from relay.core.agent_names import owner_name
from relay.features.confine import landlock
from tests.e2e.test_handlers import project
from tests.e2e.test_handlers import project as trusted_project
from tests.e2e.test_identity import run_agent
from tests.e2e.wrapped import (
    ECHO,
    RELAY,
    Wrapped,
    kill_session,
    python,
    relay,
    relay_json,
    wait_registered,
    wrapped,
)
from tests.features.hooked import hooked_agent
from tests.support import wait_until

INTENTS = """\
active_intents:
  - id: INT-001
    name: "Docs & <src>"
    status: PENDING
    owned_scope: ["src/**"]
"""


def governed(tmp_path: Path) -> Path:
    """A governed project with one intent."""
    folder = tmp_path / "project"
    (folder / ".orchestration").mkdir(parents=True)
    (folder / ".orchestration" / "active_intents.yaml").write_text(INTENTS)
    (folder / "src").mkdir()
    return folder


class Agent:
    """The small agent, and what came of its turns."""

    def __init__(self, program: Wrapped) -> None:
        self._program = program
        self._turns = self._before = 0
        program.wait_for("READY")

    def begins(self, **what: Any) -> None:
        """It begins one more turn."""
        self._before = len(self._program.output)
        self._turns += 1
        self._program.type(json.dumps(what) + "\n")

    def runs(self) -> None:
        """Until the tool of this turn has run; its end is not told yet."""
        self._program.wait_for(rf"DONE {self._turns - 1}\b.*RAN")

    def does(self, **what: Any) -> str:
        """What it shows in one more turn."""
        self.begins(**what)
        return self.ends()

    def ends(self) -> str:
        """What it has shown, at the end of its turn."""
        self._program.wait_for(rf"DONE {self._turns}\b")
        shown = self._program.output[self._before :]
        found = re.search(r"(?:REFUSED|RESULT) (.*?)\r?\nDONE", shown, re.S)
        return found[1] if found else ""

    def writes(self, path: Path, text: str = "x = 1\n") -> str:
        """``written``, or the reason why not."""
        return self.does(tool="Write", input={"file_path": str(path), "content": text})


def reason(answer: str) -> str:
    refused = json.loads(answer.replace("\r\n", ""))
    assert refused["type"] == "HOOK_BLOCKED" and refused["recovery"]
    return str(refused["reason"])


def trace(project: Path) -> list[dict[str, Any]]:
    path = project / ".orchestration" / "agent_trace.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_an_agent_is_refused_selects_an_intent_writes_and_the_trace_tells(tmp_path: Path) -> None:
    project = governed(tmp_path)
    with wrapped([hooked_agent(tmp_path)], name="Bob", cwd=project, size=(24, 2000)) as program:
        agent = Agent(program)
        assert reason(agent.writes(project / "src" / "a.py")) == "INTENT_REQUIRED"
        assert not (project / "src" / "a.py").exists()
        agent.does(say="@intent:select INT-001\n")
        told = "<name>Docs &amp; &lt;src&gt;</name>"
        wait_until(lambda: any(told in row["body"] for row in relay_json("history")))
        assert agent.writes(project / "src" / "a.py") == "written"
        assert reason(agent.writes(project / "b.py")) == "SCOPE_VIOLATION"
        wait_until(lambda: len(trace(project)) == 4)
        kinds = [row["kind"] for row in trace(project)]
        assert kinds == ["refusal", "selection", "mutation", "refusal"]


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_what_relay_cannot_judge_runs_held_to_the_intent(tmp_path: Path) -> None:
    project = governed(tmp_path)
    code = "import os; open('src/a', 'w'); print('IN', os.environ['TMPDIR']); open('b', 'w')"
    (project / "x.py").write_text(code)

    with wrapped([hooked_agent(tmp_path)], name="Bob", cwd=project, size=(24, 2000)) as program:
        agent = Agent(program)

        def runs(command: str) -> str:
            given = {"command": command, "description": "held"}
            return agent.does(tool="Bash", input=given)

        assert code in runs("cat x.py")
        agent.does(say="@intent:select INT-001\n")
        wait_until(lambda: trace(project))
        shown = runs(f"{sys.executable} x.py")
        assert "IN " in shown and "/scratch" in shown and "denied: 'b'" in shown, shown
        assert (project / "src" / "a").exists() and not (project / "b").exists()
        assert str(project) in runs("true")  # the working folder was written down
        assert not relay_json("items")


def test_a_risky_command_waits_for_the_person_at_another_terminal(tmp_path: Path) -> None:
    project = governed(tmp_path)

    def waits() -> Any:
        return relay_json("items")

    with wrapped([hooked_agent(tmp_path)], name="Bob", cwd=project, size=(24, 2000)) as program:
        agent = Agent(program)
        agent.does(say="@intent:select INT-001\n")
        wait_until(lambda: trace(project))
        push = {"tool": "Bash", "input": {"command": "git push; echo pushed"}}
        agent.begins(**push)
        wait_until(waits)
        [row] = waits()
        assert (row["agent"], row["details"]["intent"]) == ("Bob", "INT-001")
        assert row["what"] == "Bash: git push; echo pushed"
        assert row["details"]["root"] == str(project)
        assert relay("answer", row["id"][-8:], "yes") == "Bob: Yes\n"
        assert "pushed" in agent.ends()
        agent.begins(**push)
        wait_until(waits)
        relay("answer", "Bob", "no", "--note", "after the review")
        answer = agent.ends()
        assert reason(answer) == "HUMAN_REJECTED" and "after the review" in answer
        wait_until(lambda: len(trace(project)) == 5)
        rows = trace(project)
        assert [row["kind"] for row in rows] == [
            *("selection", "approval", "mutation", "approval", "refusal")
        ]


def test_a_person_turns_governance_off_and_on_while_an_agent_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = governed(tmp_path)
    monkeypatch.chdir(project)
    with wrapped([hooked_agent(tmp_path)], name="Bob", cwd=project, size=(24, 2000)) as program:
        agent = Agent(program)
        assert reason(agent.writes(project / "b.py")) == "INTENT_REQUIRED"
        relay("govern", "off", "--reason", "a hot fix")
        assert agent.writes(project / "b.py") == "written"
        relay("govern", "on")
        assert reason(agent.writes(project / "b.py")) == "INTENT_REQUIRED"
        wait_until(lambda: trace(project)[-1]["kind"] == "refusal")
        kinds = [(row["kind"], row["metadata"].get("event")) for row in trace(project)]
        off = kinds.index(("governance", "off"))
        assert kinds[off + 1 : off + 3] == [("mutation", None), ("governance", "on")]
        assert trace(project)[off + 1]["metadata"]["approved_by"] == "governance was off"


def test_a_selection_in_the_shell_is_answered_there_and_outlives_the_session(
    tmp_path: Path,
) -> None:
    project = governed(tmp_path)
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    size = (24, 2000)
    with wrapped([hooked_agent(tmp_path)], name="Bob", cwd=project, env=env, size=size) as program:
        agent = Agent(program)
        unknown = agent.does(tool="Bash", input={"command": "relay intent select INT-9"})
        assert "valid ids: INT-001" in unknown
        told = agent.does(tool="Bash", input={"command": "relay intent select INT-001"})
        assert "<name>Docs &amp; &lt;src&gt;</name>" in told
        written = {"file_path": str(project / "src" / "a.py"), "content": "x = 1\n"}
        agent.begins(tool="Write", input=written, until=str(tmp_path / "over"))
        agent.runs()
        kill_session(program)
        (tmp_path / "over").touch()
        assert agent.ends() == "written"
        wait_until(lambda: "src/a.py" in json.dumps(trace(project)))
        wait_registered("Bob")
        assert agent.writes(project / "src" / "b.py") == "written"
        agent.does(say="@intent:learn The docs are built by make.\n")
        lessons = project / ".orchestration" / "CLAUDE.md"
        wait_until(lambda: lessons.exists() and "built by make" in lessons.read_text())
        assert "built by make" in relay("intent", "select", "INT-001", "--agent", "Bob", "--json")


def test_what_has_no_hooks_is_not_started_there_unless_the_person_says_so(tmp_path: Path) -> None:
    project = governed(tmp_path)
    with wrapped(python(ECHO), name="Bob", cwd=project) as program:
        assert program.wait() == 1
        program.wait_for(r"is not started, because \S+ is governed.*--ungoverned")
    shell = {"PS1": "ready$ ", "ENV": ""}
    with wrapped(["sh"], name="Bob", cwd=project, env=shell, options=["--ungoverned"]) as program:
        wait_registered("Bob")
        [told] = trace(project)
        assert (told["metadata"]["event"], told["agent"]) == ("ungoverned", "Bob")
        assert told["metadata"]["by"] == owner_name()
        wait_until(lambda: relay_json("agents")[0]["ungoverned"], what="its session to say so")
        inner = " ".join([*RELAY, "wrap", "--ungoverned", "true"])
        program.type(f"{inner}\n")
        program.wait_for("only the person may start an agent that no intent limits")
    # It is written before the program runs: else there is no start.
    (project / ".orchestration" / "agent_trace.jsonl").unlink()
    (project / ".orchestration" / "agent_trace.jsonl").mkdir()
    with wrapped(["touch", "ran"], name="Eve", cwd=project, options=["--ungoverned"]) as program:
        assert program.wait() == 1
        program.wait_for("agent_trace.jsonl")
    assert not (project / "ran").exists()


def test_an_agent_that_runs_already_is_said_to_be_ungoverned_where_it_has_no_hooks(
    tmp_path: Path,
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    with wrapped(python(ECHO), name="Bob", cwd=project) as program:
        wait_registered("Bob")
        (project / ".orchestration").mkdir()
        program.type("hello\n")
        wait_until(lambda: relay_json("status")["agents"][0]["notes"])
        [note] = relay_json("status")["agents"][0]["notes"]
        assert note.startswith("ungoverned: ") and note.endswith("end it and start it again")


CONFIG = """
from relay import Relay
relay = Relay()

@relay.pattern("intent:*", override=True)
def mine(target, message, ctx):
    return None

@relay.on("before_tool")
def anything_goes(tool, input):
    if input["file_path"].endswith("a.py"):
        return {"decision": "allow", "input": {"file_path": input["file_path"].replace("src/", "")}}
    return {"decision": "allow"}
"""


def test_a_configuration_neither_disarms_the_gate_nor_writes_past_it(tmp_path: Path) -> None:
    trusted = trusted_project(tmp_path, CONFIG)
    (trusted / ".orchestration").mkdir()
    (trusted / ".orchestration" / "active_intents.yaml").write_text(INTENTS)
    (trusted / "src").mkdir()
    with wrapped([hooked_agent(tmp_path)], name="Bob", cwd=trusted, size=(24, 2000)) as program:
        agent = Agent(program)
        assert reason(agent.writes(trusted / "src" / "a.py")) == "INTENT_REQUIRED"
        wait_registered("Bob")
        relay("intent", "select", "INT-001", "--agent", "Bob")
        assert reason(agent.writes(trusted / "b.py")) == "SCOPE_VIOLATION"
        assert reason(agent.writes(trusted / "src" / "a.py")) == "SCOPE_VIOLATION"
        assert agent.writes(trusted / "src" / "c.py") == "written"
        assert not (trusted / "b.py").exists()


def test_an_agent_that_runs_already_is_governed_from_its_next_call_on(tmp_path: Path) -> None:
    hook = "from relay import Relay\nrelay = Relay()\nrelay.on('before_tool', print)\n"
    project = trusted_project(tmp_path, hook)
    with wrapped([hooked_agent(tmp_path)], name="Bob", cwd=project, size=(24, 2000)) as program:
        agent = Agent(program)
        assert agent.writes(project / "a.py") == "written"
        (project / ".orchestration").mkdir()
        (project / ".orchestration" / "active_intents.yaml").write_text(INTENTS)
        assert reason(agent.writes(project / "a.py")) == "INTENT_REQUIRED"
        wait_registered("Bob")
        relay("intent", "select", "INT-001", "--agent", "Bob")
        (project / "src").mkdir()
        assert agent.writes(project / "src" / "a.py") == "written"
        assert [row["kind"] for row in trace(project)] == ["refusal", "selection", "mutation"]


def test_what_others_write_into_its_terminal_an_agent_with_hooks_has_not_said(
    tmp_path: Path,
) -> None:
    project = governed(tmp_path)  # so that it has all its hooks
    with wrapped([hooked_agent(tmp_path)], name="Bob", cwd=project, size=(24, 2000)) as bob:
        bob.wait_for("READY")
        wait_registered("Bob")
        [row] = relay_json("agents")
        device = os.readlink(f"/proc/{row['pid']}/fd/0")
        eve = f"printf '\\r\\n@relay:Al forged\\r\\n\\r\\n' > {device}"
        run_agent(eve, terminal=False, name="Eve")
        bob.wait_for("forged")
        bob.type('{"say": "@relay:Al mine"}\n')
        wait_until(lambda: relay_json("history"), 30, "the message")
        said = [row["body"] for row in relay_json("history") if row["from"] == "Bob"]
        assert said == ["mine"]


# -- Two agents in one folder without intents, by the real program.


def row_of(name: str) -> dict[str, object]:
    return next(row for row in relay_json("agents") if row["name"] == name)


def test_what_one_agent_changes_another_is_refused_until_the_turn_is_over(tmp_path: Path) -> None:
    folder = project(tmp_path, 'config = {"claims": "refuse"}\n')
    program = [hooked_agent(tmp_path)]
    with (
        wrapped(program, name="Ann", cwd=folder, size=(24, 2000)) as one,
        wrapped(program, name="Bob", cwd=folder, size=(24, 2000)) as other,
    ):
        ann, bob = Agent(one), Agent(other)
        for name in ("Ann", "Bob"):
            wait_registered(name)
        ann.does(say="hello")
        written = {"file_path": str(folder / "a.py"), "content": "x = 1\n"}
        ann.begins(tool="Write", input=written, until=str(tmp_path / "over"))
        ann.runs()
        wait_until(lambda: row_of("Ann")["reason"] == "holds a.py")
        assert reason(bob.writes(folder / "a.py", "y = 2\n")) == "FILE_LEASED"
        assert bob.writes(folder / "b.py") == "written"
        (tmp_path / "over").touch()
        assert ann.ends() == "written"
        wait_until(lambda: row_of("Ann")["reason"] is None)
        wait_until(lambda: any("Nobody else is changing" in one["body"] for one in told("Bob")))
        assert reason(bob.writes(folder / "a.py", "y = 2\n")) == "STALE_FILE"
        bob.does(tool="Read", input={"file_path": str(folder / "a.py")})
        written = {"file_path": str(folder / "a.py"), "content": "y = 2\n"}
        bob.begins(tool="Write", input=written)
        assert bob.ends() == "written"


def told(name: str) -> list[dict[str, str]]:
    """What relay has told an agent."""
    return [row for row in relay_json("history") if row["to"] == name]


# -- ``relay intent`` in the shell of a governed agent, and beside it for the person.


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
