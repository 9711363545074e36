"""relay broker run, status, stop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from relay.broker import memory_proxy
from relay.cli import status
from relay.core.paths import Home
from tests.broker.support import wait_for_broker
from tests.cli.conftest import Run


def test_status_and_stop(relay: Run, broker_home: Home) -> None:
    relay("agents")
    found = json.loads(relay("broker", "status", "--json").stdout)
    assert list(found) == ["running", "pid", "socket", "home", "version", "uptime_s"]
    assert found["running"] is True and found["home"] == broker_home.root
    stopped = json.loads(relay("broker", "stop", "--json").stdout)
    assert stopped == {"stopped": True, "pid": found["pid"]}
    again = relay("broker", "stop", "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["stopped"] is False


def test_run_serves_until_interrupted(relay: Run, broker_home: Home) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "relay", "broker", "run"], stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for_broker(broker_home)
        found = json.loads(relay("broker", "status", "--json").stdout)
        assert found["pid"] == process.pid
        second = relay("broker", "run")
        assert second.returncode == 2 and "running already" in second.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
        assert process.stderr is not None and "Ctrl-C" in process.stderr.read()


def test_a_broken_ledger_is_explained(relay: Run, broker_home: Home) -> None:
    broker_home.create()
    Path(broker_home.ledger).write_text("this is no database")
    for words in (["agents"], ["broker", "run"], ["send", "Bob", "x"]):
        done = relay(*words)
        assert done.returncode == 1
        assert "is not a ledger" in done.stderr and "Traceback" not in done.stderr
    assert Path(broker_home.ledger).read_text() == "this is no database"
    broken = json.loads(relay("agents", "--json").stdout)["error"]
    assert broken["code"] == "storage"
    Path(broker_home.ledger).unlink()


def test_a_home_that_cannot_be_written(relay: Run, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = relay("inbox", env={"RELAY_HOME": str(blocked / "relay")})
    assert done.returncode == 1 and "set RELAY_HOME" in done.stderr


def test_stop_waits_until_what_hangs_in_the_broker_is_given_up() -> None:
    longest = memory_proxy.CLOSE_DEADLINE + memory_proxy.KILL_DEADLINE
    assert longest < status._STOP_WITHIN
