"""``relay event``: what the person notes about events, and finds them by."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relay.broker.client import connect
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.features.personas.ops import EVENT_MARK
from relay.protocol.message_ops import EVENT
from tests.broker.support import register
from tests.cli.fixtures import Run


def test_what_is_noted_about_events_is_shown_found_and_taken_back(
    relay: Run, broker_home: Home
) -> None:
    event = {"channel": "mail", "source_id": "m1", "sender": "mom@x", "content": "the flight"}
    with connect(broker_home) as client:
        mail = client.request(EVENT, outside=event)["id"]
        client.request(EVENT, outside={**event, "source_id": "m2"})
        tick = client.request(EVENT, kind="own", body="not a message")["id"]
    assert relay("event", "tag", "trip", mail[-8:], tick).stdout == (
        f"{mail}  tags: trip\n{tick}  tags: trip\n"
    )
    for words in ("flag", "archive", "status booked"):
        assert relay("event", *words.split(), mail).returncode == 0
    noted = "flagged, archived, status: booked, tags: trip\n"
    assert f"noted:        {noted}" in relay("show", mail).stdout
    for more in ((), ("--grep", "flight")):
        found: list[dict[str, Any]] = json.loads(
            relay("history", "--tag", "trip", *more, "--json").stdout
        )
        assert [one["id"] for one in found] == [mail]
    state = "SELECT flagged, archived, read FROM event_state JOIN events ON seq = event"
    assert json.loads(relay("ledger", "query", state, "--json").stdout) == [
        {"flagged": 1, "archived": 1, "read": 0}
    ]
    for words in ("tag trip", "flag", "archive", "status x"):
        assert relay("event", *words.split(), mail, "--undo").returncode == 0
    assert "noted:" not in relay("show", mail).stdout
    assert relay("history", "--tag", "trip").stderr == "no messages\n"
    assert relay("event", "tag", "two words", mail).returncode == 2
    assert relay("event", "flag", "NOSUCH").returncode == 3


def test_an_agent_notes_nothing(broker_home: Home) -> None:
    with register(broker_home, "Bob") as bob:
        id_ = bob.request(EVENT, kind="own", body="mine")["id"]
        with pytest.raises(RelayError, match="only the person may tag and flag events"):
            bob.request(EVENT_MARK, what="flagged", ids=[id_])
