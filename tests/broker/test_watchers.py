"""Following what happens: over a real broker's socket, and too slowly."""

from __future__ import annotations

import pytest

from relay.broker import watchers
from relay.broker.client import BrokerClient, connect
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE
from relay.protocol.broker_ops import WATCH
from relay.protocol.message_ops import SEND, STATE, TURN
from relay.ui.watching import Watching
from tests.broker.support import Json, register


def until(watching: Watching, what: str, **fields: object) -> list[Json]:
    """The rows up to the first that is so."""
    found = []
    for row in watching.rows(20):
        found.append(row)
        if row["what"] == what and fields.items() <= row.items():
            return found
    raise AssertionError(f"no {what} {fields} in {found}")


def test_a_message_is_followed_from_its_sending_to_the_turn_that_answers_it(
    home: Home, client: BrokerClient
) -> None:
    with Watching(home) as watching, Watching(home, kinds=["turn"], agents=["BOB"]) as turns:
        with register(home, "Bob") as bob:
            assert until(watching, "agent", name="Bob")[-1]["was"] is None
            bob.request(AGENT_STATE, state="idle")
            bob.request(AGENT_STATE, state="idle")  # no news
            id_ = client.request(SEND, to="Bob", body="how?", answer=True)["id"]
            bob.request(STATE, id=id_, state="delivering")
            bob.request(STATE, id=id_, state="seen", proof="hook")
            turn: Json = {
                "text": "so",
                "started_ms": 5,
                "ended_ms": 9,
                "tokens_in": 7,
                "tokens_out": 1,
            }
            bob.request(TURN, ids=[id_], **turn)
            rows = until(watching, "turn", agent="Bob")
            kinds = ["agent", "message", "delivery", "delivery", "turn"]
            assert [row["what"] for row in rows] == kinds
            assert [row["seq"] for row in rows] == list(range(rows[0]["seq"], rows[0]["seq"] + 5))
            assert (rows[0]["was"], rows[0]["state"]) == ("starting", "idle")
            assert (rows[1]["id"], rows[1]["to"], rows[1]["body"]) == (id_, ["Bob"], "how?")
            assert (rows[3]["state"], rows[3]["proof"]) == ("seen", "hook")
            assert rows[4]["usage"] == {"input": 7, "output": 1, "cached": None}
            assert turns.next_rows(20) == rows[4:]
        assert until(watching, "agent", state="gone")[-1]["was"] == "idle"


def test_an_agent_sees_who_is_there_and_what_is_its_own(home: Home, client: BrokerClient) -> None:
    with register(home, "Bob") as bob, register(home, "Cy") as cy:
        bob.request(WATCH)
        client.request(SEND, to="Cy", body="not for Bob")
        bob.request(SEND, to="Cy", body="hello")
        cy.request(AGENT_STATE, state="busy")
        seen: list[Json] = []
        while not seen or seen[-1]["what"] != "agent":
            push = bob.next_push(20)
            assert push is not None
            seen += push.get("rows", [])
        assert [row.get("body") or row.get("name") for row in seen] == ["hello", "Cy"]


def test_who_was_away_too_long_is_told_how_many_rows_went_by(
    home: Home, client: BrokerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "RING_MAX", 3)
    began = client.request(WATCH)
    for number in range(5):
        client.request(SEND, to="Bob", body=str(number), offline=True)  # two rows each
    with connect(home) as again:
        again.request(WATCH, after=began["seq"], epoch=began["epoch"])
        push = again.next_push(20)
        assert push is not None
        assert push["rows"][0]["lost"] == 7
        assert [row["what"] for row in push["rows"][1:]] == ["delivery", "message", "delivery"]
