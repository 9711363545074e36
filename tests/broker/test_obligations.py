"""Who has asked for an answer that will not come is told once, whatever is killed."""

from __future__ import annotations

from itertools import islice

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.agent_names import owner_name
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE
from relay.protocol.broker import ABOUT, OBLIGATION
from relay.protocol.message_ops import CANCEL, EVENT, HISTORY, SEND, STATE, TURN
from relay.protocol.op import AwaitMaybe
from relay.ui.watching import Watching
from tests.broker.support import Json, broker_thread, kill_broker, register

AWAIT: AwaitMaybe = {"await": True}
ENDED: Json = {"state": "completed", "text": "Hm.", "started_ms": 5, "ended_ms": 9}


def see(agent: BrokerClient, id_: str) -> None:
    while (push := agent.next_push(20)) is None or push.get("id") != id_:
        assert push is not None
    agent.request(STATE, id=id_, state="delivering")
    agent.request(STATE, id=id_, state="seen")


def told(home: Home, name: str) -> list[str]:
    """What ``name`` is told of obligations."""
    with connect(home) as client:
        rows = client.request(HISTORY, agent=name, thread="obligations")["rows"]
    return [str(row["body"]).rpartition(" (")[0] for row in rows if row["to"] == name]


def test_an_agent_is_told_when_the_turn_ends_without_a_message_to_it(
    home: Home, client: BrokerClient
) -> None:
    with register(home, "Ann") as ann, register(home, "Bob", "run-2") as bob:
        with Watching(home, kinds=["obligation"]) as watching:
            ids = []
            for text, answers in (("first?", True), ("second?", False), ("third?", False)):
                ids.append(ann.request(SEND, to="Bob", body=text, **AWAIT)["id"])
                see(bob, ids[-1])
                if answers:
                    bob.request(SEND, to="Ann", body="yes")
                for _ in range(2):  # told again, as after a kill
                    bob.request(TURN, ids=ids[-1:], **ENDED)
            expected = [
                f"Bob ended its turn without an answer to “{n}?”" for n in ("second", "third")
            ]
            assert told(home, "Ann") == expected
            rows = islice(watching.rows(20), 2)
            assert [(row["id"], row["from"], row["to"], row["why"]) for row in rows] == [
                (id_, "Ann", "Bob", "unanswered") for id_ in ids[1:]
            ]
        noticed: list[Json] = []
        while len(noticed) < 2:
            push = ann.next_push(20)
            assert push is not None
            noticed += [push["attributes"]] if push.get("from") == "relay" else []
        assert noticed == [{OBLIGATION: id_} for id_ in ids[1:]]


def test_an_agent_is_told_once_and_that_a_dialog_is_in_the_way(
    home: Home, client: BrokerClient
) -> None:
    """Its time is up, and later the turn ends without an answer; or the other way round."""
    overdue: Json = {"to": ["Ann"], "notice": ABOUT, "body": "no answer from Bob within 6 s"}
    with register(home, "Ann") as ann, register(home, "Bob", "run-2") as bob:
        bob.request(AGENT_STATE, state="blocked", reason="asks to use Bash")
        ids = []
        for text in ("first?", "second?"):
            ids.append(ann.request(SEND, to="Bob", body=text, **AWAIT)["id"])
            see(bob, ids[-1])
        ann.request(SEND, **overdue, question=ids[0])
        bob.request(AGENT_STATE, state="idle")
        bob.request(TURN, ids=ids, **ENDED)
        ann.request(SEND, **overdue, question=ids[1])
    with connect(home) as after:
        rows = after.request(HISTORY, agent="Ann")["rows"]
    assert [
        str(row["body"]).rpartition(" (")[0] or row["body"] for row in rows if row["to"] == "Ann"
    ] == [
        "no answer from Bob within 6 s: a dialog that only a person can answer is open at Bob",
        "Bob ended its turn without an answer to “second?”",
    ]


def test_the_person_is_told_of_what_nobody_waits_for(home: Home, client: BrokerClient) -> None:
    owner = owner_name()
    with register(home, "Bob") as bob:
        for text, words in (("one", "It is 42."), ("two", ""), ("three", None)):
            id_ = client.request(SEND, to="Bob", body=text, answer=True)["id"]
            see(bob, id_)
            if words is not None:
                bob.request(TURN, ids=[id_], **{**ENDED, "text": words})
        unread = client.request(SEND, to="Bob", body="four", answer=True)["id"]
        client.request(CANCEL, id=unread)  # nobody owes that any more
        for agent in (bob, client):
            with pytest.raises(RelayError, match="only the broker"):
                agent.request(EVENT, kind="unanswered")
        bob.request(AGENT_STATE, state="gone")
    assert told(home, owner) == [
        "Bob ended its turn without an answer to “two”",
        "Bob has gone without an answer to “three”",
    ]


def test_it_is_told_once_through_a_kill_of_the_broker(home: Home) -> None:
    """The agent ends while no broker is there, and its session with it."""
    with connect(home) as client, register(home, "Bob") as bob:
        id_ = client.request(SEND, to="Bob", body="well?", answer=True)["id"]
        see(bob, id_)
        kill_broker(home)
    with broker_thread(home, grace=0.1), Watching(home, kinds=["obligation"]) as watching:
        assert [row["why"] for row in watching.next_rows(20)] == ["gone"]
    expected = ["Bob has gone without an answer to “well?”"]
    with broker_thread(home, grace=0.1):
        assert told(home, owner_name()) == expected
