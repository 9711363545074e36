"""When an agent is told to stop its turn, and when never."""

from __future__ import annotations

import asyncio
import re
from typing import cast

import pytest

from relay.agents.base import AgentAdapter, Blocked, TypingRules
from relay.agents.profile import InputLine, Profile
from relay.core.errors import RelayError
from relay.core.message import AgentState
from relay.core.source_events import Screen, StateChange
from relay.protocol import frames
from relay.session import turn_stopper as module
from relay.session.agent_questions import OpenQuestions
from relay.session.agent_terminal import AgentTerminal, NoTerminal
from relay.session.session_events import EventQueue, TurnStopped
from relay.session.turn_stopper import TurnStopper
from relay.session.typing_policy import DIALOG_WAITS, DRAFT, Guards
from tests.session.playbook import MESSAGE, why

RULE = "─" * 10
BUSY = ["● working", RULE, "> ", RULE, "  esc to interrupt"]
IDLE = ["● done", RULE, "> ", RULE, "  ? for shortcuts"]
TYPED = ["● working", RULE, "> my words", RULE, "  esc to interrupt"]
ASKS = ["● working", "Proceed? Esc to cancel"]
PROFILE = Profile(
    "agent",
    input=InputLine(
        above=re.compile(RULE), prompt=re.compile("> ?"), below=re.compile(RULE), other_mode=None
    ),
    dialog=(re.compile("Esc to cancel"),),
    interrupt="\x1b",
    interrupt_shown=(re.compile("esc to interrupt"),),
)


class Agent:
    """An agent's terminal: what it shows, and which keys came."""

    def __init__(self, profile: Profile = PROFILE, adapter: AgentAdapter | None = None) -> None:
        self.rows, self.title = BUSY, ""
        self.keys: list[tuple[bytes, int, int | None]] = []
        self.written: bool | None = True
        self.guards = Guards()
        self.events = EventQueue()
        self.now = 100.0
        self.guards.changed(StateChange(AgentState.BUSY), 0.0)
        drawn = cast(Screen, self)
        questions = OpenQuestions(drawn, NoTerminal(), TypingRules())
        at = AgentTerminal(self, NoTerminal(), drawn, self.guards, questions, lambda: self.now)
        self.stopper = TurnStopper(at, adapter, profile, self.events)

    bracketed_paste, cursor, cursor_shown = True, (0, 0), True

    def visible(self) -> list[str]:
        return self.rows

    async def write(
        self, data: bytes, *, write_id: int, sequence: int, offset: int | None = None
    ) -> bool | None:
        self.keys.append((data, sequence, offset))
        return self.written

    def stop(self) -> Blocked | None:
        return asyncio.run(self.stopper.stop(MESSAGE))


def test_the_key_goes_in_where_a_turn_is_seen_and_nothing_has_changed_since() -> None:
    agent = Agent()
    agent.guards.output(50.0, 7)
    assert why(agent.stop()) == module.STOPPING
    assert agent.keys == [(b"\x1b", agent.guards.sequence, 7)]
    assert agent.events.take() == TurnStopped(f"another message ({MESSAGE.id})")


@pytest.mark.parametrize(
    ("rows", "state", "key", "reason"),
    [
        pytest.param(IDLE, AgentState.BUSY, b"", module.UNSURE, id="idle-on-screen"),
        pytest.param(BUSY, AgentState.IDLE, b"", module.UNSURE, id="idle-as-it-says"),
        pytest.param(BUSY, AgentState.BLOCKED, b"", DIALOG_WAITS, id="asks"),
        pytest.param(ASKS, AgentState.BUSY, b"", DIALOG_WAITS, id="dialog-on-screen"),
        pytest.param(TYPED, AgentState.BUSY, b"", DRAFT, id="draft"),
        pytest.param(BUSY, AgentState.BUSY, frames.TYPED, "the person is typing", id="keys"),
        pytest.param([], AgentState.BUSY, b"", module.UNSURE, id="nothing-seen"),
    ],
)
def test_it_never_goes_in_elsewhere(
    rows: list[str], state: AgentState, key: bytes, reason: str
) -> None:
    agent = Agent()
    agent.rows = rows
    agent.guards.changed(StateChange(state), 1.0)
    if key:
        agent.guards.activity(1, key, agent.now)
    assert why(agent.stop()) == reason
    assert agent.keys == []


def test_a_screen_that_changes_meanwhile_is_looked_at_again() -> None:
    agent = Agent()
    agent.written = None
    assert why(agent.stop()) == module.UNSURE
    assert agent.events.take() is None
    agent.written = True
    assert why(agent.stop()) == module.STOPPING


def test_it_is_told_again_after_a_while_and_given_up() -> None:
    agent = Agent()
    for tries in range(1, module.TRIES + 1):
        assert agent.stop() and len(agent.keys) == tries
        assert agent.stop() and len(agent.keys) == tries
        agent.now += module.TAKES
    assert agent.stop() is None and len(agent.keys) == module.TRIES


class Server(AgentAdapter):
    """An agent that can be told over an interface of its own."""

    stops = True

    def __init__(self) -> None:
        self.told = 0
        self.broken = False

    async def stop_turn(self) -> None:
        self.told += 1
        if self.broken:
            raise RelayError("it does not answer")


def test_its_own_interface_needs_no_screen_but_leaves_dialogs_alone() -> None:
    server = Server()
    agent = Agent(Profile("agent"), server)
    agent.rows = TYPED
    assert agent.stopper.can and not Agent(Profile("agent")).stopper.can
    agent.guards.changed(StateChange(AgentState.BLOCKED), 1.0)
    assert why(agent.stop()) == DIALOG_WAITS
    agent.guards.changed(StateChange(AgentState.BUSY), 1.0)
    assert why(agent.stop()) == module.STOPPING
    assert agent.keys == [] and server.told == 1
    agent.now += module.TAKES
    server.broken = True
    for _ in range(module.TRIES - 1):
        assert agent.stop()
        agent.now += module.TAKES
    assert agent.stop() is None
