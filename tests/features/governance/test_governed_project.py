"""A governed project: which folder it is, what starts in it, and what an agent's session does."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from relay.agents.context_door import ContextDoor
from relay.agents.hook_codec import AgentHookCall
from relay.config.manifest import Known
from relay.core.errors import RelayError, StorageError
from relay.core.message import AgentState, QueueMode
from relay.core.paths import Home
from relay.features.governance.governed_paths import governed_root, protected, real_places
from relay.features.governance.governed_project import GovernedProject
from relay.features.governance.session import (
    GIVEN_MAX,
    PENDING_MAX,
    GovernanceSession,
    GovernedAgent,
    project_opener,
)
from relay.features.governance.start import (
    NotGoverned,
    check_start,
    git_environment,
    with_governance,
)
from relay.hooks.events import HookEventName
from relay.session.feature_parts import FeatureParts
from relay.session.session_commands import FeatureCommand

INTENTS = """\
active_intents:
  - {id: INT-1, name: Docs, status: PENDING, owned_scope: ["docs/**"], constraints: [short]}
"""
EACH_TURN = f"{INTENTS}governance: {{select_every_turn: true}}\n"
REMINDER = "Your intent is still INT-1: Docs."


class Bench:
    """A governed folder, the session of one agent in it, and whoever hears of that."""

    tells_once = True  # as the context door of an agent

    def __init__(self, folder: Path, *, intents: str = INTENTS, **more: Any) -> None:
        self.root = folder / "project"
        self.root.mkdir(exist_ok=True)
        if intents:
            self.govern(intents)
        home = Home(str(folder / "home"))
        home.create()
        root = str(self.root) if intents else ""
        agent = GovernedAgent("Ann", "run-1", "claude", str(self.root), "me", root)
        self.agent = replace(agent, **more)
        self.said = "opus"
        self.broken: Exception | None = None
        self.told: list[str] = []
        self.answers: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self._tasks: list[asyncio.Future[None]] = []
        self._opener = project_opener(home, self.agent, os.getpid(), None, lambda: self.said)
        self._opened: list[GovernedProject] = []
        self.session = self.again()
        self.project = self._open(str(self.root))

    def govern(self, intents: str = INTENTS) -> None:
        (self.root / ".orchestration").mkdir(exist_ok=True)
        (self.root / ".orchestration" / "active_intents.yaml").write_text(intents)

    def again(self) -> GovernanceSession:
        """Another session of the same run, as after a kill."""
        parts, door = cast(FeatureParts, self), cast(ContextDoor, self)
        return GovernanceSession(self.agent, self._open, parts, door=door)

    def _open(self, root: str) -> GovernedProject:
        if self.broken is not None:
            raise self.broken
        self._opened.append(self._opener(root))
        return self._opened[-1]

    def close(self) -> None:
        for project in self._opened:
            project.close()

    def give(self, text: str) -> bool:
        self.told.append(text)
        return True

    def answer(self, id_: str, text: str, mode: QueueMode | None = None) -> None:
        self.answers.append((id_, text))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def remark(self, text: str) -> None:
        pass

    def changed(self) -> None:
        pass

    def spawn(self, work: Awaitable[None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def settled(self) -> None:
        await asyncio.gather(*self._tasks)

    async def states(self, *states: AgentState) -> None:
        """The agent is in each of these, one after the other."""
        for state in states:
            self.session.state_changed(state)
            await self.settled()

    def call(self, tool: str, native: dict[str, Any] | None = None, **given: Any) -> AgentHookCall:
        fields = {"tool_name": tool, "tool_input": given, "tool_use_id": "t1"}
        return AgentHookCall(HookEventName.BEFORE_TOOL, fields, True, native or {})

    async def asks(self, path: str = "docs/a.md", *, of: GovernanceSession | None = None) -> str:
        """Why a file may not be written; "" when it may be."""
        call = self.call("Write", file_path=str(self.root / path), content="x")
        why = await (of or self.session).before(call, 5.0)
        return str(json.loads(why)["reason"]) if why else ""

    async def write(self, native: dict[str, Any] | None = None) -> str:
        """Write it; why it may not be, or ""."""
        path = self.root / "docs" / "a.md"
        call = self.call("Write", native, file_path=str(path), content="x")
        if why := await self.project.before(call, 5.0):
            return str(json.loads(why)["reason"])
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{path.exists() and path.read_text()}x")
        await self.project.after(call)
        return ""

    def trace(self) -> list[dict[str, Any]]:
        path = self.root / ".orchestration" / "agent_trace.jsonl"
        with suppress(FileNotFoundError):
            return [json.loads(line) for line in path.read_text().splitlines()]
        return []


MakeBench = Callable[..., Bench]


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[MakeBench]:
    """Makes them, all on one folder."""
    with ExitStack() as stack:
        yield lambda **more: stack.enter_context(closing(Bench(tmp_path, **more)))


@pytest.fixture
def bench(benches: MakeBench) -> Bench:
    return benches()


async def test_the_context_is_answered_and_a_turn_is_reminded_until_the_intent_is_done(
    bench: Bench,
) -> None:
    assert await bench.project.turn_ended() == ("", "")
    context = await bench.project.do("select", "INT-1")
    assert "<status>IN_PROGRESS</status>" in context
    assert "<constraint>short</constraint>" in context
    assert await bench.project.turn_ended() == (REMINDER, "")
    assert await bench.project.selected() == "INT-1"
    assert "COMPLETE" in await bench.project.do("status", "INT-1 COMPLETE")
    assert await bench.project.turn_ended() == ("", "")
    assert await bench.write() == "INTENT_INACTIVE"
    assert bench.trace()[1]["metadata"]["to"] == "COMPLETE"
    assert "from now on" in await bench.project.do("learn", "Docs are built by make.")
    assert "known already" in await bench.project.do("learn", "docs are built by MAKE")


async def test_where_each_turn_selects_anew_a_turn_that_selected_in_words_leaves_it_to_the_next(
    benches: MakeBench,
) -> None:
    bench = benches(intents=EACH_TURN)
    bench.session.take(FeatureCommand("1", "select", "INT-1"))
    assert await bench.session.settle(5.0)
    await bench.states(AgentState.IDLE, AgentState.BUSY)
    assert await bench.asks() == ""
    await bench.states(AgentState.IDLE)
    assert await bench.asks() == "INTENT_REQUIRED"


async def test_a_run_is_governed_from_the_call_on_after_the_folder_has_appeared(
    benches: MakeBench,
) -> None:
    bench = benches(intents="")
    bench.session.begin()
    await bench.settled()
    assert await bench.asks() == "" and bench.told == []
    bench.govern()
    assert await bench.asks() == "INTENT_REQUIRED"
    # Its session does not hear @intent: of what was not governed when it started.
    [rules] = bench.told
    assert "relay intent select" in rules and "@intent:" not in rules
    shutil.rmtree(bench.root / ".orchestration")
    assert await bench.asks() == "INTENTS_INVALID"
    again = bench.again()
    again.restore(bench.session.state())
    assert await bench.asks(of=again) == "INTENTS_INVALID"


async def test_what_cannot_be_opened_refuses_all_but_reads_and_is_opened_again(
    bench: Bench,
) -> None:
    reads = bench.call("Read", file_path="src/a.py"), bench.call("Bash", command="cat src/a.py")
    for error in (StorageError("the database is damaged"), OSError("no room")):
        bench.broken = error
        assert await bench.asks() == "ENGINE_FAILED"
        assert [await bench.session.before(read, 5.0) for read in reads] == ["", ""]
    bench.broken = None
    assert await bench.asks() == "INTENT_REQUIRED"


async def test_an_agent_that_the_person_lets_go_is_never_asked(benches: MakeBench) -> None:
    bench = benches(ungoverned=True)
    bench.session.restore({})
    bench.session.begin()
    await bench.states(AgentState.IDLE)
    assert bench.trace() == []  # its start is written down before it runs
    assert bench.notes[0].startswith("ungoverned: ")
    assert await bench.asks() == ""
    with pytest.raises(RelayError, match="--ungoverned"):
        await bench.session.ask({"do": "select", "id": "INT-1"}, False)


@pytest.mark.parametrize("ungated", ["", "it has no hooks"], ids=["hooks", "none"])
async def test_an_agent_that_the_kernel_holds_to_an_intent_is_traced_and_works_on_it(
    benches: MakeBench, ungated: str
) -> None:
    bench = benches(intent="INT-1", ungated=ungated)
    bench.session.restore({})
    await bench.states(AgentState.BUSY)
    bench.again().restore(bench.session.state())  # after a kill of the session
    await bench.states(AgentState.BUSY)
    [confined, *selected] = bench.trace()
    assert (confined["metadata"]["event"], confined["metadata"]["by"]) == ("confined", "me")
    assert [one["kind"] for one in selected] == ([] if ungated else ["selection"])
    assert bench.notes == ["confined to INT-1"]
    # Where it asks before its calls, they are checked as ever; else the kernel alone holds it.
    assert await bench.asks("x.md") == ("" if ungated else "SCOPE_VIOLATION")
    if ungated:
        with pytest.raises(RelayError, match="writes for INT-1 alone"):
            await bench.session.ask({"do": "select", "id": "INT-2"}, False)
    with pytest.raises(RelayError, match="a text of at most"):
        await bench.session.ask({"do": "learn", "text": ["x"]}, False)


async def test_commands_are_done_in_their_order_and_answered_once(
    benches: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, do = asyncio.Event(), GovernedProject.do

    async def waits(project: GovernedProject, *given: str) -> str:
        await room.wait()
        return await do(project, *given)

    monkeypatch.setattr(GovernedProject, "do", waits)
    bench = benches()
    for id_, text in (("1", "INT-1"), ("2", "INT-9"), ("1", "INT-1")):
        bench.session.take(FeatureCommand(id_, "select", text))
    assert not await bench.session.settle(0.01)
    # A session that is killed now goes on with both.
    again = benches()
    again.session.restore(bench.session.state())
    room.set()
    for one in (bench, again):
        assert await one.session.settle(5.0)
        (first, context), (second, refusal) = one.answers
        assert (first, second) == ("1", "2") and "<id>INT-1</id>" in context
        assert refusal.startswith("not done: @intent:select: ") and "INT-1" in refusal


async def test_there_is_an_end_to_what_waits_and_to_what_is_said(bench: Bench) -> None:
    bench.session.take(FeatureCommand("0", "learn", "x" * (GIVEN_MAX + 1)))
    for n in range(PENDING_MAX + 1):
        bench.session.take(FeatureCommand(f"{n + 1}", "list", ""))
    [(_, long), (last, many)] = bench.answers
    assert "more than" in long and last == f"{PENDING_MAX + 1}" and "too many" in many
    assert await bench.session.settle(20.0)
    assert len(bench.answers) == PENDING_MAX + 2


async def test_its_turn_gives_back_what_it_took_and_the_next_one_is_reminded(
    bench: Bench,
) -> None:
    await bench.project.do("select", "INT-1")
    assert await bench.asks() == "" and bench.project.gate.holds() == ["docs/a.md"]
    bench.session.begin()
    await bench.states(AgentState.IDLE)  # what an earlier session has left ends with that
    assert bench.project.gate.holds() == []
    await bench.states(AgentState.BUSY, AgentState.BLOCKED, AgentState.BUSY)
    assert await bench.asks() == "" and bench.project.gate.holds() == ["docs/a.md"]
    await bench.states(AgentState.IDLE, AgentState.IDLE)
    assert bench.project.gate.holds() == []
    assert bench.told[1:] == [REMINDER] * 2 and "@intent:select" in bench.told[0]
    assert await bench.asks() == ""
    await bench.again().end()  # of a session after a kill
    assert bench.project.gate.holds() == [] and await bench.project.selected() == ""


async def test_what_was_changed_against_the_intent_both_are_told(bench: Bench) -> None:
    await bench.project.do("select", "INT-1")
    make = bench.call("Bash", command="make &")
    assert await bench.session.before(make, 5.0) == ""
    (bench.root / "x").write_text("made")
    told = await bench.session.after(make)
    (bench.root / "y").write_text("in the background")
    await bench.states(AgentState.IDLE)
    assert ["x (made)" in bench.notes[0], "y (made)" in bench.notes[1]] == [True, True]
    assert told.startswith(f"{bench.notes[0]}\n")
    [later] = bench.told
    assert later.startswith(f"{bench.notes[1]}\n") and later.endswith(f"\n\n{REMINDER}")


@pytest.mark.parametrize(
    "asked", ["INT-1 PENDING", "INT-1 IN_PROGRESS", "INT-2 COMPLETE"], ids=["back", "same", "other"]
)
async def test_an_agent_only_ends_the_intent_that_it_has_selected(bench: Bench, asked: str) -> None:
    await bench.project.do("select", "INT-1")
    with pytest.raises(RelayError, match="may only set the intent that it has selected"):
        await bench.project.do("status", asked)


async def test_the_trace_names_the_model_of_the_call_else_the_one_that_spoke_last(
    bench: Bench,
) -> None:
    await bench.project.do("select", "INT-1")
    assert await bench.write() == ""
    assert await bench.write({"model": "gpt"}) == ""
    changed = [row for row in bench.trace() if row["kind"] == "mutation"]
    models = [one["files"][0]["conversations"][0]["contributor"]["model_id"] for one in changed]
    assert models == ["opus", "gpt"]


async def test_an_agent_writes_its_plans_where_it_keeps_them_unless_that_is_the_project(
    benches: MakeBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "mine"))
    bench = benches()
    await bench.project.do("select", "INT-1")
    for place, allowed in (("mine/plans/a.md", True), ("mine/settings.json", False)):
        call = bench.call("Write", file_path=str(tmp_path / place), content="x")
        assert (await bench.project.before(call, 5.0) == "") is allowed
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "plans").symlink_to(tmp_path / "project")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "other"))
    assert len(benches().project.gate.run.scratch) == 1


async def test_what_is_not_decided_in_time_is_refused_and_a_read_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(call: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(bench.project.gate, "before", never)
    late = await bench.project.before(bench.call("Write", file_path="docs/a.md"), 0.01)
    assert json.loads(late)["reason"] == "ENGINE_FAILED"
    assert await bench.project.before(bench.call("Read", file_path="docs/a.md"), 0.01) == ""
    assert await bench.project.before(bench.call("Bash", command="cat docs/a.md"), 0.01) == ""


@pytest.mark.parametrize(
    ("line", "selected"),
    [
        ("relay intent select INT-1", "INT-1"),
        ("relay intent select INT-1 && rm x", ""),
        ("echo relay intent select INT-1", ""),
        ("relay intent select INT-9", ""),
    ],
    ids=["alone", "with-more", "said", "unknown"],
)
async def test_a_shell_without_a_session_selects_by_the_command_alone(
    bench: Bench, line: str, selected: str
) -> None:
    await bench.project.select_in_shell(bench.call("Bash", command=line))
    assert await bench.project.selected() == selected


# -- What starts in a governed project, and what it is started with.

BOTH = {"gates": ["BeforeTool", "AfterTool"]}


def test_an_agent_is_asked_around_its_calls_whatever_the_configuration_has() -> None:
    known = with_governance(Known(("relay", "memory", "deploy"), ("AfterTool", "BeforeAgent")))
    assert known.namespaces == ("relay", "intent", "memory", "deploy")
    assert known.hooks == ("AfterTool", "BeforeAgent", "BeforeTool")


@pytest.mark.parametrize(
    ("kind", "data", "why"),
    [
        ("claude", BOTH, ""),
        ("claude", {"gates": ["BeforeTool"]}, ""),
        ("claude", {"gates": ["AfterTool"]}, "started before that"),
        ("claude", {"ungated": "hooks are off"}, "hooks are off"),
        ("gemini", {"ungated": "no file; docs/agents/gemini.md says how"}, "gemini.md says how"),
        ("codex", {"degraded": "too old", "ungated": "too old"}, "too old"),
        ("command", {}, "not a conversation"),
        ("aider", {"heard": True}, "aider has no hooks"),
        ("shell", {}, "shell has no hooks"),
        ("python", {}, "python has no hooks"),
    ],
    ids=["gated", "before", "after", "off", "gemini", "old", "command", "aider", "shell", "screen"],
)
def test_what_would_write_unasked_is_not_started(
    kind: str, data: dict[str, object], why: str
) -> None:
    if not why:
        check_start("/p", kind, kind, data)
        return
    with pytest.raises(NotGoverned) as refused:
        check_start("/p", f"/usr/bin/{kind}", kind, data)
    assert why in refused.value.message and "/p is governed" in refused.value.message
    assert "--ungoverned" in refused.value.hint


@pytest.mark.parametrize(
    "own", [{}, {"GIT_CONFIG_PARAMETERS": "'user.name=x' 'user.email'='y'"}], ids=["none", "own"]
)
def test_git_runs_nothing_of_a_folder_that_looks_like_a_repository(
    own: dict[str, str], tmp_path: Path
) -> None:
    laid, theirs = tmp_path / "laid", tmp_path / "theirs"
    for name in ("objects", "refs"):
        (laid / name).mkdir(parents=True)
    (laid / "HEAD").write_text("ref: refs/heads/main\n")
    core = {"bare": "false", "worktree": laid, "fsmonitor": f"touch {tmp_path}/ran; false"}
    settings = "".join(f'\t{key} = "{value}"\n' for key, value in core.items())
    (laid / "config").write_text(f"[core]\n\trepositoryformatversion = 0\n{settings}")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **own}
    env |= git_environment(env)
    theirs.mkdir()

    def git(*args: str, cwd: Path) -> int:
        return subprocess.run(["git", *args], cwd=cwd, env=env, timeout=30).returncode

    assert git("status", cwd=laid) != 0 and not (tmp_path / "ran").exists()
    assert git("init", "-q", cwd=theirs) == git("status", cwd=theirs) == 0


# -- Which folder is governed, and where a path really is.


def _governed(folder: Path) -> Path:
    (folder / ".orchestration").mkdir(parents=True)
    return folder


def test_the_outermost_folder_below_the_home_is_governed(tmp_path: Path) -> None:
    home = _governed(tmp_path)
    outer = _governed(home / "outer")
    inner = _governed(outer / "a" / "inner")
    (home / "other").mkdir()
    assert governed_root(str(inner), str(home)) == str(outer)
    assert governed_root(str(home / "other"), str(home)) == ""
    assert governed_root(str(home), str(home)) == ""
    # A home elsewhere: this one is a folder like any other.
    assert governed_root(str(home / "other"), "/nowhere") == str(home)


def test_a_link_or_a_file_governs_nothing(tmp_path: Path) -> None:
    real = _governed(tmp_path / "elsewhere")
    linked, plain = tmp_path / "linked", tmp_path / "plain"
    linked.mkdir()
    plain.mkdir()
    (linked / ".orchestration").symlink_to(real / ".orchestration")
    (plain / ".orchestration").write_text("")
    assert governed_root(str(linked), str(tmp_path)) == ""
    assert governed_root(str(plain), str(tmp_path)) == ""


def test_a_path_is_where_the_kernel_finds_it(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "a").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "src" / "deep")
    (tmp_path / "alias").symlink_to("src/a")

    def places(path: str, cwd: Path = tmp_path) -> tuple[str, ...]:
        return tuple(place.removeprefix(f"{tmp_path}/") for place in real_places(path, str(cwd)))

    assert places("src/../src/a") == ("src/a",)
    assert places("link/../a") == ("src/a", "a")  # as a shell goes, and as most programs do
    assert places("new/folder/file") == ("new/folder/file",)
    assert places("alias") == ("alias", "src/a")
    assert real_places("alias", str(tmp_path), follow=False) == (str(tmp_path / "alias"),)
    assert places("./a", tmp_path / "src") == ("src/a",)
    assert places(str(tmp_path / "src" / "a")) == ("src/a",)
    assert real_places("../outside", str(tmp_path)) == (str(tmp_path.parent / "outside"),)


@pytest.mark.parametrize("path", ["", "a\0b"], ids=["empty", "nul"])
def test_what_is_no_path_is_said(path: str) -> None:
    with pytest.raises(ValueError):
        real_places(path, "/")


@pytest.mark.parametrize(
    "path, expected",
    [
        (".orchestration/active_intents.yaml", True),
        (".ORCHESTRATION/x", True),
        (".git/config", True),
        ("vendor/lib/.git/hooks/pre-commit", True),
        (".claude/settings.json", True),
        ("sub/opencode.json", True),
        (".github/workflows/ci.yml", False),
        ("src/opencode.json.py", False),
        ("sub/.claude/skills/a/SKILL.md", True),
        (".opencode/plugin/a.js", True),
        (".mcp.json", True),
        ("docs/claude/a.md", False),
    ],
    ids=lambda value: str(value)[-20:],
)
def test_what_no_agent_writes(path: str, expected: bool) -> None:
    assert protected(path) is expected
