"""The answers that agents owe: who waits gets them, and is told once that one will not come."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.agent_names import owner_name
from relay.core.errors import NotFound, RelayError, UsageError
from relay.core.message import REPORTED
from relay.core.paths import Home
from relay.ledger.store import Ledger
from relay.protocol.agent_ops import AGENT_STATE
from relay.protocol.broker import ABOUT, OBLIGATION
from relay.protocol.message_ops import (
    CANCEL,
    EVENT,
    HISTORY,
    SEND,
    STATE,
    TURN,
    WAIT,
    ToolCallFields,
)
from relay.protocol.op import AwaitMaybe
from relay.ui.watching import Watching
from tests.broker.support import Json, broker_thread, kill_broker, register

AWAIT: AwaitMaybe = {"await": True}
ENDED: Json = {"state": "completed", "text": "Hm.", "started_ms": 5, "ended_ms": 9}


def see(agent: BrokerClient, id_: str) -> Json:
    while (push := agent.next_push(20)) is None or push.get("id") != id_:
        assert push is not None
    agent.request(STATE, id=id_, state="delivering")
    agent.request(STATE, id=id_, state="seen")
    return push


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
    expected = ["Bob has gone without an answer to “well?”"]
    for _ in range(2):
        with broker_thread(home):
            assert told(home, owner_name()) == expected


ANSWERED: Json = {"state": "completed", "text": "It is 42.", "started_ms": 5, "ended_ms": 9}


def ask(client: BrokerClient, to: str | list[str] = "Bob") -> str:
    sent = client.request(SEND, to=to, body="what is it?", answer=True)
    return str(sent["id"])


def see_asked(agent: BrokerClient, id_: str) -> None:
    assert see(agent, id_)["attributes"] == REPORTED


def looked_up(client: BrokerClient, id_: str) -> Json:
    return dict(client.request(WAIT, id=id_, timeout=0, answer=True))


def test_who_waits_for_an_answer_gets_it_from_everybody(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as bob, register(home, "Cy") as cy, ThreadPoolExecutor() as pool:
        id_ = ask(client, ["Bob", "Cy"])
        with connect(home) as other:
            waiting = pool.submit(lambda: other.request(WAIT, id=id_, timeout=20, answer=True))
            see_asked(bob, id_)
            see_asked(cy, id_)
            bob.request(TURN, ids=[id_], **ANSWERED)
            assert not looked_up(client, id_)["done"] and not waiting.done()
            cy.request(TURN, ids=[id_], **{**ANSWERED, "text": "Nobody knows.", "inferred": True})
            found = waiting.result()
        answers = [(one["from"], one["text"], one["inferred"]) for one in found["answers"]]
        assert answers == [("Bob", "It is 42.", False), ("Cy", "Nobody knows.", True)]
        assert found["done"]


def test_a_turn_that_is_told_again_is_no_other_one(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as bob:
        first, second = ask(client), ask(client)
        see_asked(bob, first)
        see_asked(bob, second)
        call: ToolCallFields = {"name": "shell", "params": "{}"}
        told = bob.request(TURN, ids=[first], **ANSWERED, model="m", tool_calls=[call])
        assert not told["duplicate"]
        # As a session reports it that was killed, and heard both in one.
        again = bob.request(TURN, ids=[first, second], **{**ANSWERED, "text": "It is 43."})
        assert not again["duplicate"]
        assert bob.request(TURN, ids=[second], **ANSWERED)["duplicate"]
        assert looked_up(client, first)["answers"][0]["text"] == "It is 42."
        assert looked_up(client, second)["answers"][0]["text"] == "It is 43."
    ledger = Ledger(home.ledger)
    with ledger.guard() as db:
        turns = db.execute("SELECT id, parent_turn, tool_call_count FROM agent_turns").fetchall()
        [(head, count)] = db.execute("SELECT head_turn, message_count FROM agent_sessions")
        numbers = [row[0] for row in db.execute("SELECT number FROM agent_messages ORDER BY seq")]
    ledger.close()
    (root,) = [turn for turn in turns if turn[1] is None]
    (tip,) = [turn for turn in turns if turn[1] is not None]
    assert (tip[1], head, count, numbers) == (root[0], tip[0], 4, [1, 2, 3, 4])
    assert (root[2], tip[2]) == (1, 0)


def test_nobody_waits_for_one_who_has_gone(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as bob:
        id_ = ask(client)
        see_asked(bob, id_)
        bob.request(AGENT_STATE, state="gone")
        assert looked_up(client, id_)["done"] and not looked_up(client, id_)["answers"]


def test_a_turn_is_told_by_who_got_the_message(home: Home, client: BrokerClient) -> None:
    id_ = client.request(SEND, to="Bob", body="x", offline=True, answer=True)["id"]
    with pytest.raises(UsageError, match="registered session"):
        client.request(TURN, ids=[id_], **ANSWERED)
    with register(home, "Eve") as eve:
        with pytest.raises(NotFound, match="sent to Eve"):
            eve.request(TURN, ids=[id_], **ANSWERED)
        wrongs: list[Json] = [{"ids": []}, {"started_ms": "5"}, {"state": "running"}, {"text": 5}]
        for wrong in wrongs:
            with pytest.raises(UsageError):
                eve.request(TURN, **{"ids": [id_], **ANSWERED, **wrong})
