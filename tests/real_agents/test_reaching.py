"""Each of the six: a message arrives whole and once, whatever the agent and its person do.

``seen`` is what relay says, and what the model was asked is what is true.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from relay.broker.client import connect
from relay.core.paths import Home
from relay.protocol.message_ops import SEND as SEND_OP
from relay.protocol.message_ops import WAIT
from tests.e2e.wrapped import python, relay, relay_json, wait_registered, wrapped
from tests.real_agents.conftest import Binary
from tests.real_agents.model import Gate, Say, ScriptedModel, Shell
from tests.real_agents.people import (
    PATIENCE,
    arrived_once,
    conversation,
    delivery,
    held_up,
    refused,
    rest,
    send,
    wait_delivery,
    wait_state,
)
from tests.real_agents.recipes import AGENTS, Options
from tests.real_agents.request import REMINDER, plain
from tests.real_agents.wrapped import Wrapped, room
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")

EACH = [pytest.param(agent.name, id=agent.name) for agent in AGENTS.values()]
#: Those with a door into the running turn.
STEERED = ("claude", "codex", "qwen", "opencode")
#: Those whose turns relay can stop, by a key or by an interface of theirs.
STOPPED = (*STEERED, "gemini")
#: 10 kB in many lines, with what a terminal or a command line could take amiss.
BIG = "\n".join(
    f"{n:03} /line !of @many, \t with 'quotes', `ticks`, $(dollars), \\backslashes and ümlauts {n}"
    for n in range(110)
)
BIG_LINE = "042 /line !of @many,"
#: Some kilobytes in lines, as large as goes in with the answer to a hook.
LONG = "\n".join(f"{n:03} of a long message, with 'quotes' and ümlauts" for n in range(145))
#: Sends a text as the agent that it is wrapped as.
SEND = """import subprocess, sys
subprocess.run([sys.executable, "-m", "relay", "send", *sys.argv[1:]], check=True)
"""
#: How programs frame what is not from their user.
FRAMED = re.compile(r"(?i)another \w+ session|not typed by|peer")


@pytest.mark.parametrize("name", EACH)
def test_it_arrives_at_its_start_at_rest_and_at_work(
    name: str, binary_of: Binary, tmp_path: Path, model: ScriptedModel
) -> None:
    agent = AGENTS[name]
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    model.when("MARK-STEER", Say("It is done."), Gate("final"), Say(" All of it."), times=1)
    model.when("MARK-LONG", Say("I begin.\n\nAnd more.\n\n"), Gate("never"), times=1)
    model.when("MARK-STOP", Say("I stopped."), times=1)
    model.when("while you speak", Say("I have read what came while I spoke."))
    model.when("MARK-", Say("I have read it."))
    model.when("speak slowly", Say("Slowly I speak.\n\nAnd so on."), Gate("speech"))
    model.when("use a tool", Say("I use it."), Shell(f"cat {fifo}"))
    model.when("without one", Say("I speak without a tool.\n\nAnd so on."), Gate("alone"))
    # Some show what comes in as a message of the user's, behind the tool's result.
    model.when_tool(Say("It is done."), Gate("final"), Say(" All of it."), times=1)
    with room(tmp_path, model) as people:
        ann = people.start("Ann", name, binary_of(name), Options(asks=False), wait=False)
        (ann.recipe.cwd / "notes.txt").write_text("what nobody has asked for")
        wait_registered("Ann")
        early = send("Ann", "MARK-EARLY sent before it can listen.")
        ann.ready()
        arrived_once(model, early, "MARK-EARLY sent before it can listen.")
        ann.ready()
        wait_state("Ann", "idle")

        from_each(ann, model, framed=name == "claude")

        big = send("Ann", f"MARK-BIG\n{BIG}\nMARK-END.")
        arrived_once(model, big, BIG_LINE)
        # Claude Code's input line has no tabs, whoever pastes there.
        assert whole(model, BIG.replace("\t", " " * 4) if name == "claude" else BIG)
        ann.ready()

        ann.ask("please speak slowly")
        ann.terminal.wait_for("Slowly I speak.")
        wait_state("Ann", "busy")
        late = send("Ann", "MARK-SPEECH while you speak.")
        assert len(model.seen("speak slowly")) == 1
        assert delivery(late)[0] != "seen"
        model.open("speech")
        arrived_once(model, late, "MARK-SPEECH while you speak.")
        # What it said was not broken off.
        assert all(not request.aborted for request in model.requests)
        ann.ready()

        beside_a_draft(ann, model)
        rest(ann, model)

        if agent.has_tools:
            at_work(ann, model, fifo, steered=name in STEERED)
        if name in STEERED:
            follows_a_turn_without_a_tool(ann, model)
        if name in STOPPED:
            stops_the_turn(ann, model, name)
    wait_state("Ann", "gone")


def test_a_near_miss_is_told_once(binary_of: Binary, tmp_path: Path, model: ScriptedModel) -> None:
    told = "is not a message and did nothing"
    model.when("tell Bob", Say("@relay: Bob hello"))
    model.when(told, Say("@relay: Bob hello again"))
    with room(tmp_path, model) as people:
        ann = people.start("Ann", "claude", binary_of("claude"), Options(asks=False))
        ann.ask("please tell Bob")
        wait_until(lambda: model.seen(told), PATIENCE, "the notice")
        rest(ann, model)
        ann.ask("and now rest")
        rest(ann, model)
        assert len(model.seen(told)) == 1
        ann.quit()


# The dialogs of the others are in test_tools.
def test_no_dialog_is_answered(codex: Path, tmp_path: Path, model: ScriptedModel) -> None:
    model.when("make the file", Say("I make it."), Shell("echo made >created"))
    model.when("MARK-", Say("I have read it."))
    model.when_tool(Say("It was refused."))
    with room(tmp_path, model) as people:
        ann = people.start("Ann", "codex", codex, Options(asks=True))
        ann.ask("make the file please")
        ann.dialog()
        refused(ann, model)
        assert not (ann.recipe.cwd / "created").exists()


def from_each(ann: Wrapped, model: ScriptedModel, *, framed: bool) -> None:
    """At rest, the person's words come as its user's, and an agent's as no consent of theirs."""
    own = send("Ann", "MARK-OWN deploy @notes.txt now.")
    arrived_once(model, own, "MARK-OWN deploy @notes.txt now.")
    said = spoken(model, own)
    assert "from your user, by relay: MARK-OWN deploy @notes.txt now. (End of [" in said
    assert "what nobody has asked for" not in conversation(model)
    assert "consent" not in said
    assert not FRAMED.search(said), said
    ann.ready()

    with wrapped([*python(SEND), "Ann", "MARK-AGENT please look."], name="Bob") as bob:
        assert bob.wait() == 0
    sent = sent_from("Bob")
    arrived_once(model, sent, "MARK-AGENT please look.")
    said = spoken(model, sent)
    assert "from agent Bob: MARK-AGENT please look." in said
    # The rest stands in the primer, which all six were given.
    assert re.search(r"please look\. \(End of \[\w{6}\]\)\.", said)
    assert bool(FRAMED.search(said)) is framed, said
    ann.ready()


