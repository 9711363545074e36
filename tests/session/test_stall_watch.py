"""When a busy agent that stands still is slow, and when it is wedged."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.core.message import AgentState
from relay.core.processes import ProcessUsage, usage_of
from relay.core.source_events import StateChange
from relay.hooks.events import HookEventName
from relay.session import stall_watch
from relay.session.session_events import EventQueue, HooksObserved, SourcesRead
from relay.session.stall_watch import Stall, StallWatch
from relay.session.typing_policy import Guards

AGENT, SERVER = ProcessUsage("agent", 100.0, 5000.0), ProcessUsage("mcp", 1.0, 4990.0)


@pytest.mark.parametrize(
    ("used", "more", "text"),
    [
        pytest.param(0.5, [], "wedged: no output, no hook and no CPU for 5 min", id="wedged"),
        pytest.param(9.0, [], None, id="works"),
        pytest.param(
            0.0,
            [ProcessUsage("sleep", 0.0, 290.0), ProcessUsage("sh", 0.0, 295.0)],
            "has run sh for 5 min, and shows nothing",
            id="slow",
        ),
    ],
)
def test_three_clocks_and_a_tool_decide(
    used: float, more: list[ProcessUsage], text: str | None
) -> None:
    stall = Stall()
    assert not stall.still(985.0, False, 0)
    assert not stall.still(1000.0, True, 1)
    assert stall.still(1015.0, True, 1)
    assert stall.judge(1015.0, [AGENT, SERVER]) is None
    assert stall.still(1315.0, True, 1)
    later = ProcessUsage("agent", AGENT.cpu + used, AGENT.age + 300)
    verdict = stall.judge(1315.0, [later, SERVER, *more])
    assert (verdict and verdict.text) == text
    assert not stall.still(1330.0, True, 2)  # it has written


def test_a_turn_that_began_in_an_earlier_session_is_not_judged() -> None:
    stall = Stall()
    stall.still(0.0, True, 1)
    assert stall.still(1000.0, True, 1) and stall.judge(1000.0, [AGENT]) is None


def test_it_is_told_once_and_taken_back_when_the_agent_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, guards, queue = [0.0], Guards(), EventQueue()
    sources = SimpleNamespace(told=0)
    watch = StallWatch(guards, cast(Any, sources), os.getpid(), queue, lambda: now[0])
    monkeypatch.setattr(stall_watch, "usage_of", lambda pid: [AGENT])

    async def looks(seconds: float, count: int) -> list[object]:
        for _ in range(count):
            now[0] += seconds
            await watch.look()
        return list(iter(queue.take, None))

    def shown() -> str | None:
        return guards.shown(StateChange(guards.state)).reason

    assert asyncio.run(looks(15.0, 2)) == []
    guards.changed(StateChange(AgentState.BUSY), now[0])
    told = asyncio.run(looks(100.0, 6))
    assert [type(one) for one in told] == [SourcesRead, HooksObserved]
    assert isinstance(told[1], HooksObserved) and told[1].hook is HookEventName.WEDGED
    assert str(shown()).startswith("wedged: ")
    guards.output(now[0], 5)
    assert not shown() and asyncio.run(looks(15.0, 2)) == []


def test_the_kernel_tells_what_an_agent_and_its_tools_have_used() -> None:
    spin = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass\n"
    command = [sys.executable, "-c", spin + "print(flush=True); time.sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tool:
        assert tool.stdout is not None and tool.stdout.readline()
        found = usage_of(os.getpid())
        own = usage_of(tool.pid)
        tool.kill()
    assert len(own) == 1 and 0.1 <= own[0].cpu < 20 and own[0].age < 30
    assert own[0].name in [one.name for one in found[1:]]
