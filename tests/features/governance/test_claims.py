"""Claims: two agents in one folder without intents, each by its own claims on one store."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.agents.hook_codec import AgentHookCall
from relay.agents.tool_uses import ToolUse, UseKind
from relay.core.errors import ConfigError, RelayError
from relay.core.message import QueueMode
from relay.core.paths import Home
from relay.features.governance import claiming
from relay.features.governance.call_plan import GateCall, GovernedRun
from relay.features.governance.claiming import Claiming, Waits, held_remark
from relay.features.governance.claims import ROOT, Clash, FolderClaims
from relay.features.governance.governance_store import GovernanceStore, Lease
from relay.features.governance.settings import CLAIMS, parse_claims
from relay.hooks.events import HookEventName
from relay.session.feature_parts import FeatureParts


class Folder:
    """A folder in which agents work, with what relay knows of them."""

    def __init__(self, base: Path) -> None:
        self.path = (base / "work").resolve()
        self.path.mkdir()
        self.home = Home(str(base / "home"))
        self.store = GovernanceStore.open(self.home)
        self.now = 1_000_000

    def agent(self, name: str, *, refuse: bool = False) -> Agent:
        run = GovernedRun(f"run-{name}", name, ROOT, str(self.path), os.getpid(), kind="claude")
        claims = FolderClaims(run, str(self.path), self.store, refuse=refuse)
        return Agent(claims, self)


class Agent:
    def __init__(self, claims: FolderClaims, folder: Folder) -> None:
        self.claims = claims
        self._folder = folder

    def _calls(self, tool: str, use: ToolUse) -> Clash:
        return self.claims.before(GateCall(tool, use), self._folder.now)

    def reads(self, path: str) -> None:
        assert not self._calls("Read", ToolUse(UseKind.READ, reads=(path,)))

    def asks(self, path: str) -> Clash:
        return self._calls("Write", ToolUse(UseKind.WRITE, writes=(path,)))

    def writes(self, path: str, text: str) -> Clash:
        clash = self.asks(path)
        (self._folder.path / path).write_text(text)
        self.claims.after(GateCall("Write", ToolUse(UseKind.WRITE, writes=(path,))))
        return clash

    def runs(self, line: str) -> Clash:
        return self._calls("Bash", ToolUse(UseKind.EXECUTE, command=line))

    def ends_turn(self) -> None:
        self.claims.turn_ended(self._folder.now)

    @property
    def holds(self) -> list[str]:
        return self.claims.holds(self._folder.now)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    yield made
    made.store.close()


def test_who_writes_what_another_has_changed_since_is_told_so_once(folder: Folder) -> None:
    ann, bob = folder.agent("Ann"), folder.agent("Bob")
    (folder.path / "a.py").write_text("1\n")
    ann.reads("a.py")
    bob.reads("a.py")
    assert not bob.writes("a.py", "2\n")
    bob.ends_turn()
    folder.now += 5000
    told = ann.asks("a.py").text(folder.now)
    assert f'"{folder.path}/a.py" was changed by Bob (5 s ago), and you have not read it' in told
    assert not ann.writes("a.py", "3\n")  # it knows by now, and it is Ann's
    assert bob.runs("echo x >>a.py")  # the turn of Ann's that changes it is not over
    ann.ends_turn()
    bob.reads("a.py")
    assert not bob.runs("echo x >>a.py")


def test_what_is_changed_in_a_turn_that_runs_is_another_ones(folder: Folder) -> None:
    ann, bob = folder.agent("Ann"), folder.agent("Bob")
    assert not ann.writes("new.py", "1\n") and ann.holds == ["new.py"]
    clash = bob.asks("new.py")
    assert [one.agent for one in clash.held] == ["Ann"]
    told = clash.text(folder.now)
    assert "Being changed by another agent" in told and "by Ann, begun 0 s ago. Look at" in told
    # Bob goes on all the same, and is the one of whom Ann is told then.
    assert bob.claims.free(clash.held, folder.now) == list(clash.held) and bob.holds == ["new.py"]
    (folder.path / "new.py").write_text("2\n")
    clash = ann.asks("new.py")
    assert [one.agent for one in clash.held] == ["Bob"] and bob.holds == []
    assert bob.claims.free(clash.held, folder.now) == list(clash.held)
    ann.ends_turn()
    assert ann.holds == []
    # One that has died holds nothing, and neither does one that has not written for long.
    dead = Lease(ROOT, clash.held[0].path, "run-Eve", "Eve", 1, "then", "", 0, folder.now * 2)
    folder.store.take([dead], folder.now)
    bob.reads("new.py")
    assert not bob.asks("new.py")


def test_where_claims_refuse_the_file_stays_as_it_is(folder: Folder) -> None:
    ann, bob = folder.agent("Ann", refuse=True), folder.agent("Bob", refuse=True)
    assert not ann.writes("a.py", "1\n") and not ann.writes("b.py", "1\n")
    clash = bob.runs("cp a.py c.py && echo 1 >b.py")
    refusal = clash.refusal(folder.now)
    assert (
        refusal.reason == "FILE_LEASED" and f'"{folder.path}/b.py" by Ann, begun' in refusal.error
    )
    assert bob.holds == []  # all files of a call, or none
    ann.ends_turn()
    refusal = bob.asks("a.py").refusal(folder.now)
    assert refusal.reason == "STALE_FILE" and "was changed by Ann" in refusal.error
    bob.reads("a.py")
    assert not bob.asks("a.py") and bob.holds == ["a.py"]


def test_only_what_lies_below_the_folder_counts_and_a_person_is_no_agent(
    folder: Folder, tmp_path: Path
) -> None:
    ann, bob = folder.agent("Ann", refuse=True), folder.agent("Bob", refuse=True)
    (folder.path / "out").symlink_to(tmp_path)
    (folder.path / ".git").mkdir()
    for path in ("../other", str(tmp_path / "x"), "/etc/hosts", "out/x", ".git/index", "a\0b", ""):
        assert not ann.asks(path) and ann.holds == []
        assert not bob.asks(path)
    (folder.path / "a.py").write_text("1\n")
    ann.reads("a.py")
    (folder.path / "a.py").write_text("the person's\n")
    assert not ann.asks("a.py")
    # No agent claims more than can be looked at.
    many = " ".join(f"n{number}" for number in range(900))
    for number in range(4):
        bob.runs(f"mkdir -p d{number}; touch {many.replace('n', f'd{number}/n')}")
    assert 0 < len(bob.holds) <= 2000


def test_the_end_of_an_agent_frees_its_files_and_says_who_it_was(folder: Folder) -> None:
    other = GovernanceStore.open(folder.home)
    run = GovernedRun("run-Ann", "Ann", ROOT, str(folder.path), os.getpid(), kind="claude")
    ann = Agent(FolderClaims(run, str(folder.path), other, refuse=False), folder)
    bob = folder.agent("Bob")
    (folder.path / "a.py").write_text("1\n")
    bob.reads("a.py")
    ann.writes("a.py", "2\n")
    ann.claims.ended(folder.now)
    clash = bob.asks("a.py")
    assert not clash.held and "was changed by Ann" in clash.stale[0][1]


CALL = AgentHookCall(
    HookEventName.BEFORE_TOOL,
    {"tool_name": "Write", "tool_input": {"file_path": "a.py"}, "tool_use_id": "t1"},
    True,
)


class Agents:
    """The broker, which knows who works where."""

    def __init__(self, *places: Path) -> None:
        self.places = list(places)
        self.asked = 0

    async def request(self, op: str, **fields: Any) -> Any:
        self.asked += 1
        if not self.places:
            raise RelayError("away")
        rows = [
            {"name": f"A{n}", "state": "idle", "cwd": str(at)} for n, at in enumerate(self.places)
        ]
        return {"agents": [*rows, {"name": "Gone", "state": "gone", "cwd": str(self.places[0])}]}


class Teller:
    def __init__(self, told: list[str]) -> None:
        self._told = told
        self._works: list[asyncio.Future[None]] = []

    def answer(self, id_: str, text: str, mode: QueueMode | None = None) -> None:
        assert mode is QueueMode.STEER
        self._told.append(text)

    def spawn(self, work: Awaitable[None]) -> None:
        self._works.append(asyncio.ensure_future(work))


def claimer(folder: Folder, broker: Agents, told: list[str], *, mode: str = "notice") -> Claiming:
    facts = SimpleNamespace(kind="claude", launch={}, hello={"pid": os.getpid()})
    run = SimpleNamespace(name="A0", run_id="run-A0", cwd=str(folder.path))
    parts = SimpleNamespace(run=run, facts=facts, home=folder.home, broker=broker)
    return Claiming(cast(FeatureParts, parts), mode, Waits(cast(FeatureParts, Teller(told))))


async def test_nothing_is_claimed_where_an_agent_works_alone(
    folder: Folder, tmp_path: Path
) -> None:
    for alone in (Agents(), Agents(folder.path), Agents(folder.path, tmp_path / "elsewhere")):
        claims = claimer(folder, alone, [])
        for _ in range(3):
            assert await claims.before(CALL) == "" and await claims.holds() == []
        assert alone.asked == 1  # not for each call
    for together in (folder.path, folder.path / "sub", folder.path.parent):
        claims = claimer(folder, Agents(folder.path, together), [])
        assert await claims.before(CALL) == "" and await claims.holds() == ["a.py"]
        await claims.turn_ended()
        assert await claims.holds() == []
        await claims.ended()


async def test_an_agent_is_told_beside_its_call_or_refused_and_told_when_it_is_free(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "POLL", 0.0)
    folder.now = time.time_ns() // 1_000_000
    bob, told = folder.agent("Bob"), list[str]()
    bob.writes("a.py", "1\n")

    here = Agents(folder.path, folder.path)
    claims = claimer(folder, here, told)
    assert await claims.before(CALL) == ""
    assert "by Bob" in await claims.after(CALL) and await claims.after(CALL) == ""
    await claims.turn_ended()
    bob.writes("a.py", "2\n")
    strict = claimer(folder, here, told, mode="refuse")
    assert '"reason": "FILE_LEASED"' in await strict.before(CALL)
    assert await strict.after(CALL) == "" and told == []
    bob.ends_turn()
    async with asyncio.timeout(30):
        while not told:
            await asyncio.sleep(0)
    assert told == [
        f"Nobody else is changing this any more: {folder.path}/a.py. Read it again before you"
        " change it."
    ]
    for one in (claims, strict):
        await one.ended()


def test_the_note_names_a_few_files() -> None:
    assert held_remark([]) == ""
    assert held_remark(["a", "b"]) == "holds a, b"
    assert held_remark(["a\x1b", *"bcde"]) == "holds a^[, b, c and 2 more"


def test_the_setting_has_agents_asked_where_it_is_written_down(tmp_path: Path) -> None:
    assert [parse_claims(one) for one in ("notice", "refuse", "off")] == ["notice", "refuse", "off"]
    assert CLAIMS.default == "notice" and CLAIMS.summary(CLAIMS.kept("refuse")) == ["refuse"]
    with pytest.raises(ConfigError, match='must be "notice", "refuse" or "off"'):
        parse_claims(True)
