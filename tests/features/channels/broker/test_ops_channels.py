"""Channels, roles and presence, over real sockets."""

from __future__ import annotations

from typing import Any

import pytest

from relay.broker.client import BrokerClient, connect
from relay.config import names
from relay.core.agent_names import owner_name
from relay.core.errors import NotFound, UsageError
from relay.core.paths import Home
from relay.features.channels.ops import CHANNEL_JOIN, CHANNEL_LEAVE, CHANNELS, PRESENCE, WHOAMI
from relay.protocol.agent_ops import AGENT_STATE, AGENTS, REGISTER
from relay.protocol.message_ops import HISTORY, INBOX, SEND, SHOW, STATE, WAIT
from tests.broker.support import Json, kill_broker, registration, stop_broker
from tests.support import unchecked

pytestmark = pytest.mark.usefixtures("served")


def start(home: Home, name: str, run: str = "", **more: Any) -> BrokerClient:
    client = connect(home)
    client.request(REGISTER, **registration(name, run or f"run-{name}"), **more)
    return client


def sent(client: BrokerClient, to: str | list[str], body: str = "hello") -> list[tuple[str, str]]:
    rows = client.request(SEND, to=to, body=body)["deliveries"]
    return sorted((row["to"], row["state"]) for row in rows)


def next_delivery(agent: BrokerClient) -> Json:
    while (push := agent.next_push(20)) is None or push["push"] != "deliver":
        assert push is not None
    return push


def news(agent: BrokerClient) -> str:
    """What the agent is told of the others with its next message."""
    id_ = next_delivery(agent)["id"]
    answer = agent.request(STATE, id=id_, state="delivering", presence=True)
    assert "presence" not in agent.request(STATE, id=id_, state="submitted")
    return str(answer.get("presence", ""))


def test_a_channel_reaches_its_members_and_survives_a_kill_of_the_broker(home: Home) -> None:
    stop_broker(home)
    claim = names.claim(home, "Bob", "bash", "run-Bob")  # Bob's run goes on without the broker
    with start(home, "Al", join=["build"]) as al, start(home, "Bob") as bob, connect(home) as me:
        assert bob.request(CHANNEL_JOIN, channel="#Build")["members"] == ["Al", "Bob"]
        me.request(CHANNEL_JOIN, channel="build")
        kill_broker(home)
    me, al = connect(home), start(home, "Al", run="another")
    assert me.request(CHANNELS)["rows"] == [
        {"channel": "#build", "members": sorted(["Al", "Bob", owner_name()]), "here": 3}
    ]
    # Everybody but the sender, whether they run or not; the others of the list once.
    expected = sorted([("Bob", "queued"), (owner_name(), "queued")])
    assert sent(al, ["#BUILD", "Bob"]) == expected
    assert sent(me, "#build", "to all") == [("Al", "queued"), ("Bob", "queued")]
    row = next_delivery(al)
    assert row["to"] == "Al" and row["attributes"] == {"channel": "#build"}
    # The history has what was written to the channel, and nothing that only says that it was.
    me.request(SEND, to="Al", body="not there", attributes={"channel": "#build"})
    rows = me.request(HISTORY, channel="build")["rows"]
    assert {one["body"] for one in rows} == {"hello", "to all"}
    for grep in ("to al", "hello"):
        found = me.request(HISTORY, channel="#build", grep=grep)["rows"]
        assert {one["body"] for one in found} == {"to all" if grep == "to al" else "hello"}
    al.request(CHANNEL_LEAVE, channel="build")
    sent(al, "#build", "from outside")
    [*_, last] = me.request(INBOX)["rows"]
    assert last["attributes"] == {"channel": "#build", "sender": "outside"}
    assert sent(me, "#build") == [("Bob", "queued")]
    with pytest.raises(NotFound, match="nobody is in #biuld") as failed:
        sent(me, "#biuld")
    assert "did you mean #build?" in failed.value.hint
    assert sent(al, "#void") == [("#void", "failed")]  # an agent is told, and goes on
    for client in (me, al):
        client.close()
    claim.release()


