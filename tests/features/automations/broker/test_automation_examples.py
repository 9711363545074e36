"""The examples of automations, run by real workers, with recorded events and a scripted model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.paths import Home
from relay.features.automations.ops import AUTOMATION_REGISTER, AUTOMATIONS
from relay.features.personas.ops import PERSON_ADD
from relay.ledger.store import Ledger
from relay.protocol.message_ops import EVENT
from tests.broker.fixtures import Configure
from tests.broker.support import broker_thread
from tests.features.automations.broker.test_automation_runner import pooled, question
from tests.features.automations.broker.test_automations import dispatched, ran
from tests.features.memory.embedding.server import Answer, Asked, EmbeddingServer
from tests.features.personas.broker.test_channels import rows

Json = dict[str, Any]

INBOX = [('{"channel": "relay"}',)]
GONE_TO = "SELECT DISTINCT delivery_json FROM dispatches"
FOLDER = Path(__file__).parents[4] / "examples/automations"


@pytest.fixture
def model(configure: Configure) -> Iterator[dict[str, object]]:
    """What the model answers, by a word of what it is asked; it is the one that is configured."""
    answers: dict[str, object] = {}

    def reply(asked: Asked) -> Answer:
        text = asked.body["messages"][-1]["content"]
        [said] = [one for word, one in answers.items() if word in text]
        return Answer({"choices": [{"message": {"content": json.dumps(said)}}]})

    with EmbeddingServer(reply) as server:
        llm = {"provider": "openai", "model": "scripted", "url": server.url}
        configure(f"config = {{'llm': {llm!r}}}")
        yield answers


def register(client: BrokerClient, name: str) -> None:
    path = FOLDER / f"{name}.py"
    client.request(AUTOMATION_REGISTER, path=str(path), source=path.read_text())


def tell(client: BrokerClient, number: int, channel: str, sender: str, content: str) -> None:
    outside = {"channel": channel, "source_id": str(number), "sender": sender, "content": content}
    client.request(EVENT, outside=outside)


def test_mom_is_told_a_code_that_has_come_and_strangers_are_not(
    home: Home, served: None, model: dict[str, object]
) -> None:
    model |= {
        "netflix code, please": {"asks": True, "service": "Netflix", "confidence": 0.95},
        "spotify?": {"asks": True, "service": "Spotify", "confidence": 0.9},
        "bank": {"asks": True, "service": "Bank", "confidence": 1},
        "hello": {"asks": False, "service": None, "confidence": 0.9},
        "hm": {"asks": True, "service": "Netflix", "confidence": 0.3},
    }
    with connect(home) as client:
        client.request(
            PERSON_ADD, name="Mom", relationship="family", addresses=[["imessage", "+1555"]]
        )
        register(client, "mom_2fa_helper")
        tell(client, 1, "sms", "48211", "Netflix: your code is 482113")
        for number, text in enumerate(
            ("the netflix code, please", "and spotify?", "my bank", "hello", "hm"), 2
        ):
            tell(client, number, "imessage", "+1555", text)
        tell(client, 7, "imessage", "+1666", "the netflix code, please")
        assert [one["error"] for one in ran(home, 5)] == [None] * 5
    assert [(one[2], one[3]) for one in dispatched(home)] == [
        (
            "imessage:dm:+1555",
            "Tell Mom that the netflix code is 482113, in one friendly sentence.",
        ),
        (
            "imessage:dm:+1555",
            "Tell Mom that no spotify code has come yet, and that she can have it sent again.",
        ),
    ]


def test_a_large_payment_is_told_of_without_a_model(home: Home, served: None) -> None:
    def paid(amount: int, **fields: Any) -> str:
        told = {"amount": amount, "currency": "usd", "customer": "cus_9", **fields}
        return json.dumps({"type": "charge.succeeded", "data": {"object": told}})

    with connect(home) as client:
        register(client, "stripe_high_value")
        texts = (paid(99_99), paid(120_00), paid(900_00, currency="jpy"), "{}", "[1]", "no JSON")
        for number, text in enumerate(texts):
            outside = {"channel": "webhook", "source_id": str(number), "sender": "stripe"}
            outside |= {"sender_type": "webhook", "content": text}
            client.request(EVENT, outside=outside)
        client.request(EVENT, outside={**outside, "source_id": "x", "sender": "else"})
        assert [one["error"] for one in ran(home, 6)] == [None] * 6
    [(hook, persona, _, _, data)] = dispatched(home)
    assert (hook, persona) == ("automation/stripe-high-value", "sales")
    assert data == {"amount": 120_00, "currency": "usd", "customer": "cus_9"}
    assert rows(home, GONE_TO) == INBOX


def test_a_flight_is_checked_in_once_however_often_it_is_confirmed(
    home: Home, served: None, model: dict[str, object]
) -> None:
    model |= {
        "UA 123": {"flight": "UA 123", "departure": "2026-02-05T10:00", "code": "XYZ"},
        "LH9": {"flight": "LH9", "departure": None, "code": None},
        "cheap": {"flight": None},
    }
    texts = (
        *("Your flight UA 123 is booked", "Boarding soon: flight UA 123", "cheap flight deals"),
        *("Your itinerary: LH9", "lunch?"),
    )
    with connect(home) as client:
        register(client, "flight_checkin")
        for number, text in enumerate(texts):
            tell(client, number, "mail", "airline@x", text)
        found = ran(home, len(texts))
    assert [one["error"] for one in found] == [None] * 5
    assert [one["fired"] for one in found] == [1, 0, 0, 1, 0]
    assert [one[4]["flight"] for one in dispatched(home)] == ["UA123", "LH9"]
    assert rows(home, GONE_TO) == INBOX


@pytest.mark.parametrize(
    ("text", "fires"),
    [
        pytest.param("Home, good night!", False, id="home"),
        pytest.param("Still at the party", True, id="away"),
        pytest.param("", True, id="silent"),
    ],
)
def test_casey_is_looked_for_once_at_the_time(
    home: Home, model: dict[str, object], text: str, fires: bool
) -> None:
    model |= {"Home, good night!": {"home": True}, "Still at the party": {"home": False}}
    at_ms = int(datetime.fromisoformat("2030-02-06T00:30-08:00").timestamp() * 1000)
    with broker_thread(home, now_ms=lambda: at_ms - 60_000), connect(home) as client:
        register(client, "casey_safety_check")
        client.request(PERSON_ADD, name="Casey", addresses=[["sms", "+1777"]])
        if text:
            tell(client, 1, "sms", "+1777", text)
    for late in (5_000, 90_000):  # the second finds nothing to do
        with broker_thread(home, now_ms=partial(int, at_ms + late)), connect(home) as client:
            [run] = ran(home, 1)
            assert (run["error"], run["fired"]) == (None, int(fires))
            [row] = client.request(AUTOMATIONS)["rows"]
            assert row["status"] == "disabled"
    prompts = [(one[1], one[3]) for one in dispatched(home)]
    assert [persona for persona, _ in prompts] == ["phone-caller"] * fires
    assert all("has not said that she is home. Call Tyler" in told for _, told in prompts)


async def test_a_heartbeat_is_silent_at_night(home: Home) -> None:
    source = (FOLDER / "heartbeat.py").read_text()
    at = partial(datetime, 2026, 2, 5)
    hours = {23: False, 0: False, 7: False, 8: True, 22: True}
    about = question("")["about"] | {"config": {"quiet_hours": [23, 8]}}
    async with pooled(home) as runner:
        Ledger(home.ledger).close()
        told = [
            await runner.run(question(source, about=about, now_ms=int(at(one).timestamp() * 1000)))
            for one in hours
        ]
    assert [(one.error, one.result and one.result.fire) for one in told] == [
        (None, fires) for fires in hours.values()
    ]
