"""The gate: each reason for a refusal, with real files, and what is told of a call that goes on.

Two agents are two gates on one store, as two sessions have it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.agents.hook_codec import AgentHookCall
from relay.agents.tool_uses import RELAY_TOOLS, ToolUse, UseKind
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.features.governance.call_plan import GateCall, GovernedRun, gate_call
from relay.features.governance.gate import ApprovalAnswer, ApprovalRequest, Gate
from relay.features.governance.governance_store import GovernanceStore
from relay.features.governance.orchestration import IntentsFile
from relay.features.governance.refusals import Reason, Refusal
from relay.features.governance.trace import Trace
from relay.features.mcp.mcp_tools import TOOLS
from relay.hooks.events import HookEventName

INTENTS = """\
active_intents:
  - id: INT-001
    name: Login
    status: IN_PROGRESS
    owned_scope: ["src/**", "!src/secret/**"]
  - id: INT-002
    name: Later
    status: PENDING
    owned_scope: [docs/**]
  - id: INT-003
    name: Done
    status: COMPLETE
    owned_scope: ["**"]
"""


class Person:
    """Answers what is asked, and keeps it."""

    def __init__(self, answer: ApprovalAnswer) -> None:
        self.answer = answer
        self.asked: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> ApprovalAnswer:
        self.asked.append(request)
        return self.answer


class Project:
    """A governed folder, with what relay knows of it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        (self.root / ".orchestration").mkdir(parents=True)
        (self.root / "src").mkdir()
        self.write(".orchestration/active_intents.yaml", INTENTS)
        self.store = GovernanceStore.open(Home(str(folder / "home")))
        self.trace = Trace(str(self.root), self.store)
        self.person = Person(ApprovalAnswer(True, "you"))
        self.now = 1_000_000

    def write(self, path: str, text: str) -> None:
        (self.root / path).write_text(text)

    def agent(self, name: str, cwd: str = "", scratch: tuple[str, ...] = ()) -> Agent:
        root, place = str(self.root), str(self.root / cwd)
        run = GovernedRun(f"run-{name}", name, root, place, os.getpid(), scratch=scratch)
        gate = Gate(
            run,
            intents=IntentsFile(str(self.root)),
            store=self.store,
            trace=self.trace,
            approver=self.person,
            now_ms=lambda: self.now,
        )
        return Agent(gate)

    @property
    def told(self) -> list[dict[str, Any]]:
        """The trace."""
        return [record for _, record in self.trace.records()]


class Agent:
    """One agent, by its gate."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.calls = 0

    def select(self, intent: str = "INT-001") -> Agent:
        asyncio.run(self.gate.select(intent))
        return self

    def asks(self, use: ToolUse, tool: str = "Tool", cwd: str = "") -> Refusal | None:
        return asyncio.run(self.gate.before(self.call(use, tool, cwd)))

    def call(self, use: ToolUse, tool: str = "Tool", cwd: str = "") -> GateCall:
        self.calls += 1
        return GateCall(tool, use, str(self.calls), cwd)

    def reads(self, path: str) -> None:
        assert self.asks(ToolUse(UseKind.READ, reads=(path,)), "Read") is None

    def runs(self, command: str) -> Refusal | None:
        return self.asks(ToolUse(UseKind.EXECUTE, command=command), "Bash")

    def writes(self, path: str) -> Refusal | None:
        return self.asks(ToolUse(UseKind.WRITE, writes=(path,)), "Write")

    def has_written(self, path: str, text: str) -> None:
        call = self.call(ToolUse(UseKind.WRITE, writes=(path,)), "Write")
        assert asyncio.run(self.gate.before(call)) is None
        Path(self.gate.run.root, path).write_text(text)
        asyncio.run(self.gate.after(call))

    def ends_turn(self) -> None:
        asyncio.run(self.gate.turn_ended())


def reason(refusal: Refusal | None) -> Reason | None:
    return refusal.reason if refusal else None


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.store.close()


def test_reading_needs_no_intent_and_writing_does(project: Project) -> None:
    bob = project.agent("Bob")
    project.write("src/a.py", "1\n")
    bob.reads("src/a.py")
    refusal = bob.writes("src/a.py")
    assert refusal is not None and refusal.reason is Reason.INTENT_REQUIRED
    said = json.loads(refusal.text("Write"))
    assert said["type"] == "HOOK_BLOCKED" and said["tool"] == "Write"
    assert "INT-001 (Login); INT-002 (Later)" in said["recovery"][0]
    assert "relay intent select INT-001" in said["recovery"][1]
    assert bob.select().writes("src/a.py") is None


def test_an_intent_is_selected_while_it_may_be_worked_on(project: Project) -> None:
    bob = project.agent("Bob")
    with pytest.raises(RelayError, match="INT-9.*INT-001, INT-002"):
        bob.select("INT-9")
    with pytest.raises(RelayError, match="COMPLETE"):
        bob.select("INT-003")
    assert bob.gate.selected() is None
    bob.select("INT-002")
    chosen = bob.gate.selected()
    assert chosen is not None and chosen.id == "INT-002"
    assert (
        "status: IN_PROGRESS" in (project.root / ".orchestration/active_intents.yaml").read_text()
    )
    # Another session of the same run goes on with it; the end of the agent ends it.
    assert project.agent("Bob").writes("docs/new.md") is None
    asyncio.run(bob.gate.ended())
    assert reason(bob.writes("docs/new.md")) is Reason.INTENT_REQUIRED


@pytest.mark.parametrize(
    "text, expected",
    [
        (INTENTS.replace("IN_PROGRESS", "BLOCKED"), Reason.INTENT_INACTIVE),
        (INTENTS.replace("INT-001", "INT-010"), Reason.INTENT_INACTIVE),
        ("active_intents: [", Reason.INTENTS_INVALID),
        (None, Reason.INTENTS_INVALID),
    ],
    ids=["blocked", "vanished", "broken", "removed"],
)
def test_an_intent_that_is_none_any_more_allows_nothing(
    project: Project, text: str | None, expected: Reason
) -> None:
    bob = project.agent("Bob").select()
    if text is None:
        (project.root / ".orchestration").rename(project.root / "moved")
    else:
        project.write(".orchestration/active_intents.yaml", text)
    assert reason(bob.writes("src/new.py")) is expected
    bob.reads("src")


@pytest.mark.parametrize(
    "path, expected",
    [
        ("src/new/deep.py", None),
        ("src/../src/x.py", None),
        ("README.md", Reason.SCOPE_VIOLATION),
        ("src/../README.md", Reason.SCOPE_VIOLATION),
        ("src/secret/key.py", Reason.SCOPE_VIOLATION),
        ("../elsewhere.py", Reason.SCOPE_VIOLATION),
        ("~/.bashrc", Reason.SCOPE_VIOLATION),
        ("/etc/passwd", Reason.SCOPE_VIOLATION),
        ("src/away/file", Reason.SCOPE_VIOLATION),
        ("src/alias.md", Reason.SCOPE_VIOLATION),
        ("link-to-src/x.py", None),
        ("src/deeper/../../../x.py", Reason.SCOPE_VIOLATION),
        (".", Reason.SCOPE_VIOLATION),
        ("src/.git/config", Reason.PROTECTED_FILE),
        (".ORCHESTRATION/active_intents.yaml", Reason.PROTECTED_FILE),
        ("src/rules/active_intents.yaml", Reason.PROTECTED_FILE),
        ("src/a\0b", Reason.SCOPE_VIOLATION),
        ("/proc/self/cwd/src/x", Reason.SCOPE_VIOLATION),
        ("src/\udcff.py", None),
        ("src/\ud800.py", Reason.SCOPE_VIOLATION),
    ],
    ids=lambda value: ascii(value)[:24],
)
def test_every_path_is_where_it_really_is(
    project: Project, path: str, expected: Reason | None
) -> None:
    (project.root / "README.md").write_text("")
    (project.root / "src/away").symlink_to("/tmp")
    (project.root / "src/alias.md").symlink_to("../README.md")
    (project.root / "src/rules").symlink_to("../.orchestration")
    (project.root / "link-to-src").symlink_to("src")
    (project.root / "src/1/2/3").mkdir(parents=True)
    (project.root / "src/deeper").symlink_to("1/2/3")
    assert reason(project.agent("Bob").select().writes(path)) is expected


def test_two_cases_of_a_name_are_one_file_where_the_disk_says_so(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.features.governance.gate.folds_case", lambda root: True)
    bob, amy = project.agent("Bob").select(), project.agent("Amy").select()
    assert bob.writes("src/new.py") is None
    assert reason(amy.writes("SRC/New.py")) is Reason.FILE_LEASED
    assert reason(amy.writes("src/Secret/key.py")) is Reason.SCOPE_VIOLATION


def test_words_that_are_no_text_are_refused_and_told(project: Project) -> None:
    project.person.answer = ApprovalAnswer(False)
    bob = project.agent("Bob").select()
    assert reason(bob.runs("git push '\ud800\udcff'")) is Reason.HUMAN_REJECTED
    assert reason(bob.runs("echo \ud800 > /x\udcff")) is Reason.SCOPE_VIOLATION
    assert [one["kind"] for one in project.told[1:]] == ["approval", "refusal", "refusal"]


def test_a_path_is_relative_to_where_the_call_works(project: Project) -> None:
    bob = project.agent("Bob", "src").select()
    use = ToolUse(UseKind.WRITE, writes=("x.py",))
    assert bob.asks(use) is None
    assert reason(bob.asks(use, cwd=str(project.root))) is Reason.SCOPE_VIOLATION
    elsewhere = ToolUse(UseKind.EXECUTE, command="touch x.py", cwd="..")
    assert reason(bob.asks(elsewhere)) is Reason.SCOPE_VIOLATION


def test_all_paths_of_a_call_count(project: Project) -> None:
    bob = project.agent("Bob").select()
    patch = ToolUse(UseKind.WRITE, writes=("src/a", "src/b"), deletes=("README.md",))
    refusal = bob.asks(patch)
    assert refusal is not None and '"README.md"' in refusal.error
    move = ToolUse(UseKind.MOVE, moves=(("src/a", "a"),))
    assert reason(bob.asks(move)) is Reason.SCOPE_VIOLATION


def test_a_file_must_be_as_it_was_read(project: Project) -> None:
    bob, amy = project.agent("Bob").select(), project.agent("Amy").select()
    project.write("src/a.py", "1\n")
    assert "exists, and you have not read it" in str(bob.writes("src/a.py"))
    bob.reads("src/a.py")
    amy.reads("src/a.py")
    bob.has_written("src/a.py", "2\n")
    bob.ends_turn()
    refusal = amy.writes("src/a.py")
    assert refusal is not None and refusal.reason is Reason.STALE_FILE
    assert refusal.error == '"src/a.py" was modified since you last read it.'
    amy.reads("src/a.py")
    assert amy.writes("src/a.py") is None
    # What one has written oneself one knows; what somebody has removed one does not.
    assert reason(bob.writes("src/a.py")) is Reason.FILE_LEASED
    amy.ends_turn()
    assert bob.writes("src/a.py") is None
    os.unlink(project.root / "src/a.py")
    assert reason(bob.writes("src/a.py")) is Reason.STALE_FILE
    bob.reads("src/a.py")
    assert bob.writes("src/a.py") is None


def test_a_shell_that_shows_a_file_has_read_it(project: Project) -> None:
    bob = project.agent("Bob").select()
    project.write("src/a.py", "1\n")
    assert bob.runs("cat src/a.py") is None
    assert bob.runs("rm src/a.py") is None
    project.write("src/b.py", "1\n")
    # Not by the same line: its author had not seen it.
    assert reason(bob.runs("cat src/b.py; echo 2 > src/b.py")) is Reason.STALE_FILE


def test_one_changes_a_file_at_a_time(project: Project) -> None:
    bob, amy = project.agent("Bob").select(), project.agent("Amy").select()
    assert bob.writes("src/new.py") is None
    project.now += 7000
    refusal = amy.asks(ToolUse(UseKind.WRITE, writes=("src/other.py", "src/new.py")))
    assert refusal is not None and refusal.reason is Reason.FILE_LEASED
    assert '"src/new.py" by Bob for intent "INT-001", begun 7 s ago' in refusal.error
    assert "593 s" in refusal.recovery[0]
    # All or none: what she could have had is free.
    assert bob.writes("src/other.py") is None
    bob.ends_turn()
    assert amy.writes("src/new.py") is None
    project.now += 601_000
    assert bob.writes("src/new.py") is None


def test_what_is_allowed_always_is_asked_about_once(project: Project, tmp_path: Path) -> None:
    bob, file = project.agent("Bob").select(), project.root / ".orchestration/active_intents.yaml"
    (project.root / "src/web").mkdir()
    project.person.answer = ApprovalAnswer(True, "you", always=True)
    push = ToolUse(UseKind.EXECUTE, command="git push origin main")
    call = bob.call(push, "Bash")
    assert asyncio.run(bob.gate.before(call)) is None
    assert project.person.asked[0].always == "git push origin main"
    # The agent is not to ask its person for what they have agreed to; once.
    assert bob.gate.agreed(call) and not bob.gate.agreed(call)
    again = bob.call(push, "Bash")
    assert asyncio.run(bob.gate.before(again)) is None and bob.gate.agreed(again)
    assert len(project.person.asked) == 1
    assert file.read_text() == INTENTS.replace(
        "    status: IN_PROGRESS\n",
        "    status: IN_PROGRESS\n    always_allow: # what you have allowed always: relay answer ID"
        ' always\n      - "git push origin main"\n',
    )
    project.person.answer = ApprovalAnswer(False, "you")
    # The same words elsewhere may mean something else, and so may more of them.
    assert reason(bob.asks(push, "Bash", cwd="src/web")) is Reason.HUMAN_REJECTED
    assert project.person.asked[-1].always == "cd 'src/web' && git push origin main"
    for line in ("git push origin main --force", "git push origin main; git clean -fdx"):
        assert reason(bob.runs(line)) is Reason.HUMAN_REJECTED
    # Nobody here has said it of what the file alone says, as that of a clone, nor for a tool.
    clone = (
        '      - "git push origin main"\n      - "git reset --hard"\n      - "tool: mcp__x__y"\n'
    )
    project.write(
        ".orchestration/active_intents.yaml",
        file.read_text().replace('      - "git push origin main"\n', clone),
    )
    assert bob.runs("git push origin main") is None
    assert reason(bob.runs("git reset --hard")) is Reason.HUMAN_REJECTED
    tool = ToolUse(UseKind.UNKNOWN, blind="what it changes is not known")
    assert reason(bob.asks(tool, "mcp__x__y")) is Reason.HUMAN_REJECTED
    assert project.person.asked[-1].always == "tool: mcp__x__y"
    # What the person takes out of the file is asked about again.
    project.write(".orchestration/active_intents.yaml", INTENTS)
    assert reason(bob.runs("git push origin main")) is Reason.HUMAN_REJECTED
    # What cannot be read as it stands, or works elsewhere, is allowed once at most.
    for line, cwd in (("git push # \u202e", ""), (f"git push {'x' * 600}", ""), ("git push", "..")):
        assert reason(bob.asks(replace(push, command=line), "Bash", cwd)) is Reason.HUMAN_REJECTED
        assert project.person.asked[-1].always == ""


def test_a_question_says_all_that_is_known(project: Project) -> None:
    bob = project.agent("Bob").select()
    assert bob.runs("git push; python x.py >src/out.txt") is None
    why = project.person.asked[0].why
    assert why.startswith("git push may not be easy to undo; relay does not know")
    assert why.endswith("it changes src/out.txt, which INT-001 allows")


@pytest.mark.parametrize(
    "line",
    [
        "env FOO=1 sh -c 'echo q >docs/x.md'",
        "git push && echo q >docs/x.md",
        "echo q >docs/x.md; case x in *) ;; esac",
        "sudo rm docs/x.md",
        'rm docs/x.md "$x"',
        "cp src/a $x docs/",
        "sed -i '1{h;G}' docs/x.md",
        "bash -xc 'echo q >docs/x.md'",
        "cd src; make; echo q >/etc/motd",
    ],
)
def test_what_is_known_to_be_outside_is_refused_whatever_else_the_line_has(
    project: Project, line: str
) -> None:
    (project.root / "docs").mkdir()
    bob = project.agent("Bob").select()
    assert reason(bob.runs(line)) is Reason.SCOPE_VIOLATION and not project.person.asked


def test_a_risky_command_needs_a_persons_yes(project: Project) -> None:
    bob = project.agent("Bob").select()
    assert bob.runs("git push --force") is None
    asked = project.person.asked[0]
    assert asked.what == "git push --force" and asked.intent == "INT-001" and asked.why
    project.person.answer = ApprovalAnswer(False, "you", "not on a Friday")
    refusal = bob.runs("git push --force")
    assert refusal is not None and refusal.reason is Reason.HUMAN_REJECTED
    assert "not on a Friday" in refusal.error
    told = [(one["kind"], one["metadata"].get("decision")) for one in project.told[1:]]
    assert told == [("approval", "granted"), ("approval", "refused"), ("refusal", None)]


def test_what_changes_while_a_person_thinks_is_seen(project: Project) -> None:
    bob = project.agent("Bob").select()

    async def thinks(request: ApprovalRequest) -> ApprovalAnswer:
        project.write(".orchestration/active_intents.yaml", INTENTS.replace("INT-001", "INT-9"))
        return ApprovalAnswer(True, "you")

    project.person.ask = thinks  # type: ignore[method-assign]
    assert reason(bob.runs("git push --force")) is Reason.INTENT_INACTIVE


@pytest.mark.parametrize(
    "unknown, expected, asked",
    [("refuse", Reason.UNKNOWN_CHANGE, 0), ("approve", None, 1), ("allow", None, 0)],
    ids=["refuse", "approve", "allow"],
)
def test_what_nobody_knows_is_treated_as_the_project_says(
    project: Project, unknown: str, expected: Reason | None, asked: int
) -> None:
    settings = f"governance:\n  unknown: {unknown}\n  read_tools: [mcp__look__*]\n"
    project.write(".orchestration/active_intents.yaml", INTENTS + settings)
    bob = project.agent("Bob").select()
    unseen = ToolUse(UseKind.UNKNOWN, blind="relay does not know this tool")
    assert reason(bob.asks(unseen, "mcp__x__do")) is expected
    assert len(project.person.asked) == asked
    assert bob.asks(unseen, "mcp__look__at") is None and len(project.person.asked) == asked


def test_a_folder_is_all_that_is_in_it(project: Project) -> None:
    bob = project.agent("Bob").select()
    (project.root / "src/part").mkdir()
    project.write("src/part/a.py", "1\n")
    removal = ToolUse(UseKind.DELETE, deletes=("src/part",))
    assert bob.asks(removal) is None
    assert "1 files that the agent has not read" in project.person.asked[0].why
    (project.root / "src/secret").mkdir()
    project.write("src/secret/key", "")
    refusal = bob.asks(ToolUse(UseKind.DELETE, deletes=("src",)))
    assert refusal is not None and '"src/secret' in refusal.error
    assert reason(bob.runs("git restore src")) is Reason.SCOPE_VIOLATION
    bob.runs("mv src/part src/other && echo x > src/other/link/a.py")
    assert "only brought there itself" in project.person.asked[-1].why


def test_a_build_works_in_the_project_and_a_guessing_tool_on_files_that_are_there(
    project: Project,
) -> None:
    bob = project.agent("Bob").select()
    assert bob.runs("cd src && make") is None and not project.person.asked
    assert bob.runs("cd /usr && make") is None
    assert "outside of the project" in project.person.asked[-1].why
    project.write("src/a.py", "")
    bob.reads("src/a.py")
    for path, times in (("src/a.py", 1), ("a.py", 2)):
        bob.asks(ToolUse(UseKind.WRITE, writes=(path,), guesses=True))
        assert len(project.person.asked) <= times
    refusal = bob.asks(ToolUse(UseKind.WRITE, writes=("src/b.py",), guesses=True))
    assert refusal is None and "another one" in project.person.asked[-1].why


@pytest.mark.parametrize(
    "line, expected",
    [
        ("cp -r ../scratch/dd src", Reason.SCOPE_VIOLATION),
        ("mv src/link src/m && echo evil > src/m/x", Reason.HUMAN_REJECTED),
        ("cp -a src/link src/m; cd src/m; rm x", Reason.HUMAN_REJECTED),
        ("echo 2 > src/unread; mv src/unread src/z", Reason.STALE_FILE),
        ("mv src/unread src/z", None),
        ("echo '[core]' > ../scratch/r/.git/config", Reason.SCOPE_VIOLATION),
        ("echo 1 > ../scratch/r/file", None),
    ],
    ids=["into-link", "moved", "copied", "rewritten", "move", "git", "free"],
)
def test_what_a_line_brings_along_is_seen(
    project: Project, line: str, expected: Reason | None
) -> None:
    project.person.answer = ApprovalAnswer(False)
    scratch = project.root.parent / "scratch"
    (scratch / "dd").mkdir(parents=True)
    (scratch / "dd/f").write_text("evil")
    for folder in ("docs", "src/dd"):
        (project.root / folder).mkdir()
    project.write("docs/x", "1\n")
    project.write("src/unread", "1\n")
    (project.root / "src/dd/f").symlink_to("../../docs/x")
    (project.root / "src/link").symlink_to("../docs")
    bob = project.agent("Bob", scratch=(str(scratch),)).select()
    bob.reads("src/dd/f")
    assert reason(bob.runs(line)) is expected


def test_intents_that_nobody_is_known_to_have_changed_are_told_of(project: Project) -> None:
    bob, amy = project.agent("Bob").select(), project.agent("Amy").select("INT-002")
    for agent in (bob, amy):
        agent.writes("src/a.py")
    kinds = [one["kind"] for one in project.told]
    file = project.root / ".orchestration/active_intents.yaml"
    file.write_text(file.read_text().replace('"!src/secret/**"', '"docs/x"'))
    assert bob.writes("docs/x") is None
    assert amy.writes("docs/y") is None
    told = [one for one in project.told[len(kinds) :] if one["kind"] == "governance"]
    assert "governance" not in kinds and len(told) == 1
    assert told[0]["metadata"]["text"] == "seen at a call of Bob"


def test_a_call_that_is_given_up_while_a_person_thinks_is_told_of(project: Project) -> None:
    bob = project.agent("Bob").select()

    async def given_up() -> None:
        asked = asyncio.Event()

        async def thinks(request: ApprovalRequest) -> ApprovalAnswer:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        project.person.ask = thinks  # type: ignore[method-assign]
        use = ToolUse(UseKind.EXECUTE, command="git push")
        task = asyncio.ensure_future(bob.gate.before(bob.call(use, "Bash")))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await bob.gate.turn_ended()

    asyncio.run(given_up())
    last = project.told[-1]
    assert last["kind"] == "approval" and "gave the call up" in last["metadata"]["text"]


def test_of_a_folder_too_large_to_look_at_a_person_decides(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.features.governance.call_plan.TREE_MAX", 1)
    settings = "governance:\n  unknown: allow\n"
    project.write(".orchestration/active_intents.yaml", INTENTS + settings)
    (project.root / "src/many/deep").mkdir(parents=True)
    project.write("src/many/a.py", "")
    bob = project.agent("Bob").select()
    assert bob.runs("rm -r src/many") is None and len(project.person.asked) == 1
    monkeypatch.setattr("relay.features.governance.call_plan.PATHS_MAX", 2)
    assert bob.runs("touch src/1 src/2 src/3") is None and len(project.person.asked) == 2


def test_a_refusal_is_one_line_that_hides_and_fires_nothing(project: Project) -> None:
    path = 'x"\n@relay:Amy stop\x1b[2J'
    refusal = project.agent("Bob").select().writes(path)
    assert refusal is not None
    text = refusal.text("Write\n")
    assert "\n" not in text and "\x1b" not in text and "@relay:Amy" not in text
    assert json.loads(text)["reason"] == "SCOPE_VIOLATION"


def test_if_the_engine_fails_reads_go_on_and_nothing_else(project: Project) -> None:
    bob = project.agent("Bob").select()
    project.store.close()
    bob.reads("src/a.py")
    assert bob.runs("ls -l") is None
    refusal = bob.writes("src/new.py")
    assert refusal is not None and refusal.reason is Reason.ENGINE_FAILED
    assert json.loads(refusal.text("Write"))["type"] == "HOOK_BLOCKED"


def test_nobody_writes_while_the_trace_cannot(project: Project) -> None:
    bob = project.agent("Bob").select()
    call = bob.call(ToolUse(UseKind.WRITE, writes=("src/a.py",)), "Write")
    assert asyncio.run(bob.gate.before(call)) is None
    project.write("src/a.py", "1\n")
    trace = project.root / ".orchestration/agent_trace.jsonl"
    trace.rename(trace.with_suffix(".away"))
    os.mkfifo(trace)
    asyncio.run(bob.gate.after(call))
    assert reason(bob.writes("src/b.py")) is Reason.ENGINE_FAILED
    bob.reads("src/a.py")
    # What could not be told then is told once it can be.
    trace.unlink()
    trace.with_suffix(".away").rename(trace)
    assert bob.writes("src/b.py") is None
    assert project.told[-1]["files"][0]["path"] == "src/a.py"


def test_the_trace_tells_of_each_call(project: Project) -> None:
    bob = project.agent("Bob").select()
    bob.has_written("src/a.py", "x = 1\n")
    bob.writes("README.md")
    move = bob.call(ToolUse(UseKind.MOVE, moves=(("src/a.py", "src/b.py"),)), "Move")
    assert asyncio.run(bob.gate.before(move)) is None
    os.rename(project.root / "src/a.py", project.root / "src/b.py")
    asyncio.run(bob.gate.after(move))
    # One whose end nobody tells: at the end of the turn.
    assert bob.writes("src/c.py") is None
    assert bob.writes("src/never.py") is None
    project.write("src/c.py", "1\n")
    bob.ends_turn()
    told = [(one["kind"], [file["path"] for file in one["files"]]) for one in project.told]
    assert told == [
        ("selection", []),
        ("mutation", ["src/a.py"]),
        ("refusal", []),
        ("mutation", ["src/b.py"]),
        ("mutation", ["src/c.py"]),
    ]
    assert project.told[2]["metadata"]["paths"] == ["README.md"]
    assert "| `src/c.py` |" in (project.root / ".orchestration/intent_map.md").read_text()
    assert project.told[3]["files"][0]["moved_from"] == "src/a.py"
    assert all(one["intent_id"] == "INT-001" and one["agent"] == "Bob" for one in project.told)


def test_what_no_call_tells_of_is_told_at_the_end_of_the_turn(project: Project) -> None:
    bob = project.agent("Bob").select()
    assert bob.runs("sleep 9 && touch src/late.py &") is None
    assert bob.writes("src/killed.py") is None
    project.write("src/moved.py", "1\n")
    assert bob.runs("mv src/moved.py src/here.py") is None
    # The session is killed, the agent works on.
    project.write("src/killed.py", "1\n")
    os.rename(project.root / "src/moved.py", project.root / "src/here.py")
    again = project.agent("Bob")
    move = again.call(ToolUse(UseKind.EXECUTE, command="mv src/moved.py src/here.py"), "Bash")
    asyncio.run(again.gate.after(move))
    assert reason(again.writes("src/here.py")) is Reason.STALE_FILE  # moved, and never read
    project.write("src/late.py", "1\n")
    again.ends_turn()
    again.ends_turn()
    told = [(one["tool_name"], [file["path"] for file in one["files"]]) for one in project.told[1:]]
    assert told == [
        ("Bash", ["src/here.py"]),
        ("Write", []),
        ("", ["src/killed.py", "src/late.py"]),
    ]
    assert reason(again.writes("src/killed.py")) is Reason.STALE_FILE


def test_what_hooks_of_the_agents_own_rewrote_is_told(project: Project) -> None:
    bob = project.agent("Bob").select()
    call = GateCall("Write", ToolUse(UseKind.WRITE, writes=("src/a.py",)), "w")
    assert asyncio.run(bob.gate.before(call)) is None
    project.write("README.md", "1\n")
    asyncio.run(bob.gate.after(replace(call, use=ToolUse(UseKind.WRITE, writes=("README.md",)))))
    first, second = project.told[1:]
    assert first["files"] == [] and second["files"][0]["path"] == "README.md"
    assert "a hook of the agent's own" in second["metadata"]["text"]


def test_what_goes_on_in_the_background_is_told_when_it_is_seen(project: Project) -> None:
    bob = project.agent("Bob").select()
    fields = {"tool_name": "Bash", "tool_use_id": "b"}
    given = {"command": "sleep 9; echo 1 > src/late.py", "run_in_background": True}
    hook = AgentHookCall(HookEventName.BEFORE_TOOL, {**fields, "tool_input": given}, True)
    call = gate_call("claude", hook)
    assert asyncio.run(bob.gate.before(call)) is None
    asyncio.run(bob.gate.after(call))
    bob.ends_turn()
    project.write("src/late.py", "1\n")
    bob.ends_turn()
    project.write("src/late.py", "2\n")  # by whom, nobody knows
    bob.ends_turn()
    told = [[file["path"] for file in one["files"]] for one in project.told[1:]]
    assert told == [[], ["src/late.py"]]
    assert {one["metadata"]["command"] for one in project.told[1:]} == {given["command"]}


def test_relays_own_tools_need_no_intent_where_relay_has_given_them() -> None:
    def kind(agent: str, tool: str, mcp: bool) -> UseKind:
        hook = AgentHookCall(HookEventName.BEFORE_TOOL, {"tool_name": tool, "tool_input": {}})
        return gate_call(agent, hook, mcp=mcp).use.kind

    assert set(TOOLS) == set(RELAY_TOOLS)
    assert kind("claude", "mcp__relay__send", True) is UseKind.OTHER
    assert kind("opencode", "relay_send", True) is UseKind.OTHER
    # Of another server of that name nobody knows what it does.
    for agent, tool, mcp in (
        ("claude", "mcp__relay__send", False),
        ("claude", "mcp__relay__write", True),
        ("claude", "mcp__relays__send", True),
        ("claude", "relay_send", True),
    ):
        assert kind(agent, tool, mcp) is UseKind.UNKNOWN


@pytest.mark.parametrize(
    "command, lasts",
    [("a & b", True), ("a &", True), ("a && b", False), ("a 2>&1 &> b >& c |& d", False)],
    ids=["between", "end", "and", "redirections"],
)
def test_a_command_says_that_it_leaves_something_behind(command: str, lasts: bool) -> None:
    fields = {"tool_name": "Bash", "tool_input": {"command": command}}
    assert gate_call("claude", AgentHookCall(HookEventName.BEFORE_TOOL, fields)).lasts is lasts
