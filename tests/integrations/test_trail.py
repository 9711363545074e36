"""What agents may say to trail; the real program is in tests/real_agents/test_trail.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from relay.app.relay import Relay
from relay.hooks.context import Context, Identity
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import HookOutput
from relay.hooks.run_functions import FunctionRunner
from relay.integrations import trail
from tests.hooks.fakes import IDENTITY, FakeActions, context, engine

#: Writes its arguments down, a line for each, and says a word.
FAKE = '#!/bin/sh\nprintf "%s\\n" "$*" >>"$(dirname "$0")/asked"\necho "said $3"\n'


@pytest.fixture
def program(tmp_path: Path, isolated_home: Path) -> str:
    path = tmp_path / "trail"
    path.write_text(FAKE)
    path.chmod(0o755)
    return str(path)


def say(relay: Relay, target: str, message: str) -> HookOutput | None:
    async def run() -> HookOutput | None:
        runner = FunctionRunner(relay.registry)
        ctx = context(FakeActions())
        [outcome] = await runner.run_pattern("trail", target, message, ctx)
        await runner.close()
        assert outcome.ok, outcome.error
        return outcome.result

    return asyncio.run(run())


def test_each_verb_takes_its_text_as_data(program: str, tmp_path: Path) -> None:
    relay = Relay()
    trail.use(relay, program=program, data_dir="/somewhere/{agent}")
    said = say(relay, "decision", "--quiet; $(reboot)")
    assert said == HookOutput(inject=("said decision",))
    say(relay, "complete", "--all of it")
    assert (tmp_path / "asked").read_text().splitlines() == [
        "--data-dir /somewhere/Alice decision -- --quiet; $(reboot)",
        "--data-dir /somewhere/Alice complete --summary=--all of it",
    ]


def test_mistakes_are_answered_without_asking_trail(program: str, tmp_path: Path) -> None:
    relay = Relay()
    trail.use(relay, program=program)
    unknown, empty = say(relay, "phase", "planning"), say(relay, "reflect", " ")
    assert unknown is not None and "not phase" in unknown.inject[0]
    assert empty == HookOutput(inject=("@trail:reflect needs a text",))
    assert not (tmp_path / "asked").exists()


def test_what_trail_refuses_reaches_the_agent(program: str) -> None:
    Path(program).write_text("#!/bin/sh\necho 'at x.js:3\nError: nothing is active' >&2\nexit 1\n")
    relay = Relay()
    trail.use(relay, program=program)
    assert say(relay, "reflect", "so far") == HookOutput(inject=("trail: nothing is active",))


def test_an_end_that_is_unknown_is_refused() -> None:
    with pytest.raises(trail.TrailError, match="at_end"):
        trail.use(Relay(), at_end="forget")


#: trail with one active trajectory, whose id and title stand in a file beside it. With ``.late``
#: there it says once that there is none.
ONE = """#!/bin/sh
cd "$(dirname "$0")"
verb=$1
[ "$verb" = --data-dir ] && verb=$3
case $verb in
status)
    if [ -e late ]; then rm late
    elif [ -e open ]; then echo "Active Trajectory: $(cat open)"; echo "Task: of $(cat open)"
    fi;;
start)
    [ -e open ] && { echo "Error: Trajectory already active" >&2; exit 1; }
    echo "traj_$$" >open; cat open;;
complete|abandon) echo "$(cat open) $*" >>closed; rm open;;
esac
"""


def _identity(name: str) -> Identity:
    return replace(IDENTITY, agent_name=name, session_id=name)


class Agent:
    """One session of an agent with trail."""

    def __init__(self, program: str) -> None:
        self.relay = Relay(task="work")
        trail.use(self.relay, program=program)
        self.runner = FunctionRunner(self.relay.registry)

    async def fire(self, event: HookEventName, name: str, reason: str = "") -> list[str]:
        hooks = engine(self.relay.registry, self.runner, FakeActions(), _identity(name))
        said = await hooks.fire(event, {"reason": reason})
        [result] = said.results
        assert result.success, result.error
        return said.inject

    async def say(self, name: str, target: str, message: str) -> None:
        ctx = Context(_identity(name), FakeActions())
        await self.runner.run_pattern("trail", target, message, ctx)


def play(program: str, scenario: Callable[[Agent], Awaitable[None]]) -> list[str]:
    """What was closed, a line each."""
    Path(program).write_text(ONE)

    async def whole() -> None:
        agent = Agent(program)
        async with asyncio.timeout(30):
            await scenario(agent)
        await agent.runner.close()

    asyncio.run(whole())
    closed = Path(program).with_name("closed")
    return closed.read_text().splitlines() if closed.exists() else []


def test_who_is_a_moment_too_late_to_begin_one_joins_it(program: str) -> None:
    async def scenario(agent: Agent) -> None:
        await agent.fire(HookEventName.SESSION_START, "Alice")
        Path(program).with_name("late").touch()
        [taught] = await agent.fire(HookEventName.SESSION_START, "Bob")
        assert "of traj_" in taught
        await agent.fire(HookEventName.SESSION_END, "Bob", "exit")

    assert play(program, scenario) == []


def test_what_another_agent_has_begun_since_is_not_closed(program: str) -> None:
    async def scenario(agent: Agent) -> None:
        await agent.fire(HookEventName.SESSION_START, "Alice")
        await agent.say("Alice", "complete", "done")
        await agent.say("Bob", "start", "the next")
        await agent.fire(HookEventName.SESSION_END, "Alice", "exit")

    assert len(play(program, scenario)) == 1


def test_a_next_session_of_the_run_closes_what_the_first_has_begun(program: str) -> None:
    async def scenario(agent: Agent) -> None:
        await agent.fire(HookEventName.SESSION_START, "Alice")
        after = Agent(program)
        await after.fire(HookEventName.SESSION_END, "Alice", "exit")
        await after.fire(HookEventName.SESSION_END, "Alice", "exit")
        await after.runner.close()

    [closed] = play(program, scenario)
    assert "Alice's session ended" in closed