def test_a_role_reaches_who_has_it_and_runs_and_a_name_wins(home: Home) -> None:
    bob = start(home, "Bob", roles=["reviewer", "tester"])
    with connect(home) as me, bob, start(home, "Al") as al:
        with start(home, "Carol", roles=["Reviewer"]) as carol:
            both = [("Bob", "queued"), ("Carol", "queued")]
            assert sent(me, "reviewer") == sent(al, "REVIEWER") == both
            assert sent(carol, "reviewer") == [("Bob", "queued")]
            assert next_delivery(carol)["attributes"] == {"role": "reviewer"}
            carol.request(AGENT_STATE, state="gone")
        assert sent(me, "reviewer") == [("Bob", "queued")]
        agents = {one["name"]: one["roles"] for one in me.request(AGENTS)["agents"]}
        assert agents == {"Al": [], "Bob": ["reviewer", "tester"], "Carol": ["reviewer"]}
        with start(home, "Tester"):
            assert sent(me, "tester") == [("Tester", "queued")]
        bob.request(AGENT_STATE, state="gone")
        assert sent(al, "reviewer") == [("Bob", "queued")]  # who had it last


def test_what_was_sent_to_a_role_waits_for_the_first_who_has_it(home: Home) -> None:
    with start(home, "Al") as al:
        first = [al.request(SEND, to=to, body="x")["id"] for to in ("tester", ["tester", "Bob"])]
        assert sent(al, "tester", "later") == [("tester", "waiting")]
        with start(home, "Bob", roles=["Tester"]) as bob:
            assert {next_delivery(bob)["delivery"] for _ in range(3)} == {1, 2, 3}
            # What went to him by his name, too, is his once.
            shown = al.request(SHOW, id=first[1])["message"]["deliveries"]
            assert [(row["to"], row["state"]) for row in shown] == [
                *(("Bob", "queued"), ("tester", "waiting"))
            ]
            assert al.request(WAIT, id=first[0], timeout=0)["deliveries"][0]["to"] == "Bob"


def test_only_the_person_moves_somebody_else(home: Home) -> None:
    with start(home, "Al") as al, start(home, "Bob"), connect(home) as me:
        for op, more in (("channel_join", {"channel": "x"}), ("presence", {"who": ["*"]})):
            with pytest.raises(Exception, match="only the person"):
                unchecked(al).request(op, name="Bob", **more)
            assert unchecked(me).request(op, name="Bob", **more)["name"] == "Bob"
        with pytest.raises(UsageError, match="cannot be a channel"):
            al.request(CHANNEL_JOIN, channel="#a b")
        with pytest.raises(NotFound, match="Al is not in #x"):
            al.request(CHANNEL_LEAVE, channel="x")


def test_who_asked_hears_of_the_others_with_the_next_message_and_of_each_change_once(
    home: Home,
) -> None:
    with start(home, "Al") as al, start(home, "Bob", join=["x"]) as bob, connect(home) as me:
        assert al.request(PRESENCE, who=["#x", "reviewer"])["who"] == ["#x", "reviewer"]
        bob.request(AGENT_STATE, state="busy")
        bob.request(AGENT_STATE, state="limited")
        with start(home, "Carol", roles=["reviewer"]), start(home, "Dan"):
            sent(me, "Al")
            assert news(al) == "Bob is limited, Carol has joined"
            sent(me, "Al")
            assert news(al) == ""
            bob.request(AGENT_STATE, state="gone")
            sent(me, "Al")
            assert news(al) == "Bob has left"
        assert al.request(PRESENCE, who=["#x"], off=True)["who"] == ["reviewer"]
        assert al.request(PRESENCE, who=[], off=True)["who"] == []
        who = al.request(WHOAMI)
        assert (who["name"], who["agents"], who["presence"]) == ("Al", 3, [])
        assert me.request(WHOAMI)["kind"] == "person"
