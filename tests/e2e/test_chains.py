"""A chain of messages does not begin anew because an agent sends through something else."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from relay.config.trust import user_config
from relay.core.agent_names import owner_name
from relay.core.paths import Home
from relay.core.processes import MARKS
from tests.e2e.wrapped import RELAY, SAY, python, relay, relay_json, say, wait_registered, wrapped
from tests.support import found, wait_until

pytestmark = pytest.mark.skipif(not MARKS, reason="runs are marked on Linux only")

#: Runs when a message has reached it for sure.
_WHEN_TOLD = """
import os, subprocess, sys
from relay.broker.client import connect
from relay.core.paths import Home
sys.stdin.readline()
with connect(Home.from_env()) as client:
    while client.request("history")["rows"][0]["state"] not in ("submitted", "seen"): pass
"""
_REGISTERS = """
with connect(Home.from_env()) as client:
    more = dict(kind="x", cwd="/", command="x", pid=None)
    client.request("register", name="Zed", run="zed", token="x", **more)
    client.request("person")
    client.request("send", to="Al", body="thanks")
"""
_SENDS = [*RELAY, "send", "Al", "thanks"]
_INNER = [*RELAY, "wrap", "--name", "Zed", "--", *_SENDS]
_WRAPS = f"subprocess.run({_INNER!r})\n"
_TWICE = f"subprocess.run({[*RELAY, 'wrap', '--name', 'Y', '--', *_INNER]!r})\n"


@pytest.mark.parametrize("way", [_REGISTERS, _TWICE], ids=["registers another", "wraps two"])
def test_not_through_an_agent_of_its_own(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_HOPS_MAX", "1")
    relay("agents")  # starts the broker with that limit
    with (
        wrapped(python(SAY), name="Al") as al,
        wrapped(python(_WHEN_TOLD + way + "sys.stdin.read()"), name="Bob"),
    ):
        wait_registered("Al", "Bob")
        al.type(say("@relay:Bob hello"))
        [held] = found(
            lambda: [row for row in relay_json("history") if row["body"] == "thanks"], 60
        )
        assert (held["from"], held["state"]) == ("Zed", "held"), held
        assert "2 messages followed from one another" in held["reason"]


def test_not_through_a_program_of_the_persons_that_it_has_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_HOPS_MAX", "1")
    relay("agents")  # starts the broker with that limit
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "relay.config.py").write_text(
        "import subprocess\n"
        f"def deploy(target, message, ctx): subprocess.run({_SENDS!r})\n"
        "patterns = {'deploy': deploy}\n"
    )
    relay("trust", str(folder / "relay.config.py"))
    calls = _WHEN_TOLD + "print('@deploy:now please', flush=True)\nsys.stdin.read()"
    with wrapped(python(SAY), name="Al") as al, wrapped(python(calls), name="Bob", cwd=folder):
        wait_registered("Al", "Bob")
        al.type(say("@relay:Bob hello"))
        [held] = found(
            lambda: [row for row in relay_json("history") if row["body"] == "thanks"], 60
        )
        assert (held["from"], held["state"]) == (owner_name(), "held"), held


def test_not_through_events_and_dispatches(tmp_path: Path) -> None:
    """What follows from events of an agent inside another, and from what a program of the person's
    does that was called for an agent, is one hop further than that agent."""
    folder = tmp_path / "project"
    folder.mkdir()
    mail = json.dumps({"channel": "mail", "sender": "a@b", "content": "x"})
    asks = [[*RELAY, "ingest", "event", mail], [*RELAY, "send", "clerk", "x"]]
    configs = {
        folder / "relay.config.py": "import subprocess\n"
        "def deploy(target, message, ctx):\n"
        f"    for one in {asks!r}: subprocess.run(one)\n"
        "patterns = {'deploy': deploy}\n",
        Path(user_config()): "from relay import Relay\nrelay = Relay()\n"
        "config = {'personas': {'clerk': {'command': 'cat', 'mode': 'headless'}}}\n"
        "@relay.route(channels=['mail'])\n"
        "def mailed(event): return True\n"
        "@relay.route(kinds=['session_start'])\n"
        "def began(event): return event.sender == 'Zed'\n",
    }
    for path, text in configs.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        relay("trust", str(path))
    does = f"{_WHEN_TOLD}{_WRAPS}print('@deploy:now please', flush=True)\nsys.stdin.read()"
    query = "SELECT e.kind, e.channel, d.hops FROM dispatches d JOIN events e ON e.seq = d.event"

    def followed() -> list[tuple[str, str, int]]:
        with closing(sqlite3.connect(Home.from_env().ledger)) as db:
            return sorted(db.execute(query).fetchall())

    with wrapped(python(SAY), name="Al") as al, wrapped(python(does), name="Bob", cwd=folder):
        wait_registered("Al", "Bob")
        al.type(say("@relay:Bob hello"))
        wait_until(lambda: len(followed()) == 3, what="what follows")
    assert followed() == [
        ("dispatch", "relay", 2),
        ("message", "mail", 2),
        ("session_start", "relay", 2),
    ]
