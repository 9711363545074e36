"""Which messages were answered in which turn, with which words, and what a turn may use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from relay.agents.hook_codec import AgentHookCall
from relay.core.dispatch import FULL, MINIMAL, PermissionSet
from relay.core.message import REPORTED, AgentState, State
from relay.core.source_events import StateChange
from relay.directive.envelope import marker_of
from relay.hooks.events import HookEventName
from relay.protocol.turns import TurnCause
from relay.session import turn_report as module
from relay.session.session_commands import DeliverMessage, ReportDelivery, ReportTurn
from relay.session.session_events import MessageArrived
from relay.session.sources import SourceSelector
from relay.session.turn_report import PermissionGate, TurnReports
from tests.session.playbook import MESSAGE, Playbook

ASKED = replace(MESSAGE, attributes=dict(REPORTED))
OTHER = replace(ASKED, id=f"01K{2:023d}")
BUSY, IDLE = StateChange(AgentState.BUSY), StateChange(AgentState.IDLE)


@dataclass
class Heard:
    """How the agent is heard."""

    screen_only: bool = False
    infers_turns: bool = False
    owes_words: bool = False
    model: str = "opus"


class Program:
    """What the screen of a program tells."""

    def __init__(self) -> None:
        self.last_output = 0.0
        self.prompt = True


def reports(heard: Heard | None = None, program: Program | None = None) -> TurnReports:
    seen = program or Program()
    return TurnReports(
        cast(SourceSelector, heard or Heard()),
        lambda: 7,
        lambda now: seen.prompt,
        lambda now: now - seen.last_output,
    )


def told(commands: Any) -> list[dict[str, Any]]:
    return [command.fields for command in commands if isinstance(command, ReportTurn)]


def asked(turns: TurnReports, *messages: Any) -> None:
    for message in messages or (ASKED,):
        assert not list(turns.arrived(message))
    list(turns.written())


def begun(*messages: Any, heard: Heard | None = None) -> TurnReports:
    """The agent works on ASKED, since 1.0."""
    turns = reports(heard)
    asked(turns, *messages)
    turns.state_changed(BUSY, 1.0)
    list(turns.proven(marker_of(ASKED), 1.0))
    return turns


def test_it_goes_to_the_agent_once_the_checkpoint_names_it_and_keeps_its_place() -> None:
    turns = reports()
    assert list(turns.arrived(MESSAGE)) == [DeliverMessage(MESSAGE)]
    assert not list(turns.arrived(ASKED))
    later = replace(MESSAGE, id=OTHER.id)
    assert not list(turns.arrived(later))
    assert turns.state()["owed"] == {ASKED.id: marker_of(ASKED)}
    assert list(turns.written()) == [DeliverMessage(ASKED), DeliverMessage(later)]
    assert list(turns.written()) == []


def test_a_turn_has_its_messages_and_the_words_since_the_first_of_them() -> None:
    turns = reports()
    asked(turns, ASKED, OTHER)
    turns.state_changed(BUSY, 1.0)
    turns.said(["of another turn"], 1.0)
    assert not told(turns.proven(f"{marker_of(ASKED)} do it", 2.0))
    turns.said(["one", "two"], 3.0)
    assert not told(turns.proven(marker_of(OTHER), 3.5))
    turns.said(["three"], 4.0)
    assert turns.deadline() is None
    turns.state_changed(IDLE, 5.0)
    turns.said(["late"], 5.2)
    assert not told(turns.tick(5.5))
    [report] = told(turns.tick(5.2 + module.SETTLE))
    assert report == {
        **{"ids": [ASKED.id, OTHER.id], "text": "one\ntwo\nthree\nlate", "state": "completed"},
        **{"detail": "", "inferred": False, "model": "opus", "tool_calls": ()},
        **{"started_ms": 7, "ended_ms": 7},
    }
    assert not turns.empty and turns.deadline() is None
    turns.told(report["ids"])
    assert turns.empty


def test_a_turn_is_not_reported_while_the_agent_owes_words_of_it() -> None:
    heard = Heard()
    turns = begun(heard=heard)
    turns.said(["one"], 3.0)
    turns.state_changed(IDLE, 5.0)
    heard.owes_words = True
    assert not told(turns.tick(5.0 + module.SETTLE + 1))
    turns.said(["two"], 8.0)
    heard.owes_words = False
    [report] = told(turns.tick(8.0 + module.SETTLE))
    assert report["text"] == "one\ntwo"


def test_words_that_never_come_hold_a_turn_for_a_while_only() -> None:
    turns = begun(heard=Heard(owes_words=True))
    turns.said(["one"], 3.0)
    turns.state_changed(IDLE, 5.0)
    assert not told(turns.tick(5.0 + module.SETTLE_OWED - 0.1))
    assert told(turns.tick(5.0 + module.SETTLE_OWED))


def test_the_next_turn_ends_one_whose_last_words_may_still_come() -> None:
    turns = begun(ASKED, OTHER)
    turns.said(["one"], 1.0)
    turns.state_changed(IDLE, 2.0)
    assert not told(turns.proven(marker_of(ASKED), 2.1))  # read once more
    [report] = told(turns.proven("what the person says", 2.1))
    assert (report["ids"], report["text"]) == ([ASKED.id], "one")
    turns.state_changed(IDLE, 2.2)
    list(turns.proven(marker_of(OTHER), 2.3))
    turns.said(["two"], 2.4)  # so short that it was not seen to run
    [report] = told(turns.proven("what the person says", 2.5))
    assert (report["ids"], report["text"]) == ([OTHER.id], "two")


def test_a_turn_whose_beginning_was_not_told_is_waited_for() -> None:
    turns = reports()
    asked(turns)
    turns.state_changed(IDLE, 0.0)
    assert not told(turns.delivered(ASKED.id, State.SUBMITTED, 0.5)) and turns.settling(0.9)
    list(turns.proven(marker_of(ASKED), 1.0))
    assert turns.deadline() == 1.0 + module.NEVER
    turns.said(["one"], 2.0)
    assert turns.deadline() == 2.0 + module.LATE
    assert turns.settling(2.1)  # another message would begin the next turn
    turns.state_changed(BUSY, 2.5)
    assert turns.deadline() is None and not turns.settling(2.6)
    turns.state_changed(IDLE, 3.0)
    assert turns.settling(3.1)
    assert told(turns.tick(3.0 + module.SETTLE)) and not turns.settling(3.6)


def test_a_model_that_does_not_answer_and_an_agent_that_ends() -> None:
    turns = reports()
    asked(turns, ASKED, OTHER)
    list(turns.proven(marker_of(ASKED), 1.0))
    turns.state_changed(StateChange(AgentState.LIMITED, "a usage limit is reached"), 2.0)
    [report] = told(turns.tick(2.0 + module.SETTLE))
    assert (report["state"], report["cause"]) == ("failed", TurnCause.AGENT)
    assert report["detail"] == "a usage limit is reached"
    turns.state_changed(BUSY, 3.0)
    list(turns.proven(marker_of(OTHER), 3.0))
    [report] = told(turns.gone(4.0))
    assert (report["state"], report["ids"]) == ("interrupted", [OTHER.id])
    assert report["cause"] == TurnCause.GONE


def test_what_the_agent_had_read_when_it_ended_was_not_answered() -> None:
    turns = reports(Heard(screen_only=True, infers_turns=True))
    asked(turns)
    assert not told(turns.gone(4.0))
    [report] = told(turns.delivered(ASKED.id, State.SEEN, 4.0))
    assert report["state"] == "interrupted"


def test_a_program_that_tells_nothing_is_done_after_silence_at_its_prompt() -> None:
    program = Program()
    turns = reports(Heard(screen_only=True, infers_turns=True), program)
    asked(turns)
    turns.state_changed(IDLE, 0.0)
    assert not told(turns.delivered(ASKED.id, State.DELIVERING, 1.0))
    turns.said(["answer"], 1.5)
    assert not told(turns.delivered(ASKED.id, State.SUBMITTED, 1.6))
    program.last_output, program.prompt = 1.5, False
    assert not told(turns.tick(1.5 + module.SILENCE + 1))
    program.prompt = True
    assert not told(turns.tick(1.5 + module.SILENCE + 1.1))  # looked at a moment ago
    [report] = told(turns.tick(1.5 + module.SILENCE + 2))
    assert (report["text"], report["inferred"]) == ("answer", True)


def test_nothing_is_owed_of_what_was_withdrawn() -> None:
    turns = reports()
    asked(turns)
    assert not told(turns.delivered(ASKED.id, State.CANCELLED, 1.0))
    assert not told(turns.proven(marker_of(ASKED), 2.0)) and turns.deadline() is None


def test_a_killed_session_goes_on_in_the_turn_and_tells_again_what_was_not_confirmed() -> None:
    turns = begun(ASKED, OTHER)
    turns.said(["one"], 1.0)
    turns.state_changed(IDLE, 2.0)
    [first] = told(turns.proven(marker_of(OTHER), 2.1))
    turns.said(["two"], 3.0)
    again = reports()
    again.restore(turns.state(), 10.0)
    again.state_changed(BUSY, 10.0)
    [report] = told(again.tick(10.0))
    assert report["ids"] == first["ids"] and report["text"] == first["text"]
    again.said(["three"], 11.0)
    again.state_changed(IDLE, 12.0)
    [report] = told(again.tick(12.0 + module.SETTLE))
    assert (report["ids"], report["text"]) == ([OTHER.id], "two\nthree")


def test_of_many_words_the_last_are_kept() -> None:
    turns = begun()
    for n in range(200):
        turns.said([f"{n} " + "x" * 1000], 1.0)
    [report] = told(turns.gone(2.0))
    head, *lines = report["text"].splitlines()
    assert head == f"[the first {200 - len(lines)} lines are left out]"
    assert lines[-1].startswith("199 ") and len(report["text"]) < module.TEXT_MAX + 100


def test_the_tools_of_the_turn_are_told_shortened_and_not_all() -> None:
    turns = reports()
    asked(turns)
    turns.state_changed(BUSY, 1.0)
    before = {"phase": "before", "tool": "Bash", "id": "a", "input": {"command": "ls"}}
    turns.used(before)  # of another turn
    list(turns.proven(marker_of(ASKED), 1.0))
    turns.used(before)
    turns.used({"phase": "after", "tool": "Bash", "id": "a", "response": "x" * 5000})
    for _ in range(module.TOOL_CALLS_MAX):
        turns.used({"phase": "after", "tool": "Read", "input": {"path": "/"}})
    turns.used({"phase": "before", "tool": "Late", "id": "b"})
    [report] = told(turns.gone(2.0))
    first, second, *rest = report["tool_calls"]
    assert (first["name"], first["params"], first["state"]) == (
        *("Bash", '{"command": "ls"}'),
        "completed",
    )
    assert first["result"].endswith(' [cut]"') and len(first["result"]) < 1100
    assert (second["name"], second["state"]) == ("Read", "completed")
    assert len(rest) == module.TOOL_CALLS_MAX - 2


def test_a_turn_that_the_person_breaks_off_is_not_tried_again() -> None:
    turns = begun(ASKED, OTHER)
    turns.state_changed(StateChange(AgentState.IDLE, broken=True), 2.0)
    [report] = told(turns.tick(2.0 + module.SETTLE))
    assert (report["state"], report["cause"]) == ("interrupted", TurnCause.BROKEN_OFF)
    turns.state_changed(BUSY, 5.0)
    list(turns.proven(marker_of(OTHER), 5.0))
    turns.stopped("another message (01K)")
    turns.state_changed(IDLE, 6.0)
    [report] = told(turns.tick(6.0 + module.SETTLE))
    assert (report["state"], report["cause"]) == ("interrupted", TurnCause.STOPPED)
    assert report["detail"] == "another message (01K)"


def test_a_turn_without_a_word_may_not_have_begun() -> None:
    turns = begun()
    turns.state_changed(IDLE, 2.0)
    assert not told(turns.tick(4.0)) and turns.settling(4.0)
    turns.state_changed(BUSY, 5.0)
    turns.said(["one"], 6.0)
    turns.state_changed(IDLE, 6.0)
    [report] = told(turns.tick(6.0 + module.SETTLE))
    assert report["text"] == "one"


@pytest.mark.parametrize("killed", [False, True], ids=["as-said", "after-a-kill"])
def test_an_echo_is_told_from_words_that_repeat_the_message(killed: bool) -> None:
    heard = Heard(screen_only=True, infers_turns=True)
    turns = reports(heard)
    asked(turns)
    if killed:
        turns, before = reports(heard), turns
        turns.restore(before.state(), 0.0)
    turns.state_changed(IDLE, 0.0)
    turns.said([f"Relay message {marker_of(ASKED)} (End)", "answer"], 1.0) if killed else None
    list(turns.delivered(ASKED.id, State.SEEN, 1.0))
    words = f"GOT Relay message {marker_of(ASKED)}"
    if not killed:
        turns.said([words], 2.0)
    [report] = told(turns.gone(3.0))
    assert report["text"] == ("answer" if killed else words)


LIMITED = replace(MESSAGE, attributes=dict(REPORTED), permissions=MINIMAL.to_json())
NO_SHELL = PermissionSet("restricted", {"allow": ["*"], "deny": ["shell"]})
SOMEBODY = replace(LIMITED, id=f"01K{2:023d}", permissions=NO_SHELL.to_json())


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
    held = gate(replace(LIMITED, permissions=PermissionSet().to_json()), SOMEBODY)
    for one in (LIMITED, SOMEBODY):
        held.delivered(one.id, State.SUBMITTED)
    assert held.refuses(call("Read")) and not held.refuses(call("WebSearch"))
    held.ended([LIMITED.id])
    assert not held.refuses(call("Read")) and held.refuses(call())


def test_what_comes_back_into_the_queue_counts_no_more_what_failed_half_way_does() -> None:
    held = gate(LIMITED, SOMEBODY)
    held.delivered(LIMITED.id, State.DELIVERING)
    held.delivered(LIMITED.id, State.QUEUED)
    assert not held.refuses(call())
    held.state_changed(AgentState.BUSY)
    held.delivered(LIMITED.id, State.DELIVERING)
    held.delivered(LIMITED.id, State.FAILED)
    assert held.refuses(call())
    held.state_changed(AgentState.IDLE)
    held.delivered(SOMEBODY.id, State.CANCELLED)
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
    held = gate(SOMEBODY)
    held.delivered(SOMEBODY.id, State.SEEN)
    assert not held.refuses(call("Task", prompt="go"))
    assert held.refuses(call(subagent="early"))
    held.ended([SOMEBODY.id])
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
        (PermissionGate("", ["read_file"]), "let a headless persona of another name answer"),
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
    held = gate(LIMITED)
    turns = TurnReports(
        cast(SourceSelector, Heard()), lambda: 0, lambda now: True, lambda now: now, held
    )
    list(turns.arrived(LIMITED))
    list(turns.delivered(LIMITED.id, State.DELIVERING, 0.0))
    list(turns.delivered(LIMITED.id, State.SEEN, 1.0))
    for state in (AgentState.BUSY, AgentState.IDLE):
        turns.state_changed(StateChange(state), 2.0)
        assert held.refuses(call())
    list(turns.tick(60.0))
    assert not held.refuses(call())