def beside_a_draft(ann: Wrapped, model: ScriptedModel) -> None:
    """What the person has begun to type stays as it is."""
    ann.write("half a dra")
    sent = send("Ann", "MARK-DRAFT beside a draft.")
    wait_until(lambda: delivery(sent)[0] == "seen" or "draft" in delivery(sent)[1], PATIENCE)
    if held_up(sent):
        assert not model.seen("MARK-DRAFT")
    ann.terminal.type("ft of mine")
    ann.terminal.wait_for("half a draft of mine")
    ann.submit()
    mine = "half a draft of mine"
    ann.terminal.wait_that(lambda: bool(model.seen(mine)), PATIENCE, "the draft to be sent")
    arrived_once(model, sent, "MARK-DRAFT beside a draft.")
    assert not FRAMED.search(spoken(model, sent))  # whichever way it took


def at_work(ann: Wrapped, model: ScriptedModel, fifo: Path, *, steered: bool) -> None:
    """While a tool runs a message waits for the turn's end; one in steer mode goes into the turn,
    at the tool's end, and stops nothing."""
    ann.ask("now use a tool")
    writer = wait_until(lambda: opened(fifo), PATIENCE, "the tool to run")
    assert writer is not None
    wait_state("Ann", "busy")
    before = len(model.requests)
    later = send("Ann", "MARK-LATER when the turn is over.")
    body = f"MARK-STEER while a tool runs.\n{LONG}"
    within = send("Ann", body, mode="steer") if steered else ""
    if steered:
        wait_until(lambda: held_up(later), PATIENCE, "the followup to be held up")
    os.write(writer, b"what the tool says\n")
    os.close(writer)
    wait_until(lambda: len(model.requests) > before, PATIENCE, "the tool's result")
    if steered:
        # The model is asked next with both the tool's result and the message, in this turn.
        told = everything(model)
        assert "what the tool says" in told and LONG.splitlines()[-1] in told, told
        wait_delivery(within, "seen")
        assert len(model.requests) == before + 1
        assert held_up(later) and "MARK-LATER" not in told
    model.open("final")
    arrived_once(model, later, "MARK-LATER when the turn is over.")
    if steered:
        assert everything(model).count(f"message [{within[-8:]}") == 1
    assert all(not request.aborted for request in model.requests)
    rest(ann, model)


