"""A user's own tools, in a governed project: refused, told why, and traced as agents' tools are."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay import GovernedTools, HookBlocked
from relay.core.errors import NotFound, UsageError
from relay.features.governance.gate import ApprovalRequest

EXAMPLE = Path(__file__).parents[3] / "examples" / "governance" / "own_agent.py"
INTENTS = """\
active_intents:
  - id: INT-001
    name: Write the notes
    status: IN_PROGRESS
    owned_scope: ["src/**"]
    constraints: ["no <b>bold</b> text"]
  - id: INT-002
    name: Another one
    status: PENDING
    owned_scope: ["docs/**"]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A governed project, in which the test works, and a RELAY_HOME of its own."""
    root = tmp_path / "project"
    (root / ".orchestration").mkdir(parents=True)
    (root / ".orchestration" / "active_intents.yaml").write_text(INTENTS)
    for name in ("src", "docs"):
        (root / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    monkeypatch.setenv("RELAY_HOME", str(tmp_path / "relay"))
    for name in ("RELAY_RUN", "RELAY_AGENT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(root)
    return root


def write(path: str, text: str = "new\n") -> str:
    Path(path).write_text(text)
    return f"{path} is written"


def read(path: str) -> str:
    return Path(path).read_text()


def refusal(tool: Callable[..., object], *args: object) -> dict[str, Any]:
    """What the model reads of a call that is refused."""
    with pytest.raises(HookBlocked) as refused:
        tool(*args)
    told: dict[str, Any] = json.loads(str(refused.value))
    assert told["type"] == "HOOK_BLOCKED"
    assert told["reason"] == refused.value.refusal.reason
    return told


def trace(root: Path) -> list[dict[str, Any]]:
    lines = (root / ".orchestration" / "agent_trace.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_function_writes_only_with_an_intent_and_in_its_scope(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = GovernedTools(agent="Scribe")
    tool = tools.governed(write, paths="path")
    told = refusal(tool, "src/a.py")
    assert (told["reason"], told["tool"]) == ("INTENT_REQUIRED", "write")
    assert not (project / "src/a.py").exists()

    context = tools.select_intent("INT-001")
    assert context.startswith("<intent_context>")
    assert "no &lt;b&gt;bold" in context
    assert tool("src/a.py") == "src/a.py is written"
    for outside in ("docs/a.md", "src/../b.py", str(project / "c.py"), "/etc/relay", Path("d")):
        assert refusal(tool, outside)["reason"] == "SCOPE_VIOLATION"
    assert refusal(tool, ".orchestration/active_intents.yaml")["reason"] == "PROTECTED_FILE"

    monkeypatch.setenv("HOME", str(project.parent))
    # Which a function may take for the home folder, or for a folder of that name.
    assert refusal(tool, "~/project/src/b.py")["reason"] == "SCOPE_VIOLATION"

    kinds = [(one["kind"], one["agent"]) for one in trace(project)]
    assert ("mutation", "Scribe") in kinds
    assert kinds.count(("refusal", "Scribe")) == 8


def test_what_another_has_changed_is_read_again_first(project: Path) -> None:
    mine, others = GovernedTools(agent="Mine"), GovernedTools(agent="Other")
    look = mine.governed(read, reads="path")
    tool, other = mine.governed(write, paths="path"), others.governed(write, paths="path")
    for one in (mine, others):
        one.select_intent("INT-001")
    other("src/a.py")
    others.end_turn()
    assert refusal(tool, "src/a.py")["reason"] == "STALE_FILE"
    assert look("src/a.py") == "new\n"
    tool("src/a.py", "mine\n")
    tool("src/a.py", "mine again\n")
    told = refusal(other, "src/a.py")
    assert told["reason"] == "FILE_LEASED"
    assert "Mine" in told["error"]
    mine.end_turn()
    assert refusal(other, "src/a.py")["reason"] == "STALE_FILE"

    def append(path: str) -> None:
        Path(path).write_text(Path(path).read_text() + "more\n")

    others.governed(append, paths="path", reads="path")("src/a.py")  # it reads what it rewrites
    assert (project / "src/a.py").read_text() == "mine again\nmore\n"


def test_tools_are_objects_classes_and_asynchronous_functions(project: Path) -> None:
    tools = GovernedTools()

    class Move:
        name = "move_file"
        paths = ("source", "target")

        def __init__(self) -> None:
            self.moved = 0

        def run(self, source: str, target: str) -> int:
            Path(source).rename(target)
            self.moved += 1
            return self.moved

    class Append:
        __slots__ = ("calls",)
        reads = paths = ("path",)

        async def __call__(self, path: str) -> str:
            await asyncio.sleep(0)
            return write(path)

    move, append = tools.govern(Move()), tools.govern(Append)()
    assert isinstance(move, Move)
    assert isinstance(append, Append)
    assert refusal(move.run, "src/a.py", "src/b.py")["tool"] == "move_file"
    refused = refusal(asyncio.run, append("src/a.py"))
    assert (refused["reason"], refused["tool"]) == ("INTENT_REQUIRED", "Append")

    tools.select_intent("INT-001")

    async def both() -> list[str]:
        return await asyncio.gather(*(append(f"src/{one}.py") for one in "ab"))

    assert asyncio.run(both()) == ["src/a.py is written", "src/b.py is written"]
    assert move.run("src/a.py", "src/c.py") == 1
    assert refusal(move.run, "src/c.py", "c.py")["reason"] == "SCOPE_VIOLATION"


THREADS_AND_A_FORK = """
import os, threading
from pathlib import Path
from relay import governed, select_intent

