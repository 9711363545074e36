"""What has gone on without a person waits for the person: over real sockets."""

from __future__ import annotations

from typing import Any, cast

import pytest

from relay.broker.batch import Accepted, Batch
from relay.broker.client import BrokerClient, connect
from relay.broker.delivery_window import DeliveryWindows
from relay.broker.directory import Directory
from relay.broker.door import BrokerFeature
from relay.broker.loop_guard import HOPS_MAX, HeldMessages, LoopGuard
from relay.broker.routing import Route, Routing
from relay.core.agent_names import owner_name
from relay.core.errors import RelayError, UsageError
from relay.core.paths import Home
from relay.ledger.schema import AgentRecord
from relay.protocol.agent_ops import AGENT_STATE, PERSON
from relay.protocol.broker_ops import STATUS, WATCH
from relay.protocol.message_ops import CANCEL, HISTORY, INBOX, SEND, SHOW, STATE, DeliveryState
from tests.broker.support import Json, decide, held, kernel_of, kill_broker, register, stop_broker

pytestmark = pytest.mark.usefixtures("served")

OWNER = owner_name()


def next_delivery(agent: BrokerClient) -> Json:
    while (push := agent.next_push(20)) is None or push["push"] != "deliver":
        assert push is not None
    return push


def read(agent: BrokerClient) -> Json:
    """The next message, which its agent has then seen."""
    message = next_delivery(agent)
    for state in ("delivering", "submitted", "seen"):
        agent.request(STATE, id=message["id"], state=state)
    return message


def say(agent: BrokerClient, to: str, body: str) -> DeliveryState:
    answer: DeliveryState = agent.request(SEND, to=to, body=body)["deliveries"][0]
    return answer


def exchange(al: BrokerClient, bob: BrokerClient, count: int) -> None:
    """``count`` messages, each of them an answer to the one before; Al begins."""
    for number in range(count):
        one, other, to = (al, bob, "Bob") if number % 2 == 0 else (bob, al, "Al")
        assert say(one, to, f"{number}")["state"] == "queued"
        assert read(other)["body"] == f"{number}"


def test_no_session_lets_go_on_what_is_held(home: Home, client: BrokerClient) -> None:
    with register(home, "Al") as al, register(home, "Bob") as bob:
        exchange(al, bob, HOPS_MAX)
        assert say(al, "Bob", "on")["state"] == "held"
        before = held(client)
        for state in ("queued", "held", "failed", "seen"):
            with pytest.raises(UsageError, match="not a session's to report"):
                bob.request(STATE, id=before[0]["id"], state=state, reason="so")
        assert held(client) == before


def test_a_chain_stops_and_the_person_lets_it_go_on(home: Home, client: BrokerClient) -> None:
    with register(home, "Al") as al, register(home, "Bob") as bob:
        exchange(al, bob, HOPS_MAX)
        stopped = say(al, "Bob", "thank you")
        assert (stopped["state"], stopped["parked"]) == ("held", True)
        assert "21 messages followed from one another" in str(stopped["reason"])
        [item] = held(client)
        assert (item["what"], item["about"]) == ("to Bob: thank you", [stopped["reason"]])
        assert item["details"] == {
            "to": ["Bob"],
            "reason": stopped["reason"],
            "thread": None,
            "count": 1,
            "last": item["id"],
        }
        [told] = client.request(INBOX, name=OWNER)["rows"]
        assert told["from"] == "relay" and "relay answer ID yes" in told["body"]
        decide(client, "yes", item["id"][-8:])
        assert read(bob)["body"] == "thank you"
        # The person has looked: from there it counts anew.
        assert say(bob, "Al", "you are welcome")["state"] == "queued"
        assert held(client) == []


def test_a_word_of_the_person_begins_a_chain_anew(home: Home, client: BrokerClient) -> None:
    with register(home, "Al") as al, register(home, "Bob") as bob:
        exchange(al, bob, HOPS_MAX)
        al.request(PERSON)
        assert say(al, "Bob", "my user says go on")["state"] == "queued"
        assert read(bob)["body"] == "my user says go on"
        client.request(SEND, to="Al", body="from the shell")
        assert read(al)["from"] == OWNER
        assert say(al, "Bob", "done")["state"] == "queued"


