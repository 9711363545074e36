"""Dispatches to wrapped agents, from the op to the answer: sessions are scripts here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.paths import Home
from tests.broker.support import Json, register
from tests.support import wait_until


class Persona:
    """A wrapped agent that takes messages one by one, and tells how its turns end."""

    def __init__(self, home: Home, name: str = "atlas", run: str = "run-1") -> None:
        self.client = register(home, name, run)

    def next(self, timeout: float = 20.0) -> Json:
        """The next message; it is seen at once."""
        while True:
            push = self.client.next_push(timeout)
            assert push is not None, "no message came"
            if push["push"] == "deliver":
                for state in ("delivering", "submitted", "seen"):
                    self.client.request("state", id=push["id"], state=state)
                return push

    def nothing(self) -> None:
        """Nothing more has been sent."""
        self.client.request("hello")
        push = self.client.next_push(0.2)
        assert push is None or push["push"] != "deliver", push

    def answer(self, *ids: str, text: str = "done", **more: Any) -> Json:
        return self.client.request("turn", ids=list(ids), text=text, started_ms=1, **more)

    def leave(self) -> None:
        self.client.request("agent_state", state="gone")
        self.client.close()


@pytest.fixture
def atlas(home: Home, served: None) -> Iterator[Persona]:
    persona = Persona(home)
    yield persona
    persona.client.close()


def dispatch(client: BrokerClient, body: str, **more: Any) -> str:
    return str(client.request("dispatch", persona="atlas", body=body, **more)["id"])


def inbox(client: BrokerClient) -> list[tuple[str, str]]:
    return [(row["from"], row["body"]) for row in client.request("inbox")["rows"]]


def states(client: BrokerClient, **more: Any) -> list[tuple[str, str]]:
    rows = client.request("dispatches", **more)["rows"]
    return [(row["body"], row["state"]) for row in rows]


def test_a_dispatch_is_a_message_its_turn_and_an_answer(home: Home, atlas: Persona) -> None:
    with connect(home) as client:
        dispatch(client, "what is up?")
        message = atlas.next()
        assert (message["body"], message["from_kind"]) == ("what is up?", "person")
        assert message["attributes"] == {"report": "turn"}
        assert message["permissions"]["level"] == "full"
        assert states(client) == [("what is up?", "running")]
        assert atlas.answer(message["id"], text="nothing")["duplicate"] is False
        wait_until(lambda: inbox(client) == [("atlas", "nothing")], what="the answer")
        assert states(client) == []
        assert atlas.answer(message["id"], text="nothing")["duplicate"] is True
        assert inbox(client) == [("atlas", "nothing")]


def test_one_turn_at_a_time_in_a_session_by_priority_then_age_and_sessions_beside_each_other(
    home: Home, atlas: Persona
) -> None:
    with connect(home) as client:
        dispatch(client, "first")
        first = atlas.next()
        dispatch(client, "second")
        dispatch(client, "urgent", priority=5)
        dispatch(client, "elsewhere", session="other")
        assert atlas.next()["body"] == "elsewhere"
        atlas.nothing()
        atlas.answer(first["id"])
        urgent = atlas.next()
        assert urgent["body"] == "urgent"
        atlas.answer(urgent["id"])
        assert atlas.next()["body"] == "second"
