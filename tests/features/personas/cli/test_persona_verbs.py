"""``relay send`` to a persona, ``relay broker queue|dead|retry|drop|dispatch``, and persons."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from relay.config.trust import CONFIG_NAME, read_config, trust
from relay.core.agent_names import owner_name
from relay.core.paths import Home
from relay.features.personas.ops import PERSON_ADD
from relay.protocol.agent_ops import HOOKS_RAN
from relay.protocol.message_ops import EVENT
from tests.broker.support import message_id, register
from tests.broker.test_session_requests import record
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


# -- ``relay hooks`` of route functions: listed, switched off and on, and what they said.

_ROUTES = """
from relay import Relay
relay = Relay()

@relay.route(kinds=["match"], priority=3)
def wanted(event):
    return event.content == "go"
"""


def test_route_functions_are_listed_switched_off_and_on_and_what_they_said_is_shown(
    broker_home: Home, relay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / CONFIG_NAME).write_text(_ROUTES)
    assert relay("trust", CONFIG_NAME).returncode == 0
    [listed] = json.loads(relay("hooks", "list", "--json").stdout)
    hook = listed["name"]
    assert re.fullmatch(r"shop-[0-9a-f]{16}/wanted", hook)
    assert (listed["kinds"], listed["priority"], listed["disabled"]) == (["match"], 3, None)

    def told(number: int, body: str) -> None:
        with register(broker_home, "Ann", run="r1", cwd=str(folder)) as ann:
            ann.request(EVENT, kind="match", body=body, id=message_id(number))

    told(1, "go")
    told(2, "stay")

    def log(*words: str) -> list[tuple[str, str, str]]:
        rows = json.loads(relay("hooks", "log", "--json", *words).stdout)
        return [(row["hook"], row["agent"], row["decision"]) for row in rows]

    wait_until(lambda: len(log("--quiet")) == 2, what="both evaluations")
    assert log() == [(hook, "Ann", "fired")]
    with register(broker_home, "Ann", run="r1") as ann:
        ann.request(HOOKS_RAN, records=[record(duration=0.25)])
    of_event, of_session = (
        re.split("  +", line) for line in relay("hooks", "log").stdout.splitlines()[1:]
    )
    assert of_event[1:5] == ["Ann", "match", message_id(1), hook]
    assert of_event[6] == "fired: default main" and float(of_event[5]) < 5000
    [made] = json.loads(relay("broker", "queue", "--json").stdout)
    assert message_id(1) in relay("show", made["id"][-8:]).stdout  # what it follows from
    for number, said in ((1, "fired"), (2, "not fired")):
        shown = relay("show", message_id(number)[-8:]).stdout
        assert f"evaluation: {hook}  {said}\n" in shown
    counted = "route functions, last 24 hours: 1 fired, 1 not fired (relay hooks log)\n"
    assert counted in relay("status").stdout
    assert of_session[1:] == ["Ann", "on_before_tool", "-", "guard", "250.0", "ok"]
    assert log("--quiet", "--event", "match")[-1] == (hook, "Ann", "not fired")
    assert relay("hooks", "disable", "wanted").stdout == f"{hook} is off\n"
    assert "off: switched off by" in relay("hooks", "list").stdout
    told(3, "go")
    assert len(log("--quiet", "--event", "match")) == 2  # asked no more
    assert json.loads(relay("hooks", "enable", hook, "--json").stdout) == {"hook": hook, "on": True}
    told(4, "go")
    wait_until(lambda: len(log("--quiet")) == 4, what="another evaluation")
    assert not relay("hooks", "list").stderr
    broken = tmp_path / "config" / "relay" / CONFIG_NAME
    broken.parent.mkdir(parents=True)
    broken.write_text("1 / 0\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = read_config(str(broken))
    trust(broker_home, file.path, file.sha256)
    others = relay("hooks", "list")  # they apply whatever is wrong with that one
    assert others.returncode == 0 and hook in others.stdout and str(broken) in others.stderr
    unknown = relay("hooks", "disable", "wnted")
    assert unknown.returncode == 3 and "no route function wnted" in unknown.stderr


# -- ``relay person`` as its user meets it.


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
def test_who_cannot_be_is_refused(
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
