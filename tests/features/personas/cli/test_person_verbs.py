"""``relay person`` as its user meets it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relay.core.agent_names import owner_name
from relay.core.paths import Home
from relay.features.personas.ops import PERSON_ADD
from tests.broker.support import register
from tests.cli.fixtures import Run


def ingest(relay: Run, channel: str, sender: str, **more: object) -> None:
    event = {"channel": channel, "sender": sender, "content": "hello", **more}
    assert relay("ingest", "event", json.dumps(event)).returncode == 0


def listed(relay: Run) -> dict[str, dict[str, Any]]:
    done = relay("person", "list", "--json")
    return {one["name"]: one for one in json.loads(done.stdout)}


def test_everybody_who_comes_along_is_a_person(relay: Run, broker_home: Home) -> None:
    with register(broker_home, "Bob"):
        ingest(relay, "mail", "a@example.org", sender_name="Ann")
        ingest(relay, "hook", "stripe", sender_type="webhook")
        ingest(relay, "door", "")  # nobody has sent it
        relay("send", "Bob", "hi", "--from", "Carol")
        found = {name: (one["type"], one["addresses"]) for name, one in listed(relay).items()}
    assert found == {
        owner_name(): ("owner", [f"relay:{owner_name()}"]),
        "Bob": ("agent", ["relay:Bob"]),
        "Carol": ("known", ["relay:Carol"]),
        "Ann": ("unknown", ["mail:a@example.org"]),
        "stripe": ("webhook", ["hook:stripe"]),
    }


def test_who_is_added_takes_over_what_came_from_the_address(relay: Run) -> None:
    ingest(relay, "imessage", "+15559876543")
    words = ("person", "add", "Mom", "--relationship", "family")
    relay(*words, "--address", "imessage:+15559876543 mail:mom@example.org")
    mom = listed(relay)["Mom"]
    assert (mom["type"], mom["relationship"]) == ("known", "family")
    assert mom["addresses"] == ["imessage:+15559876543", "mail:mom@example.org"]
    assert "+15559876543" not in listed(relay)
    done = relay("person", "show", "mail:MOM@example.org")
    assert done.stdout.splitlines()[1] == "name:         Mom"


def test_nobody_becomes_known_by_the_name_that_he_gives_himself(relay: Run) -> None:
    ingest(relay, "mail", "evil@example.org", sender_name="Mom")
    relay("person", "add", "Mom", "--type", "owner", "--address", "imessage:+15559876543")
    mom, evil = (
        json.loads(relay("person", "show", one, "--json").stdout)
        for one in ("imessage:+15559876543", "mail:evil@example.org")
    )
    assert (mom["type"], mom["addresses"]) == ("owner", ["imessage:+15559876543"])
    assert (evil["type"], evil["addresses"]) == ("unknown", ["mail:evil@example.org"])


def test_two_persons_become_one(relay: Run) -> None:
    relay("person", "add", "Mom", "--address", "mail:mom@example.org")
    relay("person", "add", "Mother", "--address", "chat:m", "--relationship", "family")
    done = relay("person", "merge", "Mom", "Mother", "--json")
    assert json.loads(done.stdout)["addresses"] == ["chat:m", "mail:mom@example.org"]
    assert set(listed(relay)) == {"Mother", owner_name()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "Ann", "--address", "chat:m"), "belongs to Mom"),
        (("add", "Bob"), "Bob is an agent"),
        (("add", "X", "--address", "relay:Bob"), "known by themselves"),
        (("merge", "Bob", owner_name()), "an agent and a person"),
        (("merge", owner_name(), "Mom"), "who is nobody else"),
        (("show", "Nobody"), "nobody is known as Nobody"),
    ],
    ids=("taken", "agent", "name", "merge", "owner", "nobody"),
)
def test_what_cannot_be_is_refused(
    relay: Run, broker_home: Home, words: tuple[str, ...], said: str
) -> None:
    relay("person", "add", "Mom", "--address", "chat:m")
    with register(broker_home, "Bob") as bob:
        before = listed(relay)
        done = relay("person", *words)
        assert done.returncode != 0 and said in done.stderr
        assert listed(relay) == before
        with pytest.raises(Exception, match="only the person"):
            bob.request(PERSON_ADD, name="Bobs", addresses=[["chat", "b"]], type="owner")
