"""A chain of messages does not begin anew because an agent sends through something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.core.agent_names import owner_name
from relay.core.processes import MARKS
from tests.e2e.wrapped import (
    RELAY,
    SAY,
    python,
    relay,
    relay_json,
    say,
    wait_registered,
    wrapped,
)
from tests.support import found

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


@pytest.mark.parametrize(
    "way", [_REGISTERS, _WRAPS, _TWICE], ids=["registers another", "wraps another", "twice"]
)
def test_not_through_an_agent_of_its_own(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_HOPS_MAX", "1")
    relay("agents")  # starts the broker with that limit
    with (
        wrapped(python(SAY), name="Al") as al,
        wrapped(python(_WHEN_TOLD + way + "sys.stdin.read()"), name="Bob"),
    ):
        wait_registered("Al", "Bob")
        al.type(say("@relay:Bob hello"))
        [held] = found(lambda: [row for row in relay_json("history") if row["body"] == "thanks"])
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
    with (
        wrapped(python(SAY), name="Al") as al,
        wrapped(python(calls), name="Bob", cwd=folder),
    ):
        wait_registered("Al", "Bob")
        al.type(say("@relay:Bob hello"))
        [held] = found(lambda: [row for row in relay_json("history") if row["body"] == "thanks"])
        assert (held["from"], held["state"]) == (owner_name(), "held"), held
