"""Steer mode where a session is killed: what goes in with the answer to a hook goes in once.

That it reaches the running turn, with whichever agent, stands in test_reaching.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.wrapped import kill_session
from tests.real_agents.model import Gate, Say, ScriptedModel, Shell
from tests.real_agents.people import (
    PATIENCE,
    held_up,
    rest,
    send,
    wait_delivery,
    wait_state,
)
from tests.real_agents.recipe import Options
from tests.real_agents.test_reaching import everything, opened
from tests.real_agents.wrapped import Wrapped, room
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")


def test_a_session_that_is_killed_gives_it_once(
    codex: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    model.when("use a tool", Say("I use it."), Shell(f"cat {fifo}"), times=2)
    model.when_tool(Say("It is done."), Gate("final"), Say(" All of it."))
    model.when("MARK-", Say("I have read it."))
    with room(tmp_path, model) as people:
        ann = people.start("Ann", "codex", codex, Options(asks=False))
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
