"""A governed project: which folder it is, what starts in it, and what an agent's session does."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from relay.agents.hook_codec import AgentHookCall
from relay.config.manifest import Known
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.features.governance.governed_paths import governed_root, protected, real_places
from relay.features.governance.governed_project import GovernedProject
from relay.features.governance.session import GovernedAgent, project_opener
from relay.features.governance.start import (
    NotGoverned,
    check_start,
    git_environment,
    with_governance,
)
from relay.hooks.events import HookEventName

INTENTS = """\
active_intents:
  - {id: INT-1, name: Docs, status: PENDING, owned_scope: ["docs/**"], constraints: [short]}
"""


class Bench:
    """A governed folder, and one agent in it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        (self.root / ".orchestration").mkdir(parents=True, exist_ok=True)
        (self.root / ".orchestration" / "active_intents.yaml").write_text(INTENTS)
        home = Home(str(folder / "home"))
        home.create()
        agent = GovernedAgent("Ann", "run-1", "claude", str(self.root), "me", str(self.root))
        self.said = "opus"
        opened = project_opener(home, agent, 1, None, lambda: self.said)
        self.project: GovernedProject = opened(str(self.root))

    def call(self, tool: str, native: dict[str, Any] | None = None, **given: Any) -> AgentHookCall:
        fields = {"tool_name": tool, "tool_input": given, "tool_use_id": "t1"}
        return AgentHookCall(HookEventName.BEFORE_TOOL, fields, True, native or {})

    async def write(self, native: dict[str, Any] | None = None) -> str:
        """Why a file may not be written; "" when it is."""
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
        return [json.loads(line) for line in path.read_text().splitlines()]


@asynccontextmanager
async def governed(folder: Path) -> AsyncIterator[Bench]:
    bench = Bench(folder)
    yield bench
    await bench.project.ended()


async def test_the_context_is_answered_and_a_turn_is_reminded_until_the_intent_is_done(
    tmp_path: Path,
) -> None:
    async with governed(tmp_path) as bench:
        assert await bench.project.turn_ended() == ("", "")
        context = await bench.project.do("select", "INT-1")
        assert "<status>IN_PROGRESS</status>" in context
        assert "<constraint>short</constraint>" in context
        assert await bench.project.turn_ended() == ("Your intent is still INT-1: Docs.", "")
        assert await bench.project.selected() == "INT-1"
        assert "COMPLETE" in await bench.project.do("status", "INT-1 COMPLETE")
        assert await bench.project.turn_ended() == ("", "")
        assert await bench.write() == "INTENT_INACTIVE"
        assert bench.trace()[1]["metadata"]["to"] == "COMPLETE"
        assert "from now on" in await bench.project.do("learn", "Docs are built by make.")
        assert "known already" in await bench.project.do("learn", "docs are built by MAKE")


async def test_where_each_turn_selects_anew_a_turn_that_selected_in_words_leaves_it_to_the_next(
    tmp_path: Path,
) -> None:
    async with governed(tmp_path) as bench:
        path = bench.root / ".orchestration" / "active_intents.yaml"
        path.write_text(f"{INTENTS}governance: {{select_every_turn: true}}\n")
        await bench.project.do("select", "INT-1")
        assert await bench.project.turn_ended(chosen=True) != ("", "")
        assert await bench.write() == ""
        assert await bench.project.turn_ended() == ("", "")
        assert await bench.write() == "INTENT_REQUIRED"


@pytest.mark.parametrize(
    "asked", ["INT-1 PENDING", "INT-1 IN_PROGRESS", "INT-2 COMPLETE"], ids=["back", "same", "other"]
)
async def test_an_agent_only_ends_the_intent_that_it_has_selected(
    tmp_path: Path, asked: str
) -> None:
    async with governed(tmp_path) as bench:
        await bench.project.do("select", "INT-1")
        with pytest.raises(RelayError, match="may only set the intent that it has selected"):
            await bench.project.do("status", asked)


async def test_the_trace_names_the_model_of_the_call_else_the_one_that_spoke_last(
    tmp_path: Path,
) -> None:
    async with governed(tmp_path) as bench:
        await bench.project.do("select", "INT-1")
        assert await bench.write() == ""
        assert await bench.write({"model": "gpt"}) == ""
        changed = [row for row in bench.trace() if row["kind"] == "mutation"]
        models = [one["files"][0]["conversations"][0]["contributor"]["model_id"] for one in changed]
        assert models == ["opus", "gpt"]


async def test_an_agent_writes_its_plans_where_it_keeps_them_unless_that_is_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "mine"))
    async with governed(tmp_path) as bench:
        await bench.project.do("select", "INT-1")
        for place, allowed in (("mine/plans/a.md", True), ("mine/settings.json", False)):
            call = bench.call("Write", file_path=str(tmp_path / place), content="x")
            assert (await bench.project.before(call, 5.0) == "") is allowed
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "plans").symlink_to(tmp_path / "project")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "other"))
    bench = Bench(tmp_path)
    assert len(bench.project.gate.run.scratch) == 1
    bench.project.close()


async def test_what_is_not_decided_in_time_is_refused_and_a_read_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(call: object) -> None:
        await asyncio.Event().wait()

    async with governed(tmp_path) as bench:
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
    tmp_path: Path, line: str, selected: str
) -> None:
    async with governed(tmp_path) as bench:
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
