"""What agents may do beyond messages, as trusted configurations say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.protocol import broker as protocol
from relay.protocol.agent_ops import ASK, HOOKS_RAN
from relay.protocol.message_ops import HISTORY, SEND, STATE, TURN, WAIT
from relay.protocol.op import Auth, by_name
from tests.broker.fixtures import Configure
from tests.broker.support import Json, register
from tests.broker.test_session_requests import record
from tests.support import unchecked


def asked(client: BrokerClient, by: str, kind: str, agent: str) -> str:
    """How the broker ends the request: ``no_session`` where it would have gone on."""
    auth: Auth | None = {"run": by, "token": "secret"} if by else None
    with pytest.raises(RelayError) as caught:
        client.request(ASK, agent=agent, kind=kind, request={}, auth=auth)
    return caught.value.code


@pytest.mark.usefixtures("served")
def test_an_agent_may_what_its_name_is_given_and_where(
    home: Home, configure: Configure, tmp_path: Path
) -> None:
    shop = tmp_path / "shop"
    configure('may = {"bo*": ["peek"]}\n')
    configure('config = {"may": {"*": "transcript", "Ann": ["watch"]}}\n', shop)
    for name, folder in (("Bob", "/"), ("Ann", str(shop)), ("Al", str(shop)), ("Eve", "/")):
        register(home, name, run=name, cwd=folder).close()
    with connect(home) as client:
        # The person's own file: towards everybody. A project's: towards its own agents.
        for by, kind, agent, code in (
            ("", "screen", "Ann", "no_session"),
            ("Bob", "screen", "Ann", "no_session"),
            ("Bob", "transcript", "Ann", "forbidden"),
            ("Bob", "transcript", "Bob", "no_session"),
            ("Ann", "transcript", "Al", "no_session"),
            ("Ann", "transcript", "Bob", "forbidden"),
            ("Ann", "screen", "Al", "forbidden"),
            ("Eve", "screen", "Bob", "forbidden"),
            ("Bob", "choose", "Bob", "forbidden"),
            ("Bob", "interrupt", "Ann", "forbidden"),
        ):
            assert asked(client, by, kind, agent) == code, (by, kind, agent)


#: What only Ann and Bob have said to each other, or done.
WORDS = "zebra-crossing"
ENDED: Json = {"state": "completed", "text": f"{WORDS} turn", "started_ms": 5, "ended_ms": 9}


def reading(id_: str, said: str) -> list[tuple[str, Json]]:
    """The ops that tell the person these words, each with a request that finds them."""
    return [
        ("inbox", {"name": "Bob", "all": True}),
        ("sent", {"name": "Ann"}),
        ("show", {"id": id_}),
        ("show", {"id": said}),
        ("history", {}),
        ("history", {"kind": "*"}),
        ("history", {"agent": "Ann"}),
        ("history", {"thread": "t1"}),
        ("history", {"grep": WORDS}),
        ("history", {"grep": f"{WORDS} turn"}),
        ("history", {"about": id_}),
        ("wait", {"id": id_, "timeout": 0, "answer": True}),
        ("watch", {"after": 0, "epoch": ""}),
        ("hook_log", {}),
        ("dispatches", {}),
    ]


def told(client: BrokerClient, op: str, fields: Json) -> str:
    """All that the broker says to a request, also by the pushes that follow."""
    try:
        answer = json.dumps(unchecked(client).request(op, **fields, deadline=20.0))
    except RelayError as error:
        return f"{error.message} {error.hint}"
    while op == "watch" and (push := client.next_push(1)) is not None:
        answer += json.dumps(push)
    return answer


@pytest.mark.usefixtures("served")
def test_no_op_tells_an_agent_the_words_of_others(home: Home, configure: Configure) -> None:
    configure('may = {"Ed": ["watch"], "Tim": ["transcript"]}\n')
    with (
        register(home, "Ann", "ann") as ann,
        register(home, "Bob", "bob") as bob,
        register(home, "Eve", "eve"),
        register(home, "Ed", "ed"),
        register(home, "Tim", "tim"),
        connect(home) as client,
    ):
        sent: Json = {"to": "Bob", "body": f"{WORDS} message", "thread": "t1", "answer": True}
        id_ = str(ann.request(SEND, **sent)["id"])
        for state in ("delivering", "seen"):
            bob.request(STATE, id=id_, state=state)
        bob.request(TURN, ids=[id_], **ENDED)
        bob.request(HOOKS_RAN, records=[{**record(), "stdout": WORDS}])
        client.request(by_name("dispatch"), persona="atlas", body=WORDS)
        [turn] = client.request(HISTORY, grep=f"{WORDS} turn")["rows"]
        agents: dict[str, Json] = {
            name: {"auth": {"run": name, "token": "secret"}} for name in ("ann", "eve", "ed", "tim")
        }
        for op, fields in reading(id_, turn["id"]):
            assert WORDS in told(client, op, fields), op
            assert WORDS not in told(client, op, fields | agents["eve"]), (op, fields)
            if op not in ("dispatches", "wait"):
                assert WORDS in told(client, op, fields | agents["ed"]), (op, fields)
        # Whatever there is, and what is yet to come.
        guess = {"id": id_, "agent": "Bob", "about": id_, "timeout": 0, "kind": "transcript"}
        ops = set(re.findall(r"``([a-z_]+)``", str(protocol.__doc__))) - {"watch"}
        for op in sorted(one for one in ops if not one.startswith("memory")):
            for names in ({}, {"name": "Bob"}, {"name": "Ann"}):
                said = told(client, op, {**guess, **names, "request": {}, **agents["eve"]})
                assert WORDS not in said, op
        for name, kind in (("ann", "message"), ("tim", "turn")):
            rows = client.request(HISTORY, **{"grep": WORDS, **agents[name]})["rows"]
            assert [row["kind"] for row in rows] == [kind]


@pytest.mark.usefixtures("served")
def test_a_receiver_is_told_how_far_a_message_is_and_not_what_was_answered(home: Home) -> None:
    with (
        register(home, "Bob", "bob") as bob,
        register(home, "Eve", "eve") as eve,
        connect(home) as client,
    ):
        id_ = str(client.request(SEND, to="Bob", body="what?", answer=True)["id"])
        for state in ("delivering", "seen"):
            bob.request(STATE, id=id_, state=state)
        [row] = bob.request(WAIT, id=id_, timeout=0)["deliveries"]
        assert (row["to"], row["state"]) == ("Bob", "seen")
        for asks, fields in ((bob, {"answer": True}), (eve, {})):
            with pytest.raises(RelayError, match="only read"):
                unchecked(asks).request(WAIT, id=id_, timeout=0, **fields)
