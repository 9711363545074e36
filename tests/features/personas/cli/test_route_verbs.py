"""``relay hooks`` of route functions: listed, switched off and on, and what they said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from relay.config.trust import CONFIG_NAME, read_config, trust
from relay.core.paths import Home
from relay.protocol.agent_ops import HOOKS_RAN
from relay.protocol.message_ops import EVENT
from tests.broker.support import message_id, register
from tests.broker.test_session_requests import record
from tests.cli.fixtures import Run
from tests.support import wait_until

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
