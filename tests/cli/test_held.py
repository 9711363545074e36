"""The verbs about messages that wait for the person."""

from __future__ import annotations

import json
import os
import re

from relay.broker.loop_guard import HOPS_MAX
from relay.core.agent_names import owner_name
from relay.core.paths import Home
from tests.broker.support import register
from tests.broker.test_held_messages import exchange, next_delivery, say
from tests.cli.conftest import Run


def test_the_person_sees_and_decides(broker_home: Home, relay: Run) -> None:
    assert "nothing waits for you" in relay("held").stderr
    with register(broker_home, "Al") as al, register(broker_home, "Bob") as bob:
        exchange(al, bob, HOPS_MAX)
        for body in ("thank you", "thanks again"):
            assert say(al, "Bob", body)["state"] == "held"
        first, second = json.loads(relay("held", "--json").stdout)
        assert (first["body"], second["body"]) == ("thank you", "thanks again")
        assert "without a person" in first["reason"]
        assert "2 messages wait for you" in relay("status").stdout
        assert "goes on" in relay("allow", first["id"][-8:]).stdout
        assert next_delivery(bob)["body"] == "thank you"
        assert "refused" in relay("refuse", "--all").stdout
        assert json.loads(relay("held", "--json").stdout) == []
        assert "nothing is held" in relay("allow", "--all").stderr
        for one, word in ((first, "allowed"), (second, "refused")):
            shown = json.loads(relay("show", one["id"], "--json").stdout)
            who = rf"{word} by {owner_name()}, .*\(pid {os.getpid()}\)"
            assert re.fullmatch(who, shown["deliveries"][0]["decided"])
            assert f", {word} by {owner_name()}" in relay("show", one["id"]).stdout


def test_an_agent_does_not_decide_in_its_own_shell(broker_home: Home, relay: Run) -> None:
    with register(broker_home, "Al") as al, register(broker_home, "Bob") as bob:
        exchange(al, bob, HOPS_MAX)
        assert say(al, "Bob", "thank you")["state"] == "held"
        inside = {"RELAY_RUN": "run-1", "RELAY_TOKEN": "secret"}
        for verb in ("allow", "refuse"):
            refused = relay(verb, "--all", env=inside)
            assert refused.returncode == 1 and "only the person" in refused.stderr
        assert len(json.loads(relay("held", "--json").stdout)) == 1


def test_mistakes_are_explained(relay: Run) -> None:
    assert relay("allow").returncode == 2
    assert relay("allow", "--all", "Bob").returncode == 2
    unknown = relay("allow", "Carol")
    assert unknown.returncode == 3 and "relay held" in unknown.stderr
