"""What sessions report of turns, and who waits for that: over real sockets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.errors import NotFound, UsageError
from relay.core.message import REPORTED
from relay.core.paths import Home
from relay.ledger.store import Ledger
from relay.protocol.agent_ops import AGENT_STATE
from relay.protocol.message_ops import SEND, STATE, TURN, WAIT, ToolCallFields
from tests.broker.support import Json, register

ENDED: Json = {"state": "completed", "text": "It is 42.", "started_ms": 5, "ended_ms": 9}


def ask(client: BrokerClient, to: str | list[str] = "Bob") -> str:
    sent = client.request(SEND, to=to, body="what is it?", answer=True)
    return str(sent["id"])


def see(agent: BrokerClient, id_: str) -> None:
    while (push := agent.next_push(20)) is None or push.get("id") != id_:
        assert push is not None
    assert push["attributes"] == REPORTED
    agent.request(STATE, id=id_, state="delivering")
    agent.request(STATE, id=id_, state="seen")


def looked_up(client: BrokerClient, id_: str) -> Json:
    return dict(client.request(WAIT, id=id_, timeout=0, answer=True))


def test_who_waits_for_an_answer_gets_it_from_everybody(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as bob, register(home, "Cy") as cy, ThreadPoolExecutor() as pool:
        id_ = ask(client, ["Bob", "Cy"])
        with connect(home) as other:
            waiting = pool.submit(lambda: other.request(WAIT, id=id_, timeout=20, answer=True))
            see(bob, id_)
            see(cy, id_)
            bob.request(TURN, ids=[id_], **ENDED)
            assert not looked_up(client, id_)["done"] and not waiting.done()
            cy.request(TURN, ids=[id_], **{**ENDED, "text": "Nobody knows.", "inferred": True})
            found = waiting.result()
        answers = [(one["from"], one["text"], one["inferred"]) for one in found["answers"]]
        assert answers == [("Bob", "It is 42.", False), ("Cy", "Nobody knows.", True)]
        assert found["done"]


def test_a_turn_that_is_told_again_is_no_other_one(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as bob:
        first, second = ask(client), ask(client)
        see(bob, first)
        see(bob, second)
        call: ToolCallFields = {"name": "shell", "params": "{}"}
        told = bob.request(TURN, ids=[first], **ENDED, model="m", tool_calls=[call])
        assert not told["duplicate"]
        # As a session reports it that was killed, and heard both in one.
        again = bob.request(TURN, ids=[first, second], **{**ENDED, "text": "It is 43."})
        assert not again["duplicate"]
        assert bob.request(TURN, ids=[second], **ENDED)["duplicate"]
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
        see(bob, id_)
        bob.request(AGENT_STATE, state="gone")
        assert looked_up(client, id_)["done"] and not looked_up(client, id_)["answers"]


def test_a_turn_is_told_by_who_got_the_message(home: Home, client: BrokerClient) -> None:
    id_ = client.request(SEND, to="Bob", body="x", offline=True, answer=True)["id"]
    with pytest.raises(UsageError, match="registered session"):
        client.request(TURN, ids=[id_], **ENDED)
    with register(home, "Eve") as eve:
        with pytest.raises(NotFound, match="sent to Eve"):
            eve.request(TURN, ids=[id_], **ENDED)
        wrongs: list[Json] = [{"ids": []}, {"started_ms": "5"}, {"state": "running"}, {"text": 5}]
        for wrong in wrongs:
            with pytest.raises(UsageError):
                eve.request(TURN, **{"ids": [id_], **ENDED, **wrong})
