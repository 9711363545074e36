"""``relay broker queue|dead|retry|drop|dispatch`` as their user meets them."""

from __future__ import annotations

import json
import plistlib
import signal
from pathlib import Path

import pytest

from relay.cli.broker_verbs import launchd, systemd
from relay.core.paths import Home
from tests.broker.support import lock_kept, register
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


def test_a_service_is_shown_and_written_once_it_is_agreed_to(
    relay: Run, broker_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    unit = tmp_path / "systemd/user/relay-broker.service"
    monkeypatch.setattr("sys.platform", "linux")
    shown = relay("broker", "install")
    assert f'"--home" "{broker_home.root}"' in shown.stdout
    assert shown.returncode == 2 and not unit.exists()
    assert relay("broker", "install", "--yes").returncode == 0
    assert unit.read_text() in relay("broker", "install", "--yes").stdout + shown.stdout


def test_a_launchd_agent_is_a_property_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path, text, _ = launchd(Home("/r h"))
    found = plistlib.loads(text.encode())
    assert path == f"{tmp_path}/Library/LaunchAgents/{found['Label']}.plist"
    assert found["ProgramArguments"][-2:] == ["--home", "/r h"] and found["KeepAlive"]


def test_words_are_quoted_as_systemd_reads_them() -> None:
    text = systemd(Home('/50% "x" $y \\'))[1]
    assert '"--home" "/50%% \\"x\\" $$y \\\\"\n' in text


def test_what_holds_the_lock_is_named_and_ended_on_the_persons_word(
    relay: Run, broker_home: Home
) -> None:
    broker_home.create()
    with lock_kept(broker_home) as stranger:
        named = f"process {stranger.pid} (sleep 600) holds the broker's lock, and is no broker"
        assert named in relay("broker", "status").stdout
        refused = relay("broker", "stop")
        assert refused.returncode == 2 and "give --yes" in refused.stderr
        assert stranger.poll() is None
        assert f"stopped (pid {stranger.pid})" in relay("broker", "stop", "--yes").stderr
        assert stranger.wait(timeout=30) == -signal.SIGTERM
    assert relay("send", "Bob", "it goes on", "--offline").returncode == 0
