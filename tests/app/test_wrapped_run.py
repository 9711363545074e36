"""One run from its name to its exit status, as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from relay.agents import launch
from relay.agents.launch import Launch, Run
from relay.app import start_door, wrapped_run
from relay.app.start_door import StartFeature
from relay.config import names
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.pump.agent_process import CannotRun
from tests.pump.outer import DRIVER, Fake, stop_sessions


def test_names_are_made_from_the_command_and_unique(tmp_path: Path) -> None:
    fake = Fake(tmp_path / "fake")
    env = {**os.environ, "FAKE": str(fake.folder)}
    first = subprocess.Popen(
        [sys.executable, DRIVER, "sh", "-c", "echo $RELAY_AGENT; cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
    )
    watchdog = threading.Timer(60, first.kill)
    watchdog.start()
    assert first.stdout is not None
    assert first.stdout.readline() == b"sh\n"
    second = subprocess.run(
        [sys.executable, DRIVER, "sh", "-c", "echo $RELAY_AGENT"],
        capture_output=True,
        env=env,
        timeout=60,
        check=False,
    )
    assert second.stdout == b"sh-2\n"
    first.communicate()
    watchdog.cancel()
    stop_sessions(fake)
    assert first.returncode == 0


def test_run_gives_a_program_its_own_things_back(tmp_path: Path) -> None:
    """As a library: handlers and descriptors are as before, and the session has the program's."""
    text = """
import os, signal, sys
from relay.app import wrapped_run as assembly
assembly.session_command = lambda: [sys.executable, "-S", %r]
handler = signal.getsignal(signal.SIGINT)
before = set(os.listdir("/dev/fd"))
status = assembly.run(assembly.Choices(["sh", "-c", "exit 7"]))
assert signal.getsignal(signal.SIGINT) is handler
assert set(os.listdir("/dev/fd")) == before, os.listdir("/dev/fd")
print("status", status)
"""
    fake = Fake(tmp_path / "fake")
    path = os.path.join(os.path.dirname(DRIVER), "fake_session.py")
    done = subprocess.run(
        [sys.executable, "-c", text % path],
        capture_output=True,
        text=True,
        env={**os.environ, "FAKE": str(fake.folder)},
        timeout=60,
        check=False,
    )
    stop_sessions(fake)
    assert done.stdout == "status 7\n", done.stderr


def test_a_run_that_does_not_begin_leaves_nothing_behind(
    isolated_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qwen = tmp_path / "qwen"
    qwen.write_text("#!/bin/sh\n")
    qwen.chmod(0o700)
    folders: list[str] = []

    def planned(argv: list[str], env: dict[str, str], run: Run) -> Launch:
        os.mkdir(run.folders.run)
        folders.append(run.folders.run)
        return Launch(["/nowhere/at/all"], {}, "qwen", {})

    monkeypatch.setattr(launch, "plan", planned)
    before = set(os.listdir("/dev/fd"))
    with pytest.raises(CannotRun):
        wrapped_run.run(wrapped_run.Choices([str(qwen)], wrapped_run.Participant("Ann")))
    assert set(os.listdir("/dev/fd")) == before
    home = Home(str(isolated_home))
    assert folders and os.listdir(home.run) == []
    names.claim(home, "Ann", "qwen").release()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_run_that_a_signal_ends_before_it_begins_leaves_nothing_behind(
    isolated_home: Path, number: signal.Signals
) -> None:
    text = f"""
import os
from relay.agents import launch
from relay.cli import wrap
launch.plan = lambda *_: os.kill(os.getpid(), {int(number)})
wrap.main(["true"])
"""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (-number, "")
    assert os.listdir(Home(str(isolated_home)).run) == []


class Guard(StartFeature):
    name = "guard"

    def alone(self) -> str:
        return "it is guarded"


def test_nothing_starts_where_a_feature_that_may_guard_it_cannot_be_opened(
    isolated_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_such_feature").mkdir()
    (tmp_path / "no_such_feature" / "start.py").write_text("")
    monkeypatch.setattr(start_door, "_FOLDER", str(tmp_path))
    with pytest.raises(CannotRun, match="sh is not started, because the feature no_such_feature"):
        wrapped_run.run(wrapped_run.Choices(["sh"]))


def test_what_a_feature_guards_does_not_run_without_relay(
    isolated_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_door, "opened", lambda choices, cwd: [Guard()])

    def fails(choices: wrapped_run.Choices, features: list[StartFeature]) -> int:
        raise RelayError("no space", code="state_dir")

    monkeypatch.setattr(wrapped_run, "_run", fails)
    with pytest.raises(CannotRun, match="sh is not started, because it is guarded, and relay"):
        wrapped_run.run(wrapped_run.Choices(["sh"]))
