"""Commands carried out: handlers and hooks run, the broker asked, the timer kept, the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from relay.core.message import AgentState
from relay.core.source_events import Line, Pause, StateChange
from relay.hooks.context import Context, Identity
from relay.hooks.registry import BUILTIN, Registry
from relay.hooks.run_functions import FunctionRunner
from relay.session import driver as module
from relay.session.actions import SessionActions
from relay.session.background import Tasks
from relay.session.broker_reports import BrokerReports
from relay.session.delivery import DeliveryQueue
from relay.session.detector import Detection
from relay.session.door import SessionFeatures
from relay.session.driver import AdapterFeed, LateClock, Services, SessionDriver
from relay.session.handler_lanes import register
from relay.session.pump_link import PumpLink
from relay.session.run_info import RunInfo
from relay.session.session_commands import FeatureCommand
from relay.session.session_events import (
    AgentExited,
    AgentWrote,
    EventQueue,
    MessageArrived,
    OutputRested,
    PumpCheckpoint,
    PumpLost,
    SourcesHeard,
)
from relay.session.session_hooks import (
    RemoteRequests,
    SessionConfig,
    SessionHookLog,
    SessionHooks,
    make_engine,
)
from relay.session.sources import SourceSelector
from tests.session.playbook import MESSAGE, Playbook, find
from tests.session.test_broker_reports import FakeBroker
from tests.session.test_delivery import FakeStopper, FakeTypist


class Bench:
    """A driver with a fake broker and a fake way into the agent; everything else is real."""

    def __init__(self, registry: Registry, handler_timeout: float = 30.0) -> None:
        self.broker, self.channel, self.queue = FakeBroker(), FakeTypist(), EventQueue()
        self.playbook = Playbook(registry)
        run = RunInfo("run", "Ben", "me", 0, "/", {})
        tasks, clock = Tasks(self.queue), LateClock()
        self.clock = clock
        reports = BrokerReports(self.broker, self.queue, tasks, run)
        loop, session = asyncio.get_running_loop(), self.playbook.session
        actions = SessionActions(loop, self.queue, self.broker, run, lambda: 0)
        identity = Identity("Ben", "Ben", "run", "/", {}, None)
        context = Context(identity, actions, session.output, session.messages)
        runner = FunctionRunner(registry, timeout=handler_timeout)
        config = SessionConfig(identity, context, None)
        log = SessionHookLog(self.broker, self.queue, tasks)
        engine = make_engine(config, registry, runner, env={}, log=log)
        remote = RemoteRequests(engine.requests, self.broker, self.queue)
        hooks = SessionHooks(runner, log, engine, remote)
        services = Services(
            pump=PumpLink(self.queue),
            broker=self.broker,
            reports=reports,
            deliveries=DeliveryQueue(
                *(self.channel, reports, self.playbook.guards, clock), *(FakeStopper(),)
            ),
            steering=None,
            registry=registry,
            runner=runner,
            actions=actions,
            identity=identity,
            hooks=hooks,
            features=SessionFeatures(self.queue),
            tasks=tasks,
        )
        self.driver = SessionDriver(self.queue, session, services, clock)
        self.driver.start(PumpCheckpoint({}))

    def asked(self, op: str) -> list[dict[str, Any]]:
        return [fields for asked, fields in self.broker.asked if asked == op]

    async def until(self, check: Callable[[], object]) -> None:
        while not check():
            await asyncio.sleep(0)

    def hear(self, *heard: Detection | StateChange) -> None:
        self.queue.post(SourcesHeard(list(heard)))


@asynccontextmanager
async def play(registry: Registry, handler_timeout: float = 30.0) -> AsyncIterator[Bench]:
    """What a session does, and then its end."""
    bench = Bench(registry, handler_timeout)
    running = asyncio.ensure_future(bench.driver.run())
    async with asyncio.timeout(20):
        yield bench
        bench.queue.post(AgentExited(0))
        await bench.driver.until_exit()
        await bench.driver.end()
    running.cancel()


async def test_what_the_agent_says_is_sent_under_the_id_of_what_was_heard() -> None:
    registry = Registry()
    register(registry)
    async with play(registry) as bench:
        bench.queue.post(AgentWrote(b"@relay:Bob one\r\n\r\n@relay:Bob two\r\n\r\n"))
        await bench.until(lambda: len(bench.asked("send")) == 2)
    sent = bench.asked("send")
    assert [fields["body"] for fields in sent] == ["one", "two"]
    assert len({fields["id"] for fields in sent}) == 2


async def test_a_handler_of_the_users_runs_in_its_turn_and_its_answer_goes_to_the_agent() -> None:
    calls: list[str] = []
    registry = Registry()

    def deploy(target: str) -> str:
        calls.append(target)
        return f"{target} is deployed"

    registry.add_pattern("deploy", "*", deploy)
    async with play(registry) as bench:
        bench.hear(*(find("deploy", str(number), number=number) for number in range(5)))
        await bench.until(lambda: len(bench.asked("send")) == 5)
    assert calls == [str(number) for number in range(5)]
    claimed = [one["id"] for one in bench.asked("event") if one["kind"] == "match"]
    # Not the ids of what was heard: those are for the messages that a handler sends on.
    assert len(set(claimed)) == 5 and not set(claimed) & {f"id{n}" for n in range(5)}
    assert bench.asked("send")[0]["body"] == "0 is deployed"


async def test_what_was_read_by_the_agents_end_is_seen_before_its_last_hooks_run() -> None:
    registry, order = Registry(), list[str]()
    async with play(registry) as bench:

        async def on_end() -> None:
            order.extend(fields["state"] for fields in bench.asked("state"))

        registry.add_hook("on_session_end", on_end)
        bench.channel.proof = None
        bench.queue.post(MessageArrived(MESSAGE))
        await bench.until(lambda: len(bench.asked("state")) == 2)
    assert order == ["delivering", "submitted", "seen"]


async def test_the_start_and_the_last_words_come_before_the_end_however_short_the_life() -> None:
    fired: list[str] = []
    registry = Registry()
    registry.add_hook("session_start", lambda ctx: fired.append("start"))
    registry.add_hook("output", lambda output: fired.append(output))
    registry.add_hook("session_end", lambda reason: fired.append(reason))
    async with play(registry) as bench:
        bench.queue.post(AgentWrote(b"ERROR: boom\r\n"))
    assert sorted(fired[:2]) == ["ERROR: boom", "start"] and fired[2:] == ["exit"]


async def test_last_hooks_that_take_too_long_are_ended_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSING_DEADLINE", 0.3)
    registry = Registry()

    async def hang(ctx: object) -> None:
        await asyncio.Event().wait()

    registry.add_hook("session_end", hang)
    async with play(registry) as bench:
        pass
    told = bench.asked("agent_state")[-1]["notes"]
    assert any("on_session_end took too long" in note for note in told)


async def test_hooks_have_the_time_that_the_configuration_gives_handlers() -> None:
    registry, released = Registry(), threading.Event()
    registry.add_hook("session_start", lambda ctx: released.wait(60))
    async with play(registry, handler_timeout=0.1) as bench:
        await bench.until(lambda: bench.playbook.notes)
        released.set()
    assert "did not end within 0.1 s" in bench.playbook.notes[0]


async def test_a_fault_inside_is_noted_and_nothing_else_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with play(Registry()) as bench:
        bench.queue.post(MessageArrived(None))  # type: ignore[arg-type]
        bench.hear(StateChange(AgentState.BUSY))
        await bench.until(lambda: bench.asked("agent_state")[-1:] != [])
        await bench.until(lambda: bench.asked("agent_state")[-1]["state"] == "busy")
    assert "something in relay failed: AttributeError" in bench.playbook.notes[0]
    assert "Traceback" in capsys.readouterr().err


async def test_one_command_that_fails_loses_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry, sent = Registry(), list[str]()

    def take(features: SessionFeatures, namespace: str, command: FeatureCommand) -> None:
        if command.action == "Bob":
            raise KeyError(command.action)
        sent.append(command.action)

    registry.add_pattern("memory", "*", print, source=BUILTIN)
    monkeypatch.setattr(SessionFeatures, "take", take)
    async with play(registry) as bench:
        bench.hear(find("memory", "Bob", number=1), find("memory", "Carol", number=2))
        await bench.until(lambda: sent)
    assert "something in relay failed: KeyError" in bench.playbook.notes[0]
    assert sent == ["Carol"]


async def test_a_fault_in_what_is_due_is_not_repeated_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries: list[float] = []

    def tick(sources: SourceSelector, now: float) -> None:
        tries.append(now)
        raise KeyError("a fault")

    monkeypatch.setattr(module, "FAULT_REST", 3600.0)
    monkeypatch.setattr(SourceSelector, "tick", tick)
    monkeypatch.setattr(SourceSelector, "next_deadline", lambda sources: 0.0)
    bench = Bench(Registry())
    for _ in range(100):
        await asyncio.sleep(0)
    bench.driver.stop()
    assert len(tries) == 1


async def test_a_pump_that_hangs_up_has_not_said_that_the_agent_exited() -> None:
    bench = Bench(Registry())
    bench.queue.post(PumpLost())
    bench.driver.drain()
    await bench.driver.until_exit()
    bench.driver.stop()
    assert not bench.driver.orderly


async def test_a_rest_between_late_output_counts_as_time() -> None:
    bench = Bench(Registry())
    clock = bench.clock
    before = clock()
    bench.driver.take(OutputRested(100.0))
    bench.driver.stop()
    assert (clock() - before) >= 100.0


def test_what_an_adapter_hands_over_reaches_its_source_at_once_and_the_session_next() -> None:
    playbook, queue = Playbook(), EventQueue()
    feed = AdapterFeed(playbook.sources, queue)
    feed.reported([Line("m1", "@relay:Ann hi"), Pause("m1")])
    assert queue.take() is None  # the screen is believed: there is no other source
    feed.note("the file is gone")
    feed.read()
    assert [type(queue.take()).__name__ for _ in range(2)] == ["PersonNote", "SourcesRead"]