def follows_a_turn_without_a_tool(ann: Wrapped, model: ScriptedModel) -> None:
    """A message in steer mode does, and stops nothing."""
    ann.ask("please talk without one")
    ann.terminal.wait_for("I speak without a tool.")
    wait_state("Ann", "busy")
    after = send("Ann", "MARK-AFTER a turn without a tool.", mode="steer")
    model.open("alone")
    arrived_once(model, after, "MARK-AFTER a turn without a tool.")
    assert all(not request.aborted for request in model.requests)
    rest(ann, model)


def stops_the_turn(ann: Wrapped, model: ScriptedModel, name: str) -> None:
    """A message in interrupt mode does, and goes before what waits; each answer is its own."""
    before = len(model.requests)
    with connect(Home.from_env()) as client:
        asked = client.request(SEND_OP, to="Ann", body="MARK-LONG take your time.", answer=True)
        ann.terminal.wait_for("And more.", PATIENCE)  # what is on its way would not be stopped
        wait_until(lambda: model.held("never"), PATIENCE)
        wait_state("Ann", "busy")
        later = send("Ann", "MARK-LAST when you can.")
        words = ("Ann", "MARK-STOP do this.", "--mode=interrupt", f"--answer={PATIENCE}")
        assert relay("send", *words) == "I stopped.\n"
        wait_delivery(later, "seen")
        wait_until(lambda: model.seen("MARK-LAST"), PATIENCE)
        requests = model.requests[before:]
        told_last = [re.findall("MARK-[A-Z]+", one.last_text)[-1:] for one in requests]
        newest = [marks[0] for marks in told_last if marks]
        assert newest == ["MARK-LONG", "MARK-STOP", "MARK-LAST"]
        assert next(one for one in requests if "MARK-LONG" in one.last_text).aborted
        [stopped] = client.request(WAIT, id=asked["id"], timeout=0, answer=True)["answers"]
    # Gemini CLI writes nothing down of an answer that it did not complete.
    text = "" if name == "gemini" else "I begin.\n\nAnd more."
    assert (stopped["state"], stopped["text"]) == ("interrupted", text)


def everything(model: ScriptedModel) -> str:
    """All that the newest request tells the model, by whomever."""
    return json.dumps(model.requests[-1].body, ensure_ascii=False)


def spoken(model: ScriptedModel, id_: str) -> str:
    """The block of the conversation that brought this message, with all that frames it; none
    where that is a reminder of the program's own."""
    turns = [turn for turn in model.requests[-1].asked.turns if not turn.own]
    texts = [REMINDER.sub("", plain([block])) for turn in turns for block in turn.blocks]
    [found] = [text for text in texts if f"message [{id_[-8:]}" in text]
    return found.replace("\\@", "@")


def sent_from(name: str) -> str:
    """The id of the one message that this agent has sent."""
    [row] = [row for row in relay_json("history", "--limit", "500") if row["from"] == name]
    return str(row["id"])


def opened(fifo: Path) -> int | None:
    """A descriptor to write to it, once somebody reads; what reads goes on until it is closed."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def whole(model: ScriptedModel, text: str) -> bool:
    """Whether the model got all of its lines, in order, whatever stands around them."""
    at, told = 0, conversation(model)
    for line in text.split("\n"):
        at = told.find(line.strip(), at)
        if at < 0:
            return False
    return True