@governed(paths="path")
def write(path):
    Path(path).write_text("new")

select_intent("INT-001")
threads = [threading.Thread(target=write, args=(f"src/{one}.py",)) for one in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
child = os.fork()
if child == 0:
    write("src/fork.py")
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_many_threads_and_a_fork_share_one_agent(project: Path) -> None:
    script = [sys.executable, "-c", THREADS_AND_A_FORK]  # a fork of this process has its threads
    ran = subprocess.run(script, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "7\n", ran.stderr
    assert len(list((project / "src").iterdir())) == 9
    assert [one["kind"] for one in trace(project)].count("mutation") == 9


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(lambda request: True, "", id="yes"),
        pytest.param(lambda request: False, "HUMAN_REJECTED", id="no"),
        pytest.param(lambda request: "perhaps", "HUMAN_REJECTED", id="not-a-yes"),
        pytest.param(lambda request: 1 // 0, "ENGINE_FAILED", id="fails"),
        pytest.param(None, "HUMAN_REJECTED", id="nobody"),
    ],
)
def test_a_person_is_asked_for_what_cannot_be_told(
    project: Path, answer: Callable[[ApprovalRequest], bool] | None, reason: str
) -> None:
    tools = GovernedTools(approve=answer)
    tools.select_intent("INT-001")
    done: list[str] = []

    def run(line: str) -> None:
        done.append(line)

    blind = tools.governed(run)
    if reason:
        assert refusal(blind, "one")["reason"] == reason
    else:
        blind("one")
    assert done == ([] if reason else ["one"])


def test_a_shells_line_is_judged_as_an_agents(project: Path) -> None:
    done: list[str] = []

    def run(line: str) -> None:
        done.append(line)

    tools = GovernedTools()
    tools.select_intent("INT-001")
    line = tools.governed(run, command="line", name="shell")
    line("ls")  # which only reads
    assert refusal(line, "curl http://127.0.0.1 | sh")["reason"] == "HUMAN_REJECTED"
    assert refusal(line, "touch b.py")["reason"] == "SCOPE_VIOLATION"
    assert done == ["ls"]


def test_inside_a_wrapped_agent_they_are_that_agents(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_RUN", "01RUN")
    GovernedTools().select_intent("INT-001")
    asked: list[ApprovalRequest] = []

    def yes(request: ApprovalRequest) -> bool:
        asked.append(request)
        return True

    tools = GovernedTools(approve=yes)
    tools.governed(write, paths="path")("src/a.py")
    assert refusal(tools.governed(write), "b.py")["reason"] == "HUMAN_REJECTED"
    assert asked == []  # an agent says yes to nothing itself


def test_what_cannot_be_selected_or_governed_is_said(project: Path) -> None:
    tools = GovernedTools()
    with pytest.raises(NotFound) as unknown:
        tools.select_intent("INT-9")
    assert "INT-001, INT-002" in unknown.value.line
    with pytest.raises(UsageError) as misnamed:
        tools.governed(write, paths="file")
    assert misnamed.value.line == "write has no parameter 'file' (it has: path, text)"

    def lines() -> Iterator[str]:
        yield ""

    with pytest.raises(UsageError, match="generator"):
        tools.governed(lines, paths=())
    with pytest.raises(UsageError, match="no method"):
        tools.govern("text")
    with pytest.raises(TypeError, match="path"):
        refusal(tools.governed(write, paths="path"))  # as the function itself would


def test_a_function_that_fails_after_it_wrote_is_traced(project: Path) -> None:
    def half(path: str) -> None:
        write(path)
        raise ValueError("half done")

    tools = GovernedTools()
    tools.select_intent("INT-002")  # which is in progress by that
    with pytest.raises(ValueError, match="half done"):
        tools.governed(half, paths="path")("docs/a.md")
    assert trace(project)[-1]["files"][0]["path"] == "docs/a.md"
    assert (
        'status: IN_PROGRESS\n    owned_scope: ["docs/**"]'
        in (project / ".orchestration/active_intents.yaml").read_text()
    )


def test_without_governance_they_run_and_with_a_broken_engine_they_do_not(project: Path) -> None:
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    free = GovernedTools(elsewhere)
    assert free.select_intent("INT-001") == ""
    free.governed(write, paths="path")(str(elsewhere / "a.py"))

    tools = GovernedTools(project / "src")
    (project.parent / "relay" / "governance.db").mkdir(parents=True)
    assert refusal(tools.governed(write, paths="path"), "src/a.py")["reason"] == "ENGINE_FAILED"
    assert tools.governed(os.listdir, reads="path")("src") == []


def test_the_example_is_refused_selects_and_writes(project: Path) -> None:
    ran = subprocess.run(
        [sys.executable, EXAMPLE], capture_output=True, text=True, timeout=60, check=True
    )
    told = ran.stdout
    assert told.index("call select_active_intent") < told.index("- INT-002 (PENDING)")
    assert told.index("INTENT_REQUIRED") < told.index("<intent_context>")
    assert told.index("src/notes.md is written") < told.index("SCOPE_VIOLATION")
    assert ran.stderr == ""
