"""The broker over real sockets: what each op does and refuses."""

from __future__ import annotations

import os
import pwd
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.agent_names import owner_name
from relay.core.errors import NameTaken, NotFound, RelayError, UsageError
from relay.core.ids import new_ulid
from relay.core.message import BODY_MAX, State
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE, AGENTS, REGISTER
from relay.protocol.broker import LINE_MAX, decode, encode
from relay.protocol.broker_ops import HELLO, STATUS
from relay.protocol.message_ops import (
    CANCEL,
    EVENT,
    HISTORY,
    INBOX,
    READ,
    SEND,
    SENT,
    SHOW,
    STATE,
    WAIT,
)
from relay.protocol.op import Auth
from tests.broker.support import Json, message_id, register, registration, stop_broker
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("served")

OWNER = owner_name()


def agent(client: BrokerClient, name: str) -> Json:
    found = [row for row in client.request(AGENTS)["agents"] if row["name"] == name]
    return dict(found[0]) if found else {}


def speaking_as(name: str) -> Json:
    """The field ``from``, which is a word of Python's."""
    return {"from": name}


def deliver(client: BrokerClient) -> Json:
    push = client.next_push(20)
    assert push is not None and push["push"] == "deliver"
    return push


# -- sending


def test_a_message_from_a_person_reaches_an_agent_and_is_seen(
    home: Home, client: BrokerClient
) -> None:
    with register(home, "Bob") as bob:
        sent = client.request(SEND, to="bob", body="hello\x00\x1b[31m", thread="t", mode="steer")
        push = deliver(bob)
        assert push["id"] == sent["id"] and push["attempt"] == 0 and push["delivery"] == 1
        assert (push["from"], push["from_kind"], push["to"]) == (OWNER, "person", "Bob")
        assert (push["body"], push["thread"], push["mode"]) == ("hello\x00\x1b[31m", "t", "steer")
        for state in (State.DELIVERING, State.SUBMITTED):
            bob.request(STATE, id=sent["id"], state=state)
        bob.request(STATE, id=sent["id"], state="seen", proof="hook")
    shown = client.request(SHOW, id=sent["id"])["message"]["deliveries"][0]
    assert (shown["state"], shown["proof"], shown["attempts"]) == ("seen", "hook", 1)


def test_the_sender_gets_receipts(home: Home) -> None:
    with register(home, "Al") as al, register(home, "Bob") as bob:
        id_ = al.request(SEND, to="Bob", body="x")["id"]
        deliver(bob)
        bob.request(STATE, id=id_, state="queued", reason="a draft")
        bob.request(STATE, id=id_, state="failed", reason="the agent ended")
        pushes = [al.next_push(20) for _ in range(2)]
        assert [(p["push"], p["id"], p["to"], p["state"], p["reason"]) for p in pushes if p] == [
            ("receipt", id_, "Bob", "queued", "a draft"),
            ("receipt", id_, "Bob", "failed", "the agent ended"),
        ]


def test_a_body_of_exactly_the_largest_size_arrives_whole(home: Home, client: BrokerClient) -> None:
    body = "\x01" * BODY_MAX  # six times as long on the wire
    with register(home, "Bob") as bob:
        client.request(SEND, to="Bob", body=body)
        assert deliver(bob)["body"] == body
    rows = client.request(HISTORY, agent="Bob")["rows"]
    assert rows[0]["body"] == body


