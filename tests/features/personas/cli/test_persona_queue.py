"""``relay broker queue|dead|retry|drop|dispatch`` as their user meets them."""

from __future__ import annotations

import json

from relay.core.paths import Home
from tests.broker.support import register
from tests.cli.fixtures import Run


def test_what_a_person_asks_for_waits_dies_and_is_tried_again(
    relay: Run, broker_home: Home
) -> None:
    made = relay("broker", "dispatch", "atlas", "what is up?", "--session", "news", "--json")
    id_ = json.loads(made.stdout)["id"]
    [row] = json.loads(relay("broker", "queue", "--json").stdout)
    assert (row["id"], row["state"], row["session"]) == (id_, "waiting", "news")
    assert "nobody is called atlas" in relay("broker", "queue").stdout
    assert "1 queued" in relay("status").stdout
    with register(broker_home, "atlas") as atlas:
        assert atlas.next_push(20) is not None
        [sent] = json.loads(relay("history", "--json").stdout)
        relay("cancel", sent["id"])
        assert relay("broker", "queue").stdout == ""
        assert id_ in relay("broker", "dead").stdout
        assert "withdrew it" in relay("broker", "dead", "atlas", "--json").stdout
        assert "waits for atlas again" in relay("broker", "retry", id_[-8:]).stdout
        while (push := atlas.next_push(20)) is not None:
            if push["push"] == "deliver" and push["id"] != sent["id"]:
                break
        assert push is not None and push["body"].endswith("what is up?")


def test_what_is_dropped_is_gone_from_the_list_and_nonsense_is_refused(relay: Run) -> None:
    made = relay("broker", "dispatch", "atlas", "x")
    assert made.stderr == "it waits: nobody is called atlas\n"
    id_ = made.stdout.strip()
    assert "dropped" in relay("broker", "drop", id_).stdout
    assert relay("broker", "queue").stdout == relay("broker", "dead").stdout == ""
    assert "nothing is dead" in relay("broker", "retry", "--all").stderr
    refused = relay("broker", "retry", "zzzz")
    assert refused.returncode == 3 and "nothing dead" in refused.stderr
    assert relay("broker", "dispatch", "not a name", "x").returncode == 2
