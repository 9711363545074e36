"""Governance in a session: when it begins, what is done in which order, what survives a kill."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from relay.agents.context_door import ContextDoor
from relay.agents.hook_codec import AgentHookCall
from relay.core.errors import RelayError, StorageError
from relay.core.message import AgentState, QueueMode
from relay.features.governance.governed_project import GovernedProject
from relay.features.governance.session import (
    GIVEN_MAX,
    PENDING_MAX,
    GovernanceSession,
    GovernedAgent,
)
from relay.hooks.events import HookEventName
from relay.session.session_commands import FeatureCommand

CAT, FILE = {"command": "cat src/a.py"}, {"file_path": "src/a.py"}
CALL = AgentHookCall(HookEventName.BEFORE_TOOL, {"tool_name": "Write"}, True)


class Door:
    """Keeps what the agent is told."""

    tells_once = True

    def __init__(self) -> None:
        self.given: list[str] = []

    def give(self, text: str) -> bool:
        self.given.append(text)
        return True


class Project:
    """A governed project that keeps what was wanted of it."""

    def __init__(self) -> None:
        self.violation = ""
        self.done: list[tuple[str, ...]] = []
        self.room = asyncio.Event()
        self.room.set()

    async def before(self, call: AgentHookCall, seconds: float) -> str:
        return "refused"

    async def after(self, call: AgentHookCall) -> str:
        self.done.append(("after",))
        return self.violation

    def holds(self) -> list[str]:
        return []

    async def do(self, action: str, text: str, person: str = "") -> str:
        await self.room.wait()
        self.done.append((action, text, person))
        if text == "bad":
            raise RelayError("no such intent", hint="INT-1")
        return f"{action} {text}"

    async def set_status(self, id_: str, status: str) -> str:
        return f"{id_} {status}"

    async def selected(self) -> str:
        return "INT-1"

    async def turn_ended(self, *, chosen: bool = False) -> tuple[str, str]:
        self.done.append(("turn ended", "chosen") if chosen else ("turn ended",))
        return "still INT-1", self.violation

    async def ended(self) -> None:
        self.done.append(("ended",))

    async def note(self, what: dict[str, Any], intent: str = "") -> None:
        self.done.append(("note", what["event"], what["by"]))

    def rules(self, *, words: bool = True) -> str:
        return "rules" if words else "rules for the shell"

    def close(self) -> None:
        self.done.append(("closed",))


class Bench:
    """One agent in ``folder``, and whoever hears of it."""

    def __init__(self, folder: Path, **more: Any) -> None:
        self.project, self.door = Project(), Door()
        self.answers: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.remarks: list[str] = []
        self.broken: Exception | None = None
        self.tasks: list[asyncio.Future[None]] = []
        self.agent = replace(GovernedAgent("Ann", "run-1", "claude", str(folder), "me"), **more)
        self.add_on = self.made()

    def made(self) -> GovernanceSession:
        return GovernanceSession(self.agent, self._open, self, door=cast(ContextDoor, self.door))

    def _open(self, root: str) -> GovernedProject:
        if self.broken is not None:
            raise self.broken
        return cast(GovernedProject, self.project)

    def answer(self, id_: str, text: str, mode: QueueMode | None = None) -> None:
        self.answers.append((id_, text))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def remark(self, text: str) -> None:
        self.remarks.append(text)

    def changed(self) -> None:
        pass

    def spawn(self, work: Awaitable[None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def settled(self) -> None:
        await asyncio.gather(*self.tasks)


async def test_a_run_is_governed_from_the_call_on_after_the_folder_has_appeared(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.add_on.begin()
    await bench.settled()
    assert await bench.add_on.before(CALL, 5.0) == "" and bench.door.given == []
    (tmp_path / ".orchestration").mkdir()
    assert await bench.add_on.before(CALL, 5.0) == "refused"
    # Its session does not hear @intent: of what was not governed when it started.
    assert bench.door.given == ["rules for the shell"]
    (tmp_path / ".orchestration").rmdir()
    assert await bench.add_on.before(CALL, 5.0) == "refused"
    again = bench.made()
    again.restore(bench.add_on.state())
    assert await again.before(CALL, 5.0) == "refused"


async def test_what_cannot_be_opened_refuses_all_but_reads_and_is_opened_again(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, root=str(tmp_path))
    for error in (StorageError("the database is damaged"), OSError("no room")):
        bench.broken = error
        assert '"reason": "ENGINE_FAILED"' in await bench.add_on.before(CALL, 5.0)
        for read in (
            {"tool_name": "Read", "tool_input": FILE},
            {"tool_name": "Bash", "tool_input": CAT},
        ):
            assert await bench.add_on.before(replace(CALL, fields=read), 5.0) == ""
    bench.broken = None
    assert await bench.add_on.before(CALL, 5.0) == "refused"


async def test_an_agent_that_the_person_lets_go_is_never_asked(tmp_path: Path) -> None:
    bench = Bench(tmp_path, root=str(tmp_path), ungoverned=True)
    bench.add_on.restore({})
    await bench.settled()
    bench.add_on.begin()
    await bench.settled()
    assert bench.project.done == []  # its start is written down before it runs
    assert bench.notes[0].startswith("ungoverned: ")
    assert await bench.add_on.before(CALL, 5.0) == ""
    with pytest.raises(RelayError, match="--ungoverned"):
        await bench.add_on.ask({"do": "select", "id": "INT-1"}, False)


@pytest.mark.parametrize("ungated", ["", "it has no hooks"], ids=["hooks", "none"])
async def test_an_agent_that_the_kernel_holds_to_an_intent_is_traced_and_works_on_it(
    tmp_path: Path, ungated: str
) -> None:
    bench = Bench(tmp_path, root=str(tmp_path), intent="INT-1", ungated=ungated)
    bench.add_on.restore({})
    await bench.settled()
    bench.made().restore(bench.add_on.state())  # after a kill of the session
    await bench.settled()
    ends = [("closed",)] if ungated else [("select", "INT-1", "me")]
    assert bench.project.done == [("note", "confined", "me"), *ends]
    assert bench.notes == ["confined to INT-1"]
    # Where it asks before its calls, they are checked as ever; else the kernel alone holds it.
    assert await bench.add_on.before(CALL, 5.0) == ("" if ungated else "refused")
    if ungated:
        with pytest.raises(RelayError, match="writes for INT-1 alone"):
            await bench.add_on.ask({"do": "select", "id": "INT-2"}, False)
        with pytest.raises(RelayError, match="no text of at most"):
            await bench.add_on.ask({"do": "learn", "text": ["x"]}, False)


async def test_commands_are_done_in_their_order_and_answered_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, root=str(tmp_path))
    bench.project.room.clear()
    for id_, text in (("1", "INT-1"), ("2", "bad"), ("1", "INT-1")):
        bench.add_on.take(FeatureCommand(id_, "select", text))
    assert not await bench.add_on.settle(0.01)
    # A session that is killed now goes on with both.
    again = Bench(tmp_path, root=str(tmp_path))
    again.add_on.restore(bench.add_on.state())
    bench.project.room.set()
    assert await bench.add_on.settle(5.0)
    await bench.settled()
    answers = [("1", "select INT-1"), ("2", "not done: @intent:select: no such intent (INT-1)")]
    assert bench.answers == answers
    await again.settled()
    assert again.answers == answers


async def test_there_is_an_end_to_what_waits_and_to_what_is_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path, root=str(tmp_path))
    bench.add_on.take(FeatureCommand("0", "learn", "x" * (GIVEN_MAX + 1)))
    for n in range(PENDING_MAX + 1):
        bench.add_on.take(FeatureCommand(f"{n + 1}", "list", ""))
    [(_, long), (last, many)] = bench.answers
    assert "more than" in long and last == f"{PENDING_MAX + 1}" and "too many" in many
    await bench.settled()
    assert len(bench.project.done) == PENDING_MAX


async def test_its_turn_gives_back_what_it_took_and_the_next_one_is_reminded(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, root=str(tmp_path))
    bench.add_on.begin()
    for state in (AgentState.IDLE, AgentState.BUSY, AgentState.BLOCKED, AgentState.BUSY):
        await bench.settled()
        bench.add_on.state_changed(state)
    await bench.settled()
    assert bench.project.done == [("turn ended",)]  # what an earlier session has left
    bench.add_on.state_changed(AgentState.IDLE)
    bench.add_on.state_changed(AgentState.IDLE)
    await bench.settled()
    assert bench.project.done == [("turn ended",)] * 2
    assert bench.door.given == ["rules", "still INT-1", "still INT-1"]
    await bench.add_on.end()
    assert bench.project.done[-1] == ("ended",)


async def test_what_was_changed_against_the_intent_both_are_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path, root=str(tmp_path))
    assert await bench.add_on.after(CALL) == "" and not bench.notes
    bench.project.violation = "x (made)"
    told = await bench.add_on.after(CALL)
    assert told.startswith("x (made)\n") and bench.notes == ["x (made)"]
    bench.add_on.state_changed(AgentState.IDLE)
    await bench.settled()
    assert bench.door.given == [f"{told}\n\nstill INT-1"] and len(bench.notes) == 2


async def test_what_was_selected_in_words_is_for_the_turn_that_reads_the_answer(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, root=str(tmp_path))
    bench.add_on.take(FeatureCommand("1", "select", "INT-1"))
    for state in (AgentState.IDLE, AgentState.BUSY, AgentState.IDLE):
        await bench.settled()
        bench.add_on.state_changed(state)
    await bench.settled()
    assert bench.project.done[1:] == [("turn ended", "chosen"), ("turn ended",)]


async def test_a_session_after_a_kill_finishes_what_the_one_before_has_begun(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, root=str(tmp_path))
    await bench.add_on.after(CALL)
    bench.add_on.state_changed(AgentState.IDLE)
    await bench.settled()
    await bench.made().end()
    assert bench.project.done == [("after",), ("turn ended",), ("ended",)]
