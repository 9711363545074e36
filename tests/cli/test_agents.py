"""``relay agents``, ``status`` and ``broker`` as their user meets them."""

from __future__ import annotations

import json
import plistlib
import re
import signal
from pathlib import Path

import pytest

from relay.cli.broker_verbs import launchd, systemd
from relay.config.trust import CONFIG_NAME
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE
from relay.protocol.message_ops import SEND
from tests.broker.support import lock_kept, register
from tests.cli.fixtures import Run


def test_agents(relay: Run, broker_home: Home) -> None:
    with register(broker_home, "Bob") as bob, register(broker_home, "Al") as al:
        al.request(AGENT_STATE, state="gone")
        bob.request(AGENT_STATE, state="busy")
        relay("send", "Bob", "x")
        rows = json.loads(relay("agents", "--json").stdout)
        shown = ["name", "state", "kind", "pid", "cwd", "unread", "since"]
        assert list(rows[0])[:7] == shown
        assert [(row["name"], row["state"], row["unread"]) for row in rows] == [
            ("Bob", "busy", 1),
            ("Al", "gone", 0),
        ]
        live = json.loads(relay("agents", "--live", "--json").stdout)
        assert [row["name"] for row in live] == ["Bob"]
        table = relay("agents").stdout.splitlines()
        assert table[0].split() == ["NAME", "STATE", "KIND", "PID", "UNREAD", "SINCE", "CWD"]
        assert table[1].startswith("Bob  ")


def test_status_shows_what_does_not_work(
    relay: Run, broker_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with register(broker_home, "Bob") as bob:
        bob.request(
            AGENT_STATE, state="blocked", reason="a dialog", source="screen", notes=["no hooks"]
        )
        out = relay("status").stdout
        assert re.search(
            r"^Bob: blocked \(a dialog\) for \ds, screen, read from its screen$", out, re.M
        )
        assert "\n  ! no hooks\n" in out and "events" not in out
        status = json.loads(relay("status", "--json").stdout)
        assert status["agents"][0]["notes"] == ["no hooks"]
        relay("send", "Bob", "for later")
        assert "1 message on the way: relay history" in relay("status").stdout
        bob.request(SEND, to="me", body="look")
        out = relay("status").stdout
        assert "1 message for you: relay inbox" in out and "1 message on the way" in out
        bob.request(AGENT_STATE, state="gone")
        out = relay("status").stdout
        assert "(1 that ended, with 1 unread)" in out and "on the way" not in out
        assert "no space" not in out
        monkeypatch.setattr("relay.cli.status.is_full", lambda _: True)
        assert f"! no space is left at {broker_home.root}: make room" in relay("status").stdout


def test_status_says_which_configuration_evaluates_nothing_and_what_mends_it(
    relay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "config" / "relay"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent))
    file = folder / CONFIG_NAME
    file.write_text("routes = {}\n")

    def told() -> str:
        [notice] = json.loads(relay("status", "--json").stdout)["untrusted"]
        assert (
            f"! {notice}\n  It will not see the events that arrive before then.\n"
            in relay("status").stdout
        )
        return str(notice)

    assert told().startswith(f"{file} is not trusted") and told().endswith(f"relay trust {file}")
    relay("trust", str(file))
    assert "!" not in relay("status").stdout
    file.write_text("routes = {}  # edited\n")
    assert told().startswith(f"{file} has changed") and told().endswith(f"relay trust {file}")
    file.unlink()
    assert told().startswith(f"{file}, which you trusted, is gone")


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
        named = f"process {stranger.pid} (sleep 600) holds the broker's lock, and is not a broker"
        assert named in relay("broker", "status").stdout
        refused = relay("broker", "stop")
        assert refused.returncode == 2 and "add --yes" in refused.stderr
        assert stranger.poll() is None
        assert f"stopped (pid {stranger.pid})" in relay("broker", "stop", "--yes").stderr
        assert stranger.wait(timeout=30) == -signal.SIGTERM
    assert relay("send", "Bob", "it goes on", "--offline").returncode == 0
