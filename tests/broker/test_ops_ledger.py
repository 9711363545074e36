"""Searches keep nobody waiting, and go without their index where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.ledger import search_index
from relay.protocol.broker_ops import REINDEX
from relay.protocol.message_ops import HISTORY, SEND
from tests.broker.support import register

pytestmark = pytest.mark.usefixtures("served")


def say(client: BrokerClient, *bodies: str) -> None:
    for body in bodies:
        client.request(SEND, to="Bob", body=body, offline=True)


def test_a_search_finds_what_was_acknowledged_before_it(client: BrokerClient) -> None:
    for number in range(20):
        say(client, f"needle {number}")
        rows = client.request(HISTORY, grep=f"needle {number}")["rows"]
        assert [row["body"] for row in rows] == [f"needle {number}"]


def test_while_one_client_searches_another_is_answered(home: Home, client: BrokerClient) -> None:
    say(client, "needle")
    os.mkfifo(home.search)  # opening the index waits for as long as nobody opens the other end
    try:
        with connect(home) as other:
            line = b'{"n": 1, "op": "history", "grep": "needle"}\n'
            assert other._socket is not None
            other._socket.sendall(line)
            say(client, *map(str, range(50)))
    finally:
        os.close(os.open(home.search, os.O_RDWR | os.O_NONBLOCK))
        os.unlink(home.search)


def test_without_an_index_it_searches_the_messages_as_ever(
    home: Home, client: BrokerClient
) -> None:
    say(client, "a needle here")
    Path(home.search).mkdir()
    answer = client.request(HISTORY, grep="needle")
    [row] = answer["rows"]
    assert "search.db" in answer["only"]
    assert (row["ledger"], row["snippet"]) == ("events", "a [needle] here")
    assert "searched without the index" in Path(home.broker_log).read_text()


def test_an_index_that_is_far_behind_is_not_waited_for(
    home: Home, client: BrokerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "SLICE", 2)
    monkeypatch.setattr(search_index, "BEHIND_MAX", 20)
    say(client, *(f"needle {number}" for number in range(40)))
    answer = client.request(HISTORY, grep="needle")
    assert len(answer["rows"]) == 40 and answer["only"] == "the search index is being made"
    # It catches up meanwhile, some at a time.
    while "only" in answer:
        answer = client.request(HISTORY, grep="needle")
    assert len(answer["rows"]) == 40


def test_only_the_person_makes_the_index_anew(home: Home, client: BrokerClient) -> None:
    say(client, "one", "two")
    answer = client.request(REINDEX, begin=True)
    assert (answer["indexed"], answer["more"]) == (2, False)
    with register(home, "Bob") as agent, pytest.raises(RelayError, match="only"):
        agent.request(REINDEX, auth={"run": "run-1", "token": "secret"})
