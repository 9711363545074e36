"""Channels, presence and who one is, as a person types it."""

from __future__ import annotations

import json

from relay.broker.client import BrokerClient, connect
from relay.core.agent_names import owner_name
from relay.core.paths import Home
from relay.features.channels.ops import Whoami
from relay.features.channels.verbs import status_line
from relay.protocol.agent_ops import AGENT_STATE, REGISTER
from relay.protocol.message_ops import SEND, STATE
from tests.broker.support import Json, registration
from tests.cli.fixtures import Run

OWNER = owner_name()


def test_a_channel_from_the_first_member_to_its_history(relay: Run, broker_home: Home) -> None:
    assert relay("status-line").stdout == "\n"  # nothing is started for it
    assert relay("channel", "join", "build").stdout == f"{OWNER} has joined #build\n"
    assert "an agent: --name Bob" in relay("channel", "join", "build", "Bob").stderr
    alone = relay("send", "#build", "anybody?")
    assert (alone.returncode, "nobody else is in #build" in alone.stderr) == (3, True)
    with connect(broker_home) as bob:
        bob.request(REGISTER, **registration("Bob"), roles=["reviewer"], join=["build"])
        bob.request(AGENT_STATE, state="blocked", reason="#[fg=red]`id` $(id)")
        assert relay("send", "#build", "two\nlines").returncode == 0
        assert relay("send", "reviewer", "for your role").returncode == 0
        bob.request(SEND, to="#build", body="here")
        assert relay("channel", "members", "#BUILD").stdout.split() == sorted(["Bob", OWNER])
        shown = relay("channel", "history", "build")
        assert f"{OWNER} -> #build  queued" in shown.stdout and "  two\n  lines\n" in shown.stdout
        rows = json.loads(relay("channel", "history", "build", "--json").stdout)
        assert [(row["from"], row["body"]) for row in rows] == [
            *((OWNER, "two\nlines"), ("Bob", "here"))
        ]
        assert rows[1]["deliveries"] == [{"to": OWNER, "state": "queued", "reason": None}]
        assert "Bob is told with the next message when anybody arrives or leaves" in (
            relay("presence", "--name", "Bob", "*").stdout
        )
        told = relay("presence", "bob", "Zed").stdout
        assert f"{OWNER} is told with the next message when Bob or Zed arrives or leaves" in told
        assert "Bob" in relay("presence", "--off", "zed").stdout
        who = relay("whoami").stdout
        assert who.splitlines()[0] == OWNER and "#build" in who
        assert relay("status-line").stdout == "1 agent, 1 blocked, 1 unread\n"
        [agent] = json.loads(relay("agents", "--json").stdout)
        assert (agent["roles"], agent["channels"]) == (["reviewer"], ["#build"])
    assert relay("channel", "leave", "build").stdout == f"{OWNER} has left #build\n"
    assert relay("channel", "leave", "build").returncode == 3
    [row] = json.loads(relay("channel", "list", "--json").stdout)
    assert row == {"channel": "#build", "members": ["Bob"], "here": row["here"]}


def test_a_conversation_is_followed_through_its_replies(relay: Run, broker_home: Home) -> None:
    def hear(agent: BrokerClient) -> Json:
        while (push := agent.next_push(20)) is None or push["push"] != "deliver":
            assert push is not None
        for state in ("delivering", "submitted", "seen"):
            agent.request(STATE, id=push["id"], state=state)
        return push

    with connect(broker_home) as bob, connect(broker_home) as carol:
        bob.request(REGISTER, **registration("Bob"))
        carol.request(REGISTER, **registration("Carol", "run-2"))
        question = relay("send", "Bob", "is it green?").stdout.strip()
        relay("send", "Carol", "something else")
        hear(bob)
        asked = bob.request(SEND, to=["Carol"], body="is it?")["id"]
        assert hear(carol)["body"] == "something else" and hear(carol)["id"] == asked
        carol.request(SEND, to="Bob", body="it is")
        hear(bob)
        answer = bob.request(SEND, to=OWNER, body="it is green")["id"]
        thanks = relay("send", "Bob", "thanks", "--reply", answer).stdout.strip()
        for one in (question, asked, thanks):
            rows = json.loads(relay("show", one, "--thread", "--json").stdout)
            texts = [row["body"] for row in rows]
            assert texts == ["is it green?", "is it?", "it is", "it is green", "thanks"]
        assert relay("send", "Bob", "thanks", "--reply", "nonsense").returncode == 3
        # An answer is in the thread of its question, and what goes to somebody else is not.
        relay("send", "Bob", "and now?", "--thread", "t1")
        assert [hear(bob)["body"] for _ in range(2)] == ["thanks", "and now?"]
        here = bob.request(SEND, to=[OWNER], body="now, too")["id"]
        bob.request(SEND, to=["Carol"], body="he asks again")
        assert "  and now?\n" in relay("show", here[-8:], "--thread").stdout
        rows = json.loads(relay("history", "--thread", "t1", "--json").stdout)
        assert [row["body"] for row in rows] == ["and now?", "now, too"]


def test_a_status_line_holds_nothing_that_tmux_or_a_prompt_expands() -> None:
    hostile = "#[fg=red]#(id)%n$(id)`id`\x1b]0;x\a"
    found: Whoami = {
        "name": hostile,
        "kind": "claude",
        "roles": [hostile],
        "channels": [],
        "presence": [],
        "state": "busy",
        "reason": hostile,
        "unread": 2,
        "agents": 3,
        "busy": 2,
        "blocked": 1,
        "limited": 0,
        "stopped": 0,
        "held": 1,
    }
    line = status_line(found)
    assert not set("#[]()%$`\x1b\a;={}\\") & set(line)
    assert line.endswith("2 other agents, 1 busy, 1 blocked, 2 waiting")
    assert status_line(None) == ""
