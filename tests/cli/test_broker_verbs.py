"""``relay broker status|stop|install`` as their user meets them."""

from __future__ import annotations

import plistlib
import signal
from pathlib import Path

import pytest

from relay.cli.broker_verbs import launchd, systemd
from relay.core.paths import Home
from tests.broker.support import lock_kept
from tests.cli.fixtures import Run


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
