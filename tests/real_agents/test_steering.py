"""Steer mode: a message reaches the running turn at its next tool boundary, and stops nothing.

``seen`` is what relay says, and what the model was asked is what is true.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.e2e.wrapped import kill_session
from tests.real_agents.conftest import Binary
from tests.real_agents.model import Gate, Say, ScriptedModel, Shell
from tests.real_agents.people import (
    PATIENCE,
    arrived_once,
    held_up,
    rest,
    send,
    wait_delivery,
    wait_state,
)
from tests.real_agents.recipe import Options
from tests.real_agents.test_reaching import opened
from tests.real_agents.wrapped import Wrapped, room
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")

#: Those with a door into the running turn.
STEERED = ("claude", "codex", "qwen", "opencode")
#: … and those of them that get it with the answer to a hook.
BY_HOOKS = ("codex", "qwen")
#: Some kilobytes in lines, as large as goes in with the answer to a hook.
LONG = "\n".join(f"{n:03} of a long message, with 'quotes' and ümlauts" for n in range(145))


@pytest.mark.parametrize("name", STEERED)
def test_it_reaches_the_running_turn(
    name: str, binary_of: Binary, tmp_path: Path, model: ScriptedModel
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    model.when("use a tool", Say("I use it."), Shell(f"cat {fifo}"), times=1)
    # Some show what comes in as a message of the user's, behind the tool's result.
    model.when_tool(Say("It is done."), Gate("final"), Say(" All of it."), times=1)
    model.when("MARK-STEER", Say("It is done."), Gate("final"), Say(" All of it."), times=1)
    model.when("speak", Say("I speak without a tool.\n\nAnd more."), Gate("speech"), times=1)
    model.when("MARK-", Say("I have read it."))
    with room(tmp_path, model) as people:
        ann = people.start("Ann", name, binary_of(name), Options(asks=False))
        ann.ask("now use a tool")
        writer = wait_until(lambda: opened(fifo), PATIENCE, "the tool to run")
        assert writer is not None
        wait_state("Ann", "busy")
        before = len(model.requests)
        later = send("Ann", "MARK-LATER when the turn is over.")
        within = send("Ann", f"MARK-STEER while a tool runs.\n{LONG}", mode="steer")
        wait_until(lambda: held_up(later), PATIENCE, "the followup to be held up")
        os.write(writer, b"what the tool says\n")
        os.close(writer)

        # The model is asked next with both the tool's result and the message, in this turn.
        wait_until(lambda: len(model.requests) > before, PATIENCE, "the tool's result")
        told = everything(model)
        assert "what the tool says" in told and LONG.splitlines()[-1] in told, told
        wait_delivery(within, "seen")
        assert len(model.requests) == before + 1
        assert held_up(later) and "MARK-LATER" not in told
        model.open("final")
        arrived_once(model, later, "MARK-LATER when the turn is over.")
        assert everything(model).count(f"message [{within[-8:]}") == 1
        assert all(not request.aborted for request in model.requests)
        rest(ann, model)

        # Without a tool it follows the turn.
        ann.ask("please speak")
        ann.terminal.wait_for("I speak without a tool.")
        wait_state("Ann", "busy")
        after = send("Ann", "MARK-AFTER a turn without a tool.", mode="steer")
        model.open("speech")
        arrived_once(model, after, "MARK-AFTER a turn without a tool.")
        assert all(not request.aborted for request in model.requests)
        rest(ann, model)
        ann.quit()


def test_a_session_that_is_killed_gives_it_once(
    binary_of: Binary, tmp_path: Path, model: ScriptedModel
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    model.when("use a tool", Say("I use it."), Shell(f"cat {fifo}"), times=2)
    model.when_tool(Say("It is done."), Gate("final"), Say(" All of it."))
    model.when("MARK-", Say("I have read it."))
    with room(tmp_path, model) as people:
        ann = people.start("Ann", BY_HOOKS[0], binary_of(BY_HOOKS[0]), Options(asks=False))
        sent = [killed(ann, model, fifo, early=True), killed(ann, model, fifo, early=False)]
        ann.ask("that is all")
        wait_until(lambda: model.seen("that is all"), PATIENCE)
        told = everything(model)
        assert [told.count(f"message [{id_[-8:]}") for id_ in sent] == [1, 1]
        rest(ann, model)
        ann.quit()


def killed(ann: Wrapped, model: ScriptedModel, fifo: Path, *, early: bool) -> str:
    """Send while a tool runs, and kill the session before or after it has given the message."""
    ann.ask("now use a tool")
    writer = wait_until(lambda: opened(fifo), PATIENCE, "the tool to run")
    assert writer is not None
    wait_state(ann.name, "busy")
    before = len(model.requests)
    sent = send(ann.name, "MARK-KILL while a tool runs.", mode="steer")
    wait_until(lambda: held_up(sent), PATIENCE)
    if early:
        kill_session(ann.terminal)
    os.write(writer, b"what the tool says\n")
    os.close(writer)
    wait_until(lambda: len(model.requests) > before, PATIENCE, "the tool's result")
    if not early:  # before it has told the broker, or soon after
        kill_session(ann.terminal)
    model.open("final")
    wait_delivery(sent, "seen")
    rest(ann, model)
    return sent


def everything(model: ScriptedModel) -> str:
    """All that the newest request tells the model, by whomever."""
    return json.dumps(model.requests[-1].body, ensure_ascii=False)
