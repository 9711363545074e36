"""What a dispatched turn may use, from before it reaches the agent until it is over for sure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from relay.agents.hook_codec import AgentHookCall
from relay.core.dispatch import FULL, MINIMAL, PermissionSet
from relay.core.message import REPORTED, AgentState, State
from relay.core.source_events import StateChange
from relay.hooks.events import HookEventName
from relay.session.permission_gate import PermissionGate
from relay.session.session_commands import ReportDelivery
from relay.session.session_events import MessageArrived
from relay.session.turn_report import TurnReports
from tests.session.playbook import MESSAGE, Playbook

LIMITED = replace(MESSAGE, attributes=dict(REPORTED), permissions=MINIMAL.to_json())
NO_SHELL = PermissionSet("restricted", {"allow": ["*"], "deny": ["shell"]})
OTHER = replace(LIMITED, id=f"01K{2:023d}", permissions=NO_SHELL.to_json())


def call(tool: str = "Bash", subagent: str = "", **params: Any) -> AgentHookCall:
    fields = {"tool_name": tool, "tool_input": params}
    return AgentHookCall(HookEventName.BEFORE_TOOL, fields, True, {"agent_id": subagent})


def gate(*messages: Any) -> PermissionGate:
    made = PermissionGate("")
    for message in messages:
        assert made.arrived(message) == ""
    return made


def test_limits_count_from_the_delivery_to_the_end_of_the_turn() -> None:
    held = gate(LIMITED)
    assert not held.refuses(call())
    held.delivered(LIMITED.id, State.DELIVERING)
    assert held.refuses(call()) and not held.refuses(call("WebSearch"))
    held.delivered(LIMITED.id, State.SEEN)
    held.state_changed(AgentState.BUSY)
    assert held.refuses(call())
    held.state_changed(AgentState.IDLE)
    assert held.refuses(call())  # its report says when it is over
    held.ended([LIMITED.id])
    assert not held.refuses(call())


def test_a_turn_that_is_said_to_be_over_while_the_agent_works_is_not() -> None:
    held = gate(LIMITED)
    held.delivered(LIMITED.id, State.SEEN)
    held.state_changed(AgentState.BUSY)
    held.ended([LIMITED.id])
    assert held.refuses(call())
    held.state_changed(AgentState.IDLE)
    assert not held.refuses(call())


def test_of_two_in_one_turn_both_count() -> None:
    held = gate(replace(LIMITED, permissions=PermissionSet().to_json()), OTHER)
    for one in (LIMITED, OTHER):
        held.delivered(one.id, State.SUBMITTED)
    assert held.refuses(call("Read")) and not held.refuses(call("WebSearch"))
    held.ended([LIMITED.id])
    assert not held.refuses(call("Read")) and held.refuses(call())


def test_what_comes_back_into_the_queue_counts_no_more_what_failed_half_way_does() -> None:
    held = gate(LIMITED, OTHER)
    held.delivered(LIMITED.id, State.DELIVERING)
    held.delivered(LIMITED.id, State.QUEUED)
    assert not held.refuses(call())
    held.state_changed(AgentState.BUSY)
    held.delivered(LIMITED.id, State.DELIVERING)
    held.delivered(LIMITED.id, State.FAILED)
    assert held.refuses(call())
    held.state_changed(AgentState.IDLE)
    held.delivered(OTHER.id, State.CANCELLED)
    assert held.in_force == [] and held.state()["limited"] == {}


def test_a_killed_session_is_followed_by_one_that_takes_no_risk() -> None:
    killed = gate(LIMITED)
    held = PermissionGate("")
    held.restore(killed.state())
    assert held.refuses(call())
    assert held.arrived(LIMITED) == ""  # offered again, and never tried
    assert not held.refuses(call())
    held.restore(killed.state())
    held.arrived(replace(LIMITED, attempt=1))
    assert held.refuses(call())


def test_permissions_that_cannot_be_read_allow_nothing() -> None:
    held = gate(replace(LIMITED, permissions={"level": "everything"}))
    held.delivered(LIMITED.id, State.DELIVERING)
    assert held.refuses(call("WebSearch"))


def test_a_subagent_that_outlasts_its_turn_keeps_its_limits() -> None:
    held = gate(OTHER)
    held.delivered(OTHER.id, State.SEEN)
    assert not held.refuses(call("Task", prompt="go"))
    assert held.refuses(call(subagent="early"))
    held.ended([OTHER.id])
    assert held.refuses(call(subagent="early")) and held.refuses(call(subagent="late"))
    assert not held.refuses(call())
    assert not held.refuses(call("Task", prompt="go"))  # the person's own
    assert not held.refuses(call(subagent="theirs")) and held.refuses(call(subagent="late"))


def test_words_for_others_are_a_tool_too() -> None:
    held = gate(LIMITED)
    held.delivered(LIMITED.id, State.SEEN)
    assert held.refuses_words("relay", "Bob") and held.refuses_words("deploy", "staging")
    some = PermissionSet("restricted", {"allow": ["message", "@deploy:*"]})
    held = gate(replace(LIMITED, permissions=some.to_json()))
    held.delivered(LIMITED.id, State.SEEN)
    assert not held.refuses_words("relay", "Bob") and not held.refuses_words("deploy", "staging")
    assert held.refuses_words("memory", "save") and not held.refuses_words("intent", "select")


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (PermissionGate("it has no hooks"), "cannot be held"),
        (PermissionGate("", ["read_file"]), "without asking"),
    ],
    ids=["ungated", "hosted"],
)
def test_an_agent_that_cannot_be_held_gets_no_turn_with_limits(
    held: PermissionGate, said: str
) -> None:
    assert said in held.arrived(LIMITED)
    assert held.arrived(replace(LIMITED, permissions=FULL.to_json())) == ""
    assert held.arrived(MESSAGE) == ""


def test_a_session_refuses_what_it_cannot_hold() -> None:
    play = Playbook()
    play >> MessageArrived(LIMITED)
    refused = play.commands[0]
    assert isinstance(refused, ReportDelivery) and refused.state is State.FAILED
    assert "cannot be held" in refused.reason
    play.commands.clear()


def test_the_report_of_a_turn_lifts_its_limits() -> None:
    class Heard:
        screen_only = infers_turns = False
        model = ""

    held = gate(LIMITED)
    turns = TurnReports(Heard(), lambda: 0, lambda now: True, lambda now: now, held)
    list(turns.arrived(LIMITED))
    list(turns.delivered(LIMITED.id, State.DELIVERING, 0.0))
    list(turns.delivered(LIMITED.id, State.SEEN, 1.0))
    for state in (AgentState.BUSY, AgentState.IDLE):
        turns.state_changed(StateChange(state), 2.0)
        assert held.refuses(call())
    list(turns.tick(60.0))
    assert not held.refuses(call())