def test_a_notice_of_relays_does_not_begin_a_chain_anew(home: Home) -> None:
    with register(home, "Al") as al, register(home, "Bob") as bob:
        exchange(al, bob, HOPS_MAX)
        al.request(SEND, body="not sent", notice=True)
        assert read(al)["from"] == "relay"
        assert say(al, "Bob", "again")["state"] == "held"


def test_a_message_names_what_caused_it(home: Home, client: BrokerClient) -> None:
    with register(home, "Al") as al, register(home, "Bob") as bob:
        exchange(al, bob, 2)
        first, second = client.request(HISTORY)["rows"]
        assert second["cause"] == first["id"] and "cause" not in first
        shown = client.request(SHOW, id=second["id"])["message"]
        assert shown["deliveries"][0]["hops"] == 2


def test_what_is_still_queued_is_not_yet_a_cause(home: Home) -> None:
    with register(home, "Al") as al, register(home, "Bob") as bob:
        bob.request(AGENT_STATE, state="busy")
        say(al, "Bob", "one")
        message = next_delivery(bob)
        bob.request(STATE, id=message["id"], state="delivering")
        bob.request(STATE, id=message["id"], state="submitted")
        bob.request(SEND, to="Al", body="of its own accord")
        assert "cause" not in next_delivery(al)
        bob.request(STATE, id=message["id"], state="seen")
        bob.request(SEND, to="Al", body="an answer")
        assert next_delivery(al)["cause"] == message["id"]


