"""``relay send`` to a persona, and ``relay broker queue|dead|retry|drop|dispatch``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relay.config.trust import CONFIG_NAME
from relay.core.paths import Home
from tests.broker.support import register
from tests.cli.fixtures import Run
from tests.support import wait_until


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


_PERSONAS = {
    "tail": {"command": ["tail", "-n1"], "mode": "headless", "tools": False},
    "gone": {"command": ["no-such-program"], "mode": "headless"},
}


def test_a_configured_persona_that_does_not_run_takes_a_turn(
    relay: Run, broker_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "relay" / CONFIG_NAME
    file.parent.mkdir()
    file.write_text(f"config = {{'personas': {_PERSONAS}}}\n")
    relay("trust", str(file))
    done = relay("send", "--answer=20", "Tail", "what is up?")
    assert (done.returncode, done.stdout) == (0, "what is up?\n"), done.stderr
    assert relay("inbox").stdout == ""  # it was printed
    assert relay("send", "tail", "and now?").stderr == "tail: queued\n"
    wait_until(lambda: "and now?" in relay("inbox", "--peek").stdout, what="the answer")
    failed = relay("send", "--answer=20", "gone", "what is up?")
    why = "no-such-program cannot be started: No such file or directory"
    way_out = "look at command in the persona's configuration"
    assert failed.returncode == 4 and failed.stderr.endswith(f"gone: failed ({why}; {way_out})\n")
