"""Between an agent's hooks and the engine: in time, and shut when anything goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from relay.agents.hook_codec import AgentHookCall, HookCodec, rewritten, text_of, tool_fields
from relay.agents.launch import GATE_TIMEOUT
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import (
    Aggregated,
    Command,
    Decision,
    Failure,
    HookDefinition,
    HookOutput,
    HookRun,
)
from relay.session import tool_hooks
from relay.session.hook_server import Reply
from relay.session.session_commands import PersonNote, ReportEvent
from relay.session.session_events import EventQueue, HooksObserved, InjectRequested, SessionEvent
from relay.session.steering import HookAttachment, Steering
from relay.session.tool_hooks import DEADLINE, TOLD_TEXT_MAX, Guard, ToolHookEndpoint

TOOL = {"kind": "tool", "tool_name": "Bash", "tool_input": {"command": "ls", "timeout": 5}}
DONE = {"kind": "done", "tool_name": "Bash", "tool_input": {}}
EVENTS = {
    "tool": (HookEventName.BEFORE_TOOL, True),
    "done": (HookEventName.AFTER_TOOL, True),
    "asked": (HookEventName.BEFORE_AGENT, False),
    "answered": (HookEventName.AFTER_AGENT, False),
}


class Words(HookCodec):
    """A translator for an agent that says what kind of event it sends."""

    def __init__(self) -> None:
        self.broken = ""

    def read(self, event: dict[str, Any]) -> AgentHookCall | None:
        if self.broken == "read":
            raise KeyError("kind")
        found = EVENTS.get(str(event.get("kind")))
        if found is None:
            return None
        name, waits = found
        fields = tool_fields(event) if waits else {k: v for k, v in event.items() if k != "kind"}
        return AgentHookCall(name, fields, waits, event)

    def answer(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        if self.broken == "answer" and not result.blocked:
            raise TypeError("cannot be said")
        if result.blocked:
            return {"deny": result.reason}
        said: dict[str, Any] = {"input": rewritten(call, result)}
        said |= {"agreed": True} if result.agreed else {}
        return said | ({"context": result.context} if result.context else {})


class Engine:
    """Says what it is told to, after as long as it is told to."""

    def __init__(self) -> None:
        self.result = Aggregated()
        self.wait: asyncio.Event | None = None
        self.events = set(HookEventName)
        self.guards = True
        self.error: Exception | None = None
        self.fired: list[tuple[HookEventName, dict[str, Any]]] = []
        self.cancelled = 0

    def has(self, event: HookEventName) -> bool:
        return event in self.events

    def guarded(self, event: HookEventName, fields: Mapping[str, Any]) -> bool:
        return self.guards

    async def fire(self, event: HookEventName, fields: Mapping[str, Any]) -> Aggregated:
        self.fired.append((event, dict(fields)))
        if self.error is not None:
            raise self.error
        if self.wait is not None:
            try:
                await self.wait.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return self.result


class Bench:
    """A gate, what it injects and what it notes."""

    def __init__(self) -> None:
        self.engine, self.words = Engine(), Words()
        self.events = EventQueue()
        self.gate = ToolHookEndpoint(self.words, self.engine, self.events)

    def governed(self, project: Guard) -> ToolHookEndpoint:
        """The same in a governed project."""
        return ToolHookEndpoint(self.words, self.engine, self.events, guards=[project])

    def posted(self) -> list[SessionEvent]:
        """What the session was told since the last look."""
        found = []
        while (event := self.events.take()) is not None:
            found.append(event)
        return found

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.posted() if isinstance(event, PersonNote)]


async def test_a_tool_call_is_told_without_secrets_and_shortened() -> None:
    key = "sk-ant-api03-" + "a1B2" * 24
    done = {
        "kind": "done",
        "tool_name": "Bash",
        "tool_input": {"command": f"export KEY={key}", "lines": ["y" * 3000]},
    }
    bench = Bench()
    await bench.gate.answer(done)
    [told] = [one for one in bench.posted() if isinstance(one, ReportEvent)]
    assert (told.kind, told.body, told.meta["phase"]) == ("tool_call", "Bash", "after")
    assert key not in told.meta["input"]["command"]
    assert told.meta["input"]["command"].startswith("export KEY=")
    assert told.meta["input"]["lines"] == ["y" * TOLD_TEXT_MAX + " [cut]"]


def test_the_agent_waits_longer_than_the_gate() -> None:
    assert GATE_TIMEOUT > DEADLINE


async def test_a_gate_asks_the_engine_and_answers_in_the_agents_words() -> None:
    bench = Bench()
    bench.engine.result = Aggregated(input={"command": "ls -l"}, inject=["look"])
    answer = await bench.gate.answer(dict(TOOL))
    assert answer == {"input": {"command": "ls -l", "timeout": 5}}
    [(event, fields)] = bench.engine.fired
    assert event is HookEventName.BEFORE_TOOL
    given = {"tool_name": "Bash", "tool_input": TOOL["tool_input"], "tool_use_id": ""}
    assert fields == given
    told, *more = bench.posted()
    assert isinstance(told, ReportEvent) and (told.kind, told.body) == ("tool_call", "Bash")
    assert told.meta["phase"] == "before" and more == [InjectRequested("look")]


async def test_what_nobody_asked_for_costs_nothing() -> None:
    bench = Bench()
    assert await bench.gate.answer({"kind": "weather"}) == {}
    bench.engine.events.clear()
    assert await bench.gate.answer(dict(TOOL)) == {}
    assert bench.engine.fired == []


async def test_what_is_only_observed_is_not_waited_for() -> None:
    bench = Bench()
    assert await bench.gate.answer({"kind": "asked", "prompt": "do it"}) == {}
    assert await bench.gate.answer({"kind": "answered", "prompt_response": "done"}) == {}
    answered = {"prompt_response": "done", "prompt": "do it"}
    assert bench.posted() == [
        HooksObserved(HookEventName.BEFORE_AGENT, {"prompt": "do it"}),
        HooksObserved(HookEventName.AFTER_AGENT, answered),
    ]
    assert bench.engine.fired == []


@pytest.mark.parametrize("guards", [True, False])
async def test_hooks_that_take_too_long_keep_a_guarded_gate_shut(
    guards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_hooks, "DEADLINE", 0.05)
    bench = Bench()
    bench.engine.wait = asyncio.Event()
    bench.engine.guards = guards
    answer = await bench.gate.answer(dict(TOOL))
    if guards:
        assert "did not end within 0.05 s" in answer["deny"] and "Bash" in answer["deny"]
    else:
        assert answer == {"input": None}
    assert bench.engine.cancelled == 1
    [note] = bench.notes
    assert note.startswith("on_before_tool for Bash: ")


async def test_a_failure_of_the_engine_is_one_of_the_hooks() -> None:
    bench = Bench()
    broken = Failure("planning", "the planner broke")
    bench.engine.result = Aggregated(success=False, errors=[broken])
    assert "the planner broke" in (await bench.gate.answer(dict(TOOL)))["deny"]
    bench.engine.guards = False
    assert await bench.gate.answer(dict(TOOL)) == {"input": None}


@pytest.mark.parametrize("reason", ["", " \n"])
async def test_a_refusal_is_never_without_a_reason(reason: str) -> None:
    bench = Bench()
    denial = HookOutput(decision=Decision.DENY, reason=reason)
    hook = HookDefinition(HookEventName.BEFORE_TOOL, "guard.sh", Command(("x",)), "a file")
    results = [HookRun(hook, True, denial), HookRun(hook, True, HookOutput())]
    bench.engine.result = Aggregated(decision=Decision.DENY, reason=reason, results=results)
    assert await bench.gate.answer(dict(TOOL)) == {"deny": "guard.sh refuses this"}
    bench.engine.result = Aggregated(decision=Decision.DENY)
    assert await bench.gate.answer(dict(TOOL)) == {"deny": "a hook refuses this"}
    bench.engine.result = Aggregated(decision=Decision.ASK)
    await bench.gate.answer(dict(TOOL))
    assert bench.engine.result.reason == "a hook wants a person to agree to this"
    bench.engine.result = Aggregated()
    await bench.gate.answer(dict(TOOL))
    assert bench.engine.result.reason == ""


async def test_a_failed_hook_that_allows_is_only_noted() -> None:
    bench = Bench()
    failed = Failure("hook", "the hook crashed")
    bench.engine.result = Aggregated(
        success=False, errors=[failed], conflicts=["a and b rewrote x"]
    )
    assert await bench.gate.answer(dict(TOOL)) == {"input": None}
    assert bench.notes == ["the hook crashed", "a and b rewrote x"]


@pytest.mark.parametrize("broken", ["read", "answer", "engine"])
async def test_whatever_breaks_the_gate_stays_shut(
    broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = Bench()
    if broken == "engine":
        bench.engine.error = RuntimeError("boom")
    else:
        bench.words.broken = broken
    answer = await bench.gate.answer(dict(TOOL))
    assert answer["deny"].startswith("relay could not ask its hooks: ")
    assert bench.notes == [answer["deny"]]
    if broken != "read":
        assert await bench.gate.answer(dict(DONE)) == {}  # it has run already
    assert "Traceback" in capsys.readouterr().err  # in the log of the run


async def test_a_client_that_goes_away_ends_its_hooks() -> None:
    bench = Bench()
    bench.engine.wait = asyncio.Event()
    waiting = asyncio.ensure_future(bench.gate.answer(dict(TOOL)))
    while not bench.engine.fired:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert bench.engine.cancelled == 1
    bench.engine.wait = None
    assert await bench.gate.answer(dict(TOOL)) == {"input": None}


class Attaching(Steering):
    """Has one message to give, and remembers what became of it."""

    text = "Relay message"

    def __init__(self) -> None:
        self.fates: list[bool] = []
        self.broken = False

    async def attach(self, call: AgentHookCall, result: Aggregated) -> HookAttachment | None:
        if self.broken:
            raise RuntimeError("nothing to give")
        return (
            HookAttachment(self.text, self.sent) if call.event is HookEventName.AFTER_TOOL else None
        )

    def sent(self, out: bool) -> None:
        self.fates.append(out)


async def test_messages_go_with_the_answer_also_where_no_hook_asks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench = Bench()
    steering = Attaching()
    gate = ToolHookEndpoint(bench.words, bench.engine, bench.events, steering)
    bench.engine.events.clear()
    assert await gate.answer(dict(TOOL)) == {}
    reply = await gate.answer(dict(DONE))
    assert reply == {"input": None, "context": "Relay message"} and steering.fates == []
    assert isinstance(reply, Reply)
    reply.sent(True)
    assert steering.fates == [True]

    bench.engine.events = set(HookEventName)
    bench.engine.result = Aggregated(context="mind the cat")
    reply = await gate.answer(dict(DONE))
    assert reply["context"] == "mind the cat\n\nRelay message"
    bench.words.broken = "answer"
    assert await gate.answer(dict(DONE)) == {}
    assert steering.fates == [True, False]  # that answer was none

    bench.words.broken, steering.broken = "", True
    assert await gate.answer(dict(DONE)) == {"input": None, "context": "mind the cat"}
    assert "nothing to give" in bench.notes[-1]
    assert "Traceback" in capsys.readouterr().err  # in the log of the run


def test_an_agents_event_may_hold_anything() -> None:
    odd = {"tool_name": 7, "tool_input": "text", "tool_use_id": None}
    assert tool_fields(odd) == {"tool_name": "", "tool_input": {}, "tool_use_id": ""}
    assert text_of({"prompt": ["x"]}, "prompt") == ""
    call = AgentHookCall(HookEventName.BEFORE_TOOL, {"tool_input": None})
    assert rewritten(call, Aggregated()) is None
    assert rewritten(call, Aggregated(input={"a": 1})) == {"a": 1}


class Project:
    """A governed project: refuses what it is told to, and keeps what it was asked."""

    def __init__(self, *refused: str, told: str = "") -> None:
        self.refused = refused
        self.agrees = ""
        self.told = told
        self.asked: list[object] = []
        self.over: list[object] = []

    async def before(self, call: AgentHookCall, seconds: float) -> str:
        command = call.fields["tool_input"]["command"]
        self.asked.append(command)
        return '{"type": "HOOK_BLOCKED"}' if command in self.refused else ""

    def agreed(self, call: AgentHookCall) -> bool:
        return bool(call.fields["tool_input"]["command"] == self.agrees)

    async def after(self, call: AgentHookCall) -> str:
        self.over.append(call.fields["tool_name"])
        return self.told


async def test_what_the_project_refuses_is_refused_in_its_words_alone_and_no_hook_is_asked() -> (
    None
):
    bench = Bench()
    gate = bench.governed(Project("ls"))
    bench.engine.result = Aggregated(decision=Decision.DENY, reason="mine", context="more")
    assert await gate.answer(dict(TOOL)) == {"deny": '{"type": "HOOK_BLOCKED"}'}
    assert bench.engine.fired == []


async def test_what_a_hook_rewrites_the_project_is_asked_about_again() -> None:
    bench = Bench()
    project = Project("rm x")
    gate = bench.governed(project)
    bench.engine.result = Aggregated(input={"command": "rm x"}, context="more")
    assert await gate.answer(dict(TOOL)) == {"deny": '{"type": "HOOK_BLOCKED"}'}
    assert project.asked == ["ls", "rm x"]


async def test_what_a_person_has_agreed_to_the_agent_does_not_ask_again() -> None:
    bench = Bench()
    project = Project()
    project.agrees = "ls"
    bench.engine.events = set()
    gate = bench.governed(project)
    assert await gate.answer(dict(TOOL)) == {"agreed": True, "input": None}
    # They did not agree to what a hook makes of it.
    bench.engine.events = set(HookEventName)
    bench.engine.result = Aggregated(input={"command": "ls -a"})
    assert "agreed" not in await gate.answer(dict(TOOL))


async def test_the_project_is_told_of_a_call_that_is_over() -> None:
    bench = Bench()
    project = Project()
    bench.engine.events = set()
    assert await bench.governed(project).answer(dict(DONE)) == {}
    assert (project.asked, project.over) == ([], ["Bash"])
    told = await bench.governed(Project(told="not yours")).answer(dict(DONE))
    assert told == {"input": None, "context": "not yours"}
