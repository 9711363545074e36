"""Secrets in messages and turns: whole for who has to get them, masked for everybody else."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.agent_names import owner_name
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.protocol.message_ops import HISTORY, INBOX, READ, SEND, STATE, TURN, ToolCallFields
from tests.broker.fixtures import Configure
from tests.broker.support import Json, broker_thread, register
from tests.support import unchecked

SECRET = "sk-ant-api03-" + "aB3d" * 12
KEY = "AKIAABCDEFGHIJKLMNOP"
BODY = f"deploy with {SECRET} and {KEY}, please"


def delivered(agent: BrokerClient) -> Json:
    while (push := agent.next_push(20)) is None or push["push"] != "deliver":
        assert push is not None
    return push


def stored(home: Home) -> str:
    """All that the tables of the ledger hold."""
    with closing(sqlite3.connect(home.ledger)) as db:
        return "\n".join(db.iterdump())


def looks(client: BrokerClient, id_: str) -> str:
    """All that is shown of a message."""
    asked: list[tuple[str, Json]] = [
        ("show", {"id": id_}),
        ("history", {}),
        ("history", {"grep": "deploy with"}),
        ("inbox", {"name": "Bob", "all": True}),
        ("sent", {}),
        ("wait", {"id": id_, "timeout": 0, "answer": True}),
        ("watch", {"after": 0, "epoch": ""}),
    ]
    said = [json.dumps(unchecked(client).request(op, **fields)) for op, fields in asked]
    while (push := client.next_push(0.2)) is not None:
        said.append(json.dumps(push))
    return "\n".join(said)


def test_a_secret_reaches_who_it_is_for_and_is_masked_for_all_others(home: Home) -> None:
    with broker_thread(home), connect(home) as client:
        id_ = new_ulid(1)
        client.request(SEND, to="Bob", body=BODY, offline=True, id=id_, answer=True)
        again = client.request(SEND, to="Bob", body=BODY, offline=True, id=id_, answer=True)
        assert again["duplicate"]
    # Another broker, as after a kill.
    with broker_thread(home), connect(home) as client:
        with register(home, "Bob") as bob:
            assert delivered(bob)["body"] == BODY
            said = looks(client, id_)
            assert SECRET not in said and KEY not in said and "sk-ant-*****" in said
            for state in ("delivering", "submitted"):
                bob.request(STATE, id=id_, state=state)
        with register(home, "Bob") as bob:
            assert delivered(bob)["body"] == BODY  # it has not been seen yet
            bob.request(STATE, id=id_, state="seen")
            answer: Json = {"state": "completed", "text": f"done with {SECRET}", "ended_ms": 9}
            call: ToolCallFields = {
                "name": "shell",
                "params": json.dumps({"command": f"x {SECRET}"}),
            }
            bob.request(TURN, ids=[id_], started_ms=5, tool_calls=[call], **answer)
        said = looks(client, id_)
        assert "done with sk-ant-*****" in said and SECRET not in said
        assert client.request(HISTORY, grep=SECRET)["rows"] == []
        everything = stored(home)
        assert SECRET not in everything and KEY not in everything


def test_the_person_reads_it_whole_once(home: Home) -> None:
    with broker_thread(home), connect(home) as client, register(home, "Bob") as bob:
        id_ = bob.request(SEND, to=owner_name(), body=BODY)["id"]
        assert [row["body"] for row in client.request(INBOX)["rows"]] == [BODY]
        client.request(READ, name=owner_name(), ids=[id_])
        assert SECRET not in json.dumps(client.request(INBOX, all=True)) + stored(home)


@pytest.mark.parametrize("keep", [False, True])
def test_the_person_can_have_them_kept(home: Home, configure: Configure, keep: bool) -> None:
    configure(f'config = {{"redact": {not keep}}}\n')
    with broker_thread(home), connect(home) as client:
        client.request(SEND, to="Bob", body=BODY, offline=True)
        assert (client.request(HISTORY)["rows"][0]["body"] == BODY) is keep