@pytest.mark.parametrize(
    "fields",
    [
        {"body": ""},
        {"body": " \n\t"},
        {"body": "é" * (BODY_MAX // 2 + 1)},
        {"body": "\ud800"},
        {"mode": "queue"},
        {"mode": "shout"},
        {"mode": []},
        {"to": 7},
        {"attributes": [1]},
        {"id": "short"},
        {"thread": 5},
        {"thread": "x" * 300},
        {"to": None},
        {"to": []},
        {"to": [1]},
        {"attributes": {"x": "y" * 70_000}},
        {"from": "relay"},
        {"from": "a b"},
        {"auth": {"run": "x", "token": "y"}},
        {"auth": "x"},
    ],
)
def test_what_is_wrong_is_refused_and_nothing_is_stored(client: BrokerClient, fields: Json) -> None:
    request = {"to": "Bob", "body": "x", "offline": True, **fields}
    with pytest.raises(RelayError):
        client.request(SEND, **request)
    assert client.request(STATUS)["counts"]["events"] == 0


def test_the_same_id_again_changes_nothing(home: Home, client: BrokerClient) -> None:
    id_ = new_ulid(1)
    with register(home, "Bob") as bob:
        first = client.request(SEND, to="Bob", body="once", id=id_)
        again = client.request(SEND, to="Bob", body="twice", id=id_)
        assert (first["duplicate"], again["duplicate"]) == (False, True)
        deliver(bob)
        bob.request(STATE, id=id_, state="seen")
        again = client.request(SEND, to="Bob", body="once", id=id_)
        assert again["deliveries"] == [{"to": "Bob", "state": "seen", "reason": None}]
        assert bob.next_push(0.05) is None
    assert [row["body"] for row in client.request(HISTORY)["rows"]] == ["once"]


def test_nobody_takes_an_id_of_somebody_else(home: Home, client: BrokerClient) -> None:
    with register(home, "Al") as al, register(home, "Bob", run="run-2") as bob:
        id_ = message_id(7)
        al.request(SEND, to="Bob", body="first", id=id_)
        for other in (bob, client):
            with pytest.raises(UsageError, match="is taken"):
                other.request(SEND, to="Al", body="second", id=id_)
        with pytest.raises(UsageError, match="is taken"):
            bob.request(EVENT, kind="note", id=id_)
        assert al.request(SEND, to="Bob", body="first", id=id_)["duplicate"]


def test_only_a_session_claims_what_is_done_once(home: Home, client: BrokerClient) -> None:
    with register(home, "Al") as al:
        auth: Auth = {"run": "run-1", "token": "secret"}
        for kind in ("match", "session_start"):
            with pytest.raises(RelayError, match="only an agent's session"):
                client.request(EVENT, kind=kind, auth=auth)
            assert not al.request(EVENT, kind=kind)["duplicate"]


def test_the_same_id_twice_in_one_commit(home: Home, client: BrokerClient) -> None:
    connection = client._socket
    assert connection is not None
    line = b'{"n":%d,"op":"send","to":"Bob","offline":true,"body":"x","id":"ULID"}\n'
    line = line.replace(b"ULID", new_ulid(3).encode())
    connection.sendall(line % 51 + line % 52)
    part = b""
    while part.count(b"\n") < 2:
        part += connection.recv(4096)
    answers = [decode(one) for one in part.splitlines()]
    assert [one["duplicate"] for one in answers] == [False, True]
    assert answers[1]["deliveries"][0]["state"] == "waiting"


def test_a_batch_of_all_kinds_keeps_its_order(home: Home, client: BrokerClient) -> None:
    connection = client._socket
    assert connection is not None
    special: dict[int, Json] = {5: {"thread": "t"}, 9: {"mode": "steer"}, 13: {"to": ["Bob", "Al"]}}
    with register(home, "Bob"), register(home, "Al"):
        pass
    numbers = range(100, 140)
    asked: list[Json] = [
        {"n": n, "op": "send", "to": "Bob", "body": f"{n}", **special.get(n % 20, {})}
        for n in numbers
    ]
    connection.sendall(b"".join(encode(one) for one in asked))
    part = b""
    while part.count(b"\n") < len(asked):
        part += connection.recv(65536)
    answers = {one["n"]: one for one in map(decode, part.splitlines())}
    for one in asked:
        to = [one["to"]] if isinstance(one["to"], str) else one["to"]
        assert answers[one["n"]]["ok"] and answers[one["n"]]["duplicate"] is False
        assert [d["to"] for d in answers[one["n"]]["deliveries"]] == to
        assert {d["state"] for d in answers[one["n"]]["deliveries"]} == {"queued"}
    rows = client.request(INBOX, name="Bob")["rows"]
    assert [row["body"] for row in rows] == [f"{n}" for n in numbers]
    assert [row["delivery"] for row in rows] == list(range(1, 41))
    assert [row["mode"] for row in rows] == [one.get("mode", "followup") for one in asked]
    assert [row["thread"] for row in rows] == [one.get("thread") for one in asked]
    assert [row["id"] for row in rows] == [answers[n]["id"] for n in numbers]


def test_a_repeated_broadcast_is_known_though_everyone_has_left(
    home: Home, client: BrokerClient
) -> None:
    id_ = new_ulid(5)
    with register(home, "Bob") as bob:
        client.request(SEND, to="*", body="x", id=id_)
        bob.request(AGENT_STATE, state="gone")
        again = client.request(SEND, to="*", body="x", id=id_)
        assert again["duplicate"] and again["deliveries"][0]["to"] == "Bob"


def test_everyone_else_gets_a_broadcast(home: Home, client: BrokerClient) -> None:
    with register(home, "Al") as al, register(home, "Bob") as bob, register(home, "Cy") as cy:
        sent = al.request(SEND, to="*", body="all")
        assert [row["to"] for row in sent["deliveries"]] == ["Bob", "Cy"]
        assert deliver(bob)["body"] == deliver(cy)["body"] == "all"
        assert al.next_push(0.05) is None


# -- withdrawing


def test_a_message_is_withdrawn_from_those_who_have_not_got_it(
    home: Home, client: BrokerClient
) -> None:
    with register(home, "Bob") as bob, register(home, "Cy") as cy:
        id_ = client.request(SEND, to=["Bob", "Cy", "Zoe"], body="x", offline=True)["id"]
        deliver(bob)
        deliver(cy)
        cy.request(STATE, id=id_, state="delivering")
        answer = client.request(CANCEL, id=id_[-8:])
        assert (answer["id"], answer["withdrawn"]) == (id_, 2)
        states = {row["to"]: (row["state"], row["reason"]) for row in answer["deliveries"]}
        withdrawn = ("cancelled", f"{OWNER} withdrew it")
        assert states == {"Bob": withdrawn, "Zoe": withdrawn, "Cy": ("delivering", None)}
        # Bob's session has it in hand, and is told so before it types.
        with pytest.raises(UsageError, match="withdrew it") as refused:
            bob.request(STATE, id=id_, state="delivering")
        assert refused.value.code == "cancelled"
        assert client.request(CANCEL, id=id_)["withdrawn"] == 0
    with register(home, "Zoe") as zoe:
        assert zoe.next_push(0.05) is None


def test_an_agent_withdraws_what_it_said_itself_and_nothing_else(
    home: Home, client: BrokerClient
) -> None:
    with register(home, "Al") as al, register(home, "Bob"):
        own = al.request(SEND, to="Bob", body="x")["id"]
        other = client.request(SEND, to="Bob", body="x")["id"]
        with pytest.raises(RelayError, match="not a message of Al's"):
            al.request(CANCEL, id=other)
        al.request(CANCEL, id=own)
        assert al.next_push(0.05) is None  # it knows
        own = al.request(SEND, to="Bob", body="y")["id"]
        client.request(CANCEL, id=own)
        push = al.next_push(20)
        assert push is not None and (push["id"], push["state"]) == (own, "cancelled")


def test_who_waits_for_a_message_is_told_that_it_was_withdrawn(
    home: Home, client: BrokerClient
) -> None:
    with register(home, "Bob"), connect(home) as other, ThreadPoolExecutor() as pool:
        id_ = client.request(SEND, to="Bob", body="x")["id"]
        waiting = pool.submit(lambda: client.request(WAIT, id=id_, timeout=20))
        other.request(CANCEL, id=id_)
        answer = waiting.result()
        assert answer["done"] and answer["deliveries"][0]["state"] == "cancelled"


def test_a_session_cannot_hold_or_withdraw_for_the_person(home: Home) -> None:
    with register(home, "Al") as al, register(home, "Bob") as bob:
        id_ = al.request(SEND, to="Bob", body="x")["id"]
        for state in ("waiting", "cancelled"):
            with pytest.raises(UsageError, match="not a session's to report"):
                bob.request(STATE, id=id_, state=state, reason="so")


def test_what_a_session_of_before_calls_held_is_queued_with_its_reason(
    home: Home, client: BrokerClient
) -> None:
    with register(home, "Bob") as bob:
        id_ = client.request(SEND, to="Bob", body="x")["id"]
        bob.request(STATE, id=id_, state="delivering")
        bob.request(STATE, id=id_, state="held", reason="a dialog is open")
        [row] = client.request(SHOW, id=id_)["message"]["deliveries"]
        assert (row["state"], row["reason"]) == ("queued", "a dialog is open")
        for state in ("delivering", "submitted", "seen"):
            bob.request(STATE, id=id_, state=state)


# -- names


def test_an_agent_that_has_ended_is_said_not_to_run(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as bob:
        early = client.request(SEND, to="Bob", body="x")
        assert early["deliveries"] == [{"to": "Bob", "state": "queued", "reason": None}]
        bob.request(AGENT_STATE, state="gone")
        late = client.request(SEND, to="Bob", body="y")
    absent = {"to": "Bob", "state": "queued", "reason": "Bob is not running"}
    assert late["deliveries"] == [absent]
    # Of what was there before it ended as well, wherever somebody looks.
    for id_ in (early["id"], late["id"]):
        (shown,) = client.request(SHOW, id=id_)["message"]["deliveries"]
        assert (shown["state"], shown["reason"]) == ("queued", "Bob is not running")
        (waited,) = client.request(WAIT, id=id_, timeout=0)["deliveries"]
        assert waited["reason"] == "Bob is not running"
    assert {row["reason"] for row in client.request(SENT)["rows"]} == {"Bob is not running"}
    with register(home, "Bob") as bob:
        assert [deliver(bob)["body"] for _ in range(2)] == ["x", "y"]
        (shown,) = client.request(SHOW, id=late["id"])["message"]["deliveries"]
        assert (shown["state"], shown["reason"]) == ("queued", None)


def test_a_message_for_a_name_that_comes_later(home: Home) -> None:
    with register(home, "Al") as al:
        answer = al.request(SEND, to="Bobby", body="for later")
        assert answer["deliveries"][0] == {
            "to": "Bobby",
            "state": "waiting",
            "reason": "nobody is called Bobby yet",
        }
        assert answer["present"] == [owner_name()]
        with register(home, "bobby") as bob:
            assert deliver(bob)["body"] == "for later"
            push = al.next_push(20)
            assert push is not None and push["state"] == "queued"


def test_a_name_can_be_taken_only_once(home: Home) -> None:
    with register(home, "Bob"):
        with pytest.raises(NameTaken, match="another agent called Bob"):
            register(home, "BOB", run="run-2")
        with pytest.raises(RelayError, match="token"):
            register(home, "Bob", token="guessed")


def test_the_same_run_takes_over_its_own_connection(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as old:
        client.request(SEND, to="Bob", body="x")
        id_ = deliver(old)["id"]
        old.request(STATE, id=id_, state="delivering", attempt=1)
        with register(home, "Bob") as new:
            push = deliver(new)
            assert (push["id"], push["attempt"], push["state"]) == (id_, 1, "delivering")
            with pytest.raises(RelayError):
                while old.next_push(20):
                    pass
            assert agent(client, "Bob")["state"] == "starting"


def test_an_agent_cannot_have_the_persons_name(home: Home) -> None:
    with pytest.raises(NameTaken, match="person"):
        register(home, OWNER)


@pytest.mark.parametrize("name", ["relay", "*", "a b", "", pytest.param("x" * 65, id="too long")])
def test_names_that_cannot_be(client: BrokerClient, name: str) -> None:
    with pytest.raises(UsageError):
        client.request(REGISTER, **registration(name))


def test_nobody_speaks_as_an_agent(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as bob, register(home, "Al"):
        with pytest.raises(UsageError, match="Al is an agent"):
            client.request(SEND, to="Bob", body="x", **speaking_as("al"))
        with pytest.raises(UsageError, match="Bob cannot speak as Al"):
            bob.request(SEND, to="Al", body="x", **speaking_as("Al"))
        with pytest.raises(RelayError) as failure:
            auth: Auth = {"run": "run-1", "token": "guessed"}
            client.request(SEND, to="Bob", body="x", auth=auth)
        assert failure.value.code == "forbidden"


def test_a_tool_of_the_agent_speaks_as_the_agent(home: Home, client: BrokerClient) -> None:
    with register(home, "Al", run="run-a", token="t"), register(home, "Bob") as bob:
        auth: Auth = {"run": "run-a", "token": "t"}
        client.request(SEND, to="Bob", body="x", auth=auth)
        assert (deliver(bob)["from"]) == "Al"
        assert client.request(SENT, auth=auth)["rows"][0]["body"] == "x"


# -- inboxes


def test_a_tool_that_asks_before_its_agent_is_known_waits_a_moment(
    home: Home, client: BrokerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.broker.client.KNOWN", 20.0)
    auth: Auth = {"run": "run-early", "token": "secret"}
    with register(home, "Bob") as bob, ThreadPoolExecutor(1) as tool:
        sent = tool.submit(lambda: client.request(SEND, to="Bob", body="early", auth=auth))
        with pytest.raises(TimeoutError):
            sent.result(0.1)
        with register(home, "Al", run="run-early"):
            sent.result(10)
            assert deliver(bob)["from"] == "Al"


def test_an_agent_writes_to_the_person_by_any_word_for_them(
    home: Home, client: BrokerClient
) -> None:
    login = pwd.getpwuid(os.getuid()).pw_name
    with register(home, "Bob") as bob:
        for to in ("me", "User", "human", login, ["ME", "user"]):
            [told] = bob.request(SEND, to=to, body="!")["deliveries"]
            assert told["to"] == owner_name()
        assert len(client.request(INBOX, name="me")["rows"]) == 5
        unknown = bob.request(SEND, to="Zed", body="!")
        assert unknown["present"] == [owner_name()]
        client.request(SEND, to="Bob", body="?", **speaking_as("human"))
        assert bob.request(SEND, to="human", body="!")["deliveries"][0]["to"] == "human"
    with pytest.raises(NotFound) as failure:
        client.request(INBOX, name="Zed")
    assert f"you are {owner_name()}" in failure.value.hint


def test_an_agent_answers_the_person_who_wrote(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as bob:
        client.request(SEND, to="Bob", body="?", **speaking_as("Ann"))
        assert deliver(bob)["from"] == "Ann"
        id_ = bob.request(SEND, to="ann", body="!")["id"]
        inbox = client.request(INBOX, name="Ann")
        assert (inbox["kind"], [row["body"] for row in inbox["rows"]]) == ("person", ["!"])
        assert client.request(READ, name="ann", ids=[id_])["read"] == 1
        push = bob.next_push(20)
        assert push is not None and (push["state"], push["to"]) == ("seen", "Ann")
        assert client.request(INBOX, name="Ann")["rows"] == []
        assert len(client.request(INBOX, name="Ann", all=True)["rows"]) == 1
        assert client.request(READ, name="ann", ids=[id_, "unknown"])["read"] == 0


def test_an_agents_messages_are_not_marked_by_others(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as bob:
        id_ = client.request(SEND, to="Bob", body="x")["id"]
        with pytest.raises(UsageError, match="is an agent"):
            client.request(READ, name="Bob", ids=[id_])
        with pytest.raises(UsageError, match="only a person"):
            bob.request(READ, name=OWNER, ids=[id_])
        with register(home, "Al") as al, pytest.raises(NotFound):
            al.request(STATE, id=id_, state="seen")
    with pytest.raises(UsageError, match="registered"):
        client.request(STATE, id=id_, state="seen")


def test_following_an_inbox(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as bob:
        assert client.request(INBOX, follow=True)["rows"] == []
        for number in range(3):
            bob.request(SEND, to=OWNER, body=f"{number}")
        push = client.next_push(20)
        assert push is not None and push["push"] == "inbox"
        assert client.next_push(0.05) is None  # once, until it is asked
        rows = client.request(INBOX, follow=True)["rows"]
        assert [row["body"] for row in rows] == ["0", "1", "2"]
        bob.request(SEND, to=OWNER, body="more")
        assert client.next_push(20) is not None


# -- waiting


def test_wait_ends_with_the_last_delivery(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as bob, register(home, "Cy") as cy:
        id_ = client.request(SEND, to=["Bob", "Cy"], body="x")["id"]
        for one, state in ((bob, "seen"), (cy, "failed")):
            deliver(one)
            assert client.request(WAIT, id=id_, timeout=0)["done"] is False
            one.request(STATE, id=id_, state=state, reason="no" if state == "failed" else None)
        answer = client.request(WAIT, id=id_, timeout=30)
        assert answer["done"] and [row["state"] for row in answer["deliveries"]] == [
            "seen",
            "failed",
        ]


def test_wait_is_answered_once(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob"), socket.socket(socket.AF_UNIX) as raw:
        id_ = client.request(SEND, to="Bob", body="x")["id"]
        raw.connect(home.broker_socket)
        register_again = {"n": 1, "op": "register", **registration("Bob")}
        wait = {"n": 2, "op": "wait", "id": id_, "timeout": 20}
        # Two steps of one delivery in one batch: each of them may end the wait.
        steps = [{"n": n, "op": "state", "id": id_, "state": "delivering"} for n in (3, 4)]
        last = {"n": 5, "op": "state", "id": id_, "state": "seen"}
        raw.sendall(b"".join(map(encode, (register_again, wait, *steps, last))))
        answers: list[object] = []
        with raw.makefile("rb") as lines:
            while 2 not in answers:
                answers.append(decode(next(lines)).get("n"))
            raw.sendall(encode({"n": 6, "op": "hello"}))
            while 6 not in answers:
                answers.append(decode(next(lines)).get("n"))
        assert answers.count(2) == 1


# -- presence


def test_an_agent_is_gone_a_moment_after_its_connection(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as bob:
        bob.request(AGENT_STATE, state="busy", source="hooks", notes=["no transcript"])
        row = agent(client, "Bob")
        assert (row["state"], row["source"], row["notes"]) == ("busy", "hooks", ["no transcript"])
    assert agent(client, "Bob")["state"] == "busy"
    wait_until(lambda: agent(client, "Bob")["state"] == "gone", what="the grace to end")
    with register(home, "Bob", run="run-2"):
        assert agent(client, "Bob")["state"] == "starting"


# -- other ops


def test_show_by_a_part_of_the_id(client: BrokerClient) -> None:
    id_ = client.request(SEND, to="Bob", body="x", offline=True)["id"]
    assert client.request(SHOW, id=id_[-5:].lower())["message"]["id"] == id_
    for wrong, kind in (("ZZZZZZ", NotFound), ("abc", UsageError)):
        with pytest.raises(kind):
            client.request(SHOW, id=wrong)
    other = client.request(SEND, to="Bob", body="y", offline=True)["id"]
    with pytest.raises(UsageError, match="could be"):
        client.request(SHOW, id=os.path.commonprefix([id_, other]))


def test_events_that_are_no_messages(client: BrokerClient) -> None:
    id_ = new_ulid(1)
    first = client.request(EVENT, kind="turn.end", body="b", meta={"from": "forged"}, id=id_)
    again = client.request(EVENT, kind="turn.end", body="b", id=id_)
    assert (first["duplicate"], again["duplicate"]) == (False, True)
    assert client.request(HISTORY)["rows"] == []
    row = client.request(HISTORY, kind="turn.end")["rows"][0]
    assert (row["from"], row["meta"], row["state"]) == (OWNER, {"from": "forged"}, None)
    for kind in ("message", "Bad Kind", ""):
        with pytest.raises(UsageError):
            client.request(EVENT, kind=kind)


@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take Unicode names only")
def test_the_status_of_a_home_whose_name_is_no_unicode(tmp_path: Path) -> None:
    home = Home(os.fsdecode(os.fsencode(tmp_path) + b"/h\xff"))
    try:
        with connect(home) as client:
            assert client.request(STATUS)["home"] == f"{tmp_path}/h?"
    finally:
        stop_broker(home)


def test_an_answer_that_is_too_long_for_a_line_is_shortened_and_says_so(
    client: BrokerClient,
) -> None:
    for _ in range(10):
        client.request(SEND, to="Bob", body="x" * 1_000_000, offline=True)
    answer = client.request(HISTORY)
    assert answer["more"] and 0 < len(answer["rows"]) < 10
    assert client.request(HISTORY, limit=3)["more"]
    assert client.request(HISTORY, limit=10, grep="nothing like it")["rows"] == []


# -- what is no request


@pytest.mark.parametrize(
    "line",
    [b"garbage", b"[1]", b"{}", b'{"n":"x","op":"hello"}', b'{"n":1,"op":[]}', b"[" * 100_000,
     b'{"n":1}', b'{"n":1,"op":"fly"}', b"\xff\xfe"],
)  # fmt: skip
def test_what_is_no_request_is_refused_and_harms_nobody(client: BrokerClient, line: bytes) -> None:
    connection = client._socket
    assert connection is not None
    connection.sendall(line + b"\n")
    assert b'"ok":false' in connection.recv(4096)
    assert client.request(HELLO)["protocol"] == 1


def test_a_line_without_end_is_cut_off(home: Home, client: BrokerClient) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(20)
        raw.connect(home.broker_socket)
        try:
            raw.sendall(b"x" * (LINE_MAX + 2_000_000))
            assert b"more than" in raw.recv(4096)
        except (BrokenPipeError, ConnectionResetError):
            pass  # cut off while it was still writing
    assert client.request(HELLO)["protocol"] == 1


def test_the_socket_is_private(home: Home, client: BrokerClient) -> None:
    assert os.stat(home.broker_socket).st_mode & 0o777 == 0o600
    assert os.stat(home.run).st_mode & 0o777 == 0o700