def test_too_many_a_minute_wait_also_after_a_restart(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_RATE_MAX", "3")
    stop_broker(home)
    with register(home, "Al") as al, register(home, "Bob"):
        states = [say(al, "Bob", f"{number}")["state"] for number in range(6)]
        assert states == ["queued"] * 3 + ["held"] * 3
    stop_broker(home)
    with register(home, "Al") as al, register(home, "Bob") as bob:
        assert say(al, "Bob", "6")["state"] == "held"
        assert [read(bob)["body"] for _ in range(3)] == ["0", "1", "2"]
        with connect(home) as client:
            [item] = held(client)
            assert item["details"]["count"] == client.request(STATUS)["parked"] == 4
            decide(client, "yes")
        assert [read(bob)["body"] for _ in range(4)] == ["3", "4", "5", "6"]


def test_a_flood_is_one_item_that_is_counted(
    home: Home, monkeypatch: pytest.MonkeyPatch, client: BrokerClient
) -> None:
    monkeypatch.setattr("relay.broker.loop_guard.PARKED_MAX", 1)
    begun: list[str] = []  # each time the guard counts the two from 0
    monkeypatch.setattr(LoopGuard, "reopen", lambda _, one, other: begun.append(one))
    with (
        register(home, "Al") as al,
        register(home, "Bob", run="run-2") as bob,
        connect(home) as watcher,
    ):
        exchange(al, bob, HOPS_MAX)
        watcher.request(WATCH, kinds=["item"])
        for number in range(10):
            ids = al.request(SEND, to="Bob", body=f"{number}")["id"]

        def counts(until: Json) -> list[Json]:
            """What watchers are told of items, up to a row with these fields."""
            rows: list[Json] = []
            while not rows or not until.items() <= rows[-1].items():
                rows += watcher.next_push(20)["rows"]  # type: ignore[index]
            return rows

        told = counts({"open": True})
        while told[-1]["item"]["details"]["count"] < 10:
            told += counts({"open": True, "again": True})
        assert len({row["item"]["id"] for row in told}) == 1 and "again" not in told[0]
        al.request(CANCEL, id=ids)
        while told[-1]["item"]["details"]["count"] == 10:
            told += counts({"again": True})
        [item] = held(client)
        assert (item["details"]["count"], item["what"]) == (9, "to Bob: 8")
        assert len(client.request(INBOX, name=OWNER)["rows"]) == 1  # the person is told once
        decide(client, "yes")
        assert held(client) == []  # decided, though one a commit is let go
        assert counts({"open": False})[-1]["answer"] == "deliver"
        assert [read(bob)["body"] for _ in range(9)] == [f"{number}" for number in range(9)]
        assert held(client) == []
        assert begun == ["Al"]


def test_another_run_of_the_same_name_begins_a_chain_anew(home: Home) -> None:
    with register(home, "Al") as al, register(home, "Bob") as bob:
        exchange(al, bob, HOPS_MAX)
        al.request(AGENT_STATE, state="gone")
    with register(home, "Al", run="run-2", token="other") as al:
        assert say(al, "Bob", "I was started a moment ago")["state"] == "queued"


def test_a_killed_broker_neither_forgets_a_chain_nor_a_minute(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_RATE_MAX", "25")
    stop_broker(home)
    with register(home, "Al") as al, register(home, "Bob") as bob:
        exchange(al, bob, HOPS_MAX)
        kill_broker(home)
    with register(home, "Al") as al, register(home, "Bob") as bob:
        assert "21 messages followed" in str(say(al, "Bob", "thank you")["reason"])
        al.request(PERSON)
        kill_broker(home)
    with register(home, "Al") as al, register(home, "Bob"):
        # From a word of the person's it begins anew, but the minute goes on.
        states = [say(al, "Bob", f"{number}") for number in range(6)]
        assert [one["state"] for one in states] == ["queued"] * 5 + ["held"]
        assert "more than 25 messages a minute" in str(states[-1]["reason"])


def test_what_relay_says_of_what_an_agent_said_counts_as_a_hop(home: Home) -> None:
    with register(home, "Al") as al, register(home, "Bob") as bob:
        exchange(al, bob, HOPS_MAX - 2)
        for body in ("nobody is called Bbo", "not sent"):
            al.request(SEND, body=body, notice="about")
            assert read(al)["body"] == body
        with pytest.raises(RelayError, match="followed from one another") as refused:
            al.request(SEND, body="not sent again", notice="about")
        assert refused.value.code == "loop"
        assert say(al, "Bob", "again")["state"] == "held"
        al.request(PERSON)
        al.request(SEND, body="not sent", notice="about")
        assert read(al)["body"] == "not sent"


def test_relay_says_so_much_a_minute(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_RATE_MAX", "3")
    stop_broker(home)
    with register(home, "Al") as al:
        for number in range(3):
            al.request(SEND, body=f"{number}", notice="about")
        with pytest.raises(RelayError, match="3 things within a minute"):
            al.request(SEND, body="3", notice="about")
        # What the person's own handlers say is bounded in the session (texts_max).
        al.request(SEND, body="4", notice=True)


class Connection:
    """A client whose process has gone."""

    ancestors = ()


def test_what_cannot_be_stored_does_not_count_and_is_told_of_again() -> None:
    directory = Directory()
    al, _ = (directory.put(AgentRecord(name, False, "screen", "idle", 0, 0)) for name in "AB")
    nothing = cast(Any, None)
    client = cast(Any, Connection())
    windows = DeliveryWindows(nothing, directory, nothing, nothing)
    kernel = kernel_of(directory=directory, windows=windows, features=BrokerFeature())
    messages = HeldMessages(kernel, nothing, LoopGuard(rate_max=3))

    def send(now_ms: int, *, stored: bool) -> tuple[str, int]:
        """The state in which a message begins, and how many notices go with it."""
        routing = Routing((Route("B"),))
        message, batch = (
            Accepted(None, "id", False, "message", "A", "agent", "x", routing=routing),
            Batch(now_ms),
        )
        messages.admit(message, al, client, batch)
        for call in [] if stored else batch.on_failure:
            call()
        assert message.routing is not None
        return message.routing.routes[0].state.value, len(batch.sends)

    # The disk is full: a session asks again every second.
    assert {send(second * 1000, stored=False) for second in range(20)} == {("queued", 0)}
    assert [send(20_000, stored=True) for _ in range(3)] == [("queued", 0)] * 3
    assert [send(21_000, stored=False) for _ in range(2)] == [("held", 1)] * 2
    assert [send(22_000, stored=True) for _ in range(2)] == [("held", 1), ("held", 0)]
