"""watch, ask and wait, as a person or a script uses them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from select import select
from typing import Any

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.agent_names import owner_name
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE, ANSWER
from relay.protocol.message_ops import HISTORY, SEND, SHOW, STATE, TURN
from tests.broker.support import register
from tests.cli.fixtures import Run

ENDED: dict[str, Any] = {"text": "It is 42.", "started_ms": 1, "ended_ms": 2001}


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "relay", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def see(agent: BrokerClient) -> str:
    """The agent gets its next message, and sees it."""
    while (push := agent.next_push(20)) is None or push["push"] != "deliver":
        assert push is not None
    agent.request(STATE, id=push["id"], state="delivering")
    agent.request(STATE, id=push["id"], state="seen")
    return str(push["id"])


def test_ask_prints_the_answer_or_says_why_there_is_none(relay: Run, broker_home: Home) -> None:
    with register(broker_home, "Bob") as bob, register(broker_home, "Cy", "run-2") as cy:
        with started("ask", "--to", "Bob,Cy", "what is it?") as process:
            bob.request(TURN, ids=[see(bob)], **ENDED)
            id_ = see(cy)
            cy.request(AGENT_STATE, state="blocked", reason="asks to use Bash")
            assert process.stderr is not None
            assert process.stderr.readline() == "Cy: blocked (asks to use Bash)\n"
            assert "relay answer Cy CHOICE answers it" in process.stderr.readline()
            cy.request(TURN, ids=[id_], **ENDED)
            assert ended(process) == (0, "Bob:\nIt is 42.\nCy:\nIt is 42.\n", "")
        # The answers stand below the question wherever that is read again.
        shown = relay("show", id_).stdout
        assert "answer:     Bob  completed\nanswer:     Cy  completed\n" in shown
        assert shown.endswith(
            "what is it?\n\nBob answered:\n  It is 42.\n\nCy answered:\n  It is 42.\n"
        )
        me = owner_name()
        told = [
            (row["from"], row["body"])
            for row in json.loads(relay("show", id_, "--thread", "--json").stdout)
        ]
        assert told == [(me, "what is it?"), ("Bob", "It is 42."), ("Cy", "It is 42.")]
        rows = json.loads(relay("history", "Cy", "--json").stdout)
        assert [(row["from"], row["to"], row["state"]) for row in rows] == [
            (me, "Cy", "seen"),
            ("Cy", me, "turn"),
        ]
        # An agent that was asked, too, is not told what others have answered.
        as_bob: Any = {"auth": {"run": "run-1", "token": "secret"}, "answers": True}
        own = bob.request(SHOW, id=id_, auth=as_bob["auth"])["message"]["answers"]
        assert [one["from"] for one in own] == ["Bob"]
        for rows in (bob.request(HISTORY, **as_bob), bob.request(HISTORY, about=id_, **as_bob)):
            assert [row["from"] for row in rows["rows"]] == [me, "Bob"]
        with started("ask", "Bob", "and now?") as process:
            failed = {**ENDED, "text": "", "state": "interrupted", "reason": "it was broken off"}
            bob.request(TURN, ids=[see(bob)], **failed)
            assert ended(process) == (4, "", "Bob: interrupted (it was broken off)\n")
        with started("ask", "Bob", "and last?", "--json") as process:
            see(bob)
            bob.request(AGENT_STATE, state="gone")
            status, out, _ = ended(process)
            assert (status, json.loads(out)["answers"]) == (4, [])
    assert relay("ask", "Zoe", "who?").returncode == 3
    assert relay("ask", "Cy", "x", "--to", "Bob").returncode == 2


def test_wait_ends_when_it_is_proven(relay: Run, broker_home: Home) -> None:
    with connect(broker_home) as client, register(broker_home, "Bob") as bob:
        bob.request(AGENT_STATE, state="idle")
        assert relay("wait", "Bob", "idle").returncode == 0  # nothing was sent to it
        client.request(SEND, to="Bob", body="do it")
        with started("wait", "bob", "idle") as idle, started("wait", "Bob", "reply") as reply:
            id_ = see(bob)
            assert relay("wait", "Bob", "seen", "--id", id_).returncode == 0
            done = relay("wait", "Bob", "idle", "--timeout", "0")
            assert (done.returncode, "timed out after 0 s: Bob is idle" in done.stderr) == (5, True)
            bob.request(AGENT_STATE, state="busy")
            bob.request(SEND, to=owner_name(), body="done")
            assert ended(reply)[:2] == (0, "done\n")
            bob.request(AGENT_STATE, state="idle")
            assert ended(idle)[0] == 0
        with started("wait", "Bob", "blocked", "--json") as process:
            bob.request(AGENT_STATE, state="gone")
            status, out, _ = ended(process)
            assert (status, json.loads(out)["why"]) == (4, "Bob has gone")
    assert relay("wait", "Bob", "gone").returncode == 0
    assert relay("wait", "Zoe", "gone").returncode == 3


def test_wait_for_the_reply_to_a_plain_message_ends_with_the_turn(
    relay: Run, broker_home: Home
) -> None:
    """Nobody asked for an answer: the words of the turn, where they are known, or that."""

    def taken(bob: BrokerClient) -> str:
        id_ = see(bob)
        bob.request(AGENT_STATE, state="busy")
        bob.request(AGENT_STATE, state="idle")
        return id_

    def tells_turns(bob: BrokerClient, turns: list[dict[str, Any]]) -> None:
        while (push := bob.next_push(20)) is not None and push["push"] != "ask":
            pass
        assert push is not None and push["kind"] == "transcript"
        bob.request(ANSWER, id=push["id"], response={"turns": turns})

    with connect(broker_home) as client, register(broker_home, "Bob") as bob:
        client.request(SEND, to="Bob", body="do it")
        with started("wait", "Bob", "reply") as process:
            id_ = taken(bob)
            other = {"prompt": "Relay message [WP9RCDEF_7K2QXD]: more", "text": "No."}
            ours = {"prompt": f"Relay message [{id_[-8:]}_7K2QXD]: do it", "text": "It is done."}
            tells_turns(bob, [ours, other])
            assert ended(process) == (0, "It is done.\n", "")
        client.request(SEND, to="Bob", body="do more")
        with started("wait", "Bob", "reply") as process:
            taken(bob)
            tells_turns(bob, [other])
            said = (
                "relay: Bob has read your message and is idle again, but has not written to you;"
                " the message asked for no answer\n"
                "  relay ask, or relay send --answer, asks for one\n"
            )
            assert ended(process) == (4, "", said)


def test_watch_tells_in_brief_only_what_a_person_wants_to_know(
    relay: Run, broker_home: Home
) -> None:
    with started("watch", "--text", "--brief") as process, connect(broker_home) as client:
        assert process.stdout is not None
        with register(broker_home, "Bob") as bob:
            while not select([process.stdout], [], [], 0.1)[0]:  # it may not follow yet
                client.request(SEND, to="Bob", body="hi")
            for state in ("idle", "busy", "gone"):
                bob.request(AGENT_STATE, state=state)
        lines: list[str] = []
        while not lines or "Bob: busy → gone" not in lines[-1]:
            lines.append(process.stdout.readline())
        assert all("→ Bob  hi  " in line for line in lines[:-1] if "joined" not in line)


@pytest.mark.parametrize(("more", "expected"), [((), "json"), (("--text",), "text")])
def test_watch_prints_what_happens(
    relay: Run, broker_home: Home, more: tuple[str, ...], expected: str
) -> None:
    with started("watch", *more, "Bob") as process, connect(broker_home) as client:
        assert process.stdout is not None
        while not select([process.stdout], [], [], 0.1)[0]:  # it may not follow yet
            client.request(SEND, to="Bob", body="hi\x1b[2J there", offline=True)
            client.request(SEND, to="Cy", body="no", offline=True)
        lines = [process.stdout.readline() for _ in range(2)]
        if expected == "text":
            assert "→ Bob  hi^[[2J there  " in lines[0]
            assert "Bob: waiting (nobody is called Bob yet)" in lines[1]
        else:
            message, delivery = map(json.loads, lines)
            assert (message["what"], message["to"]) == ("message", ["Bob"])
            assert message["at"].endswith("Z")
            assert (delivery["what"], delivery["state"]) == ("delivery", "waiting")
