from __future__ import annotations

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from relay.cli import doctor
from relay.core.paths import Home
from tests.cli.verbs import program


@pytest.fixture
def home(isolated_home: Path) -> Home:
    return Home(str(isolated_home))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def _checks(home: Home, cwd: Path) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.examine(home, str(cwd))}


def test_agents_are_found_with_their_versions_and_not_run(
    home: Home, path: Path, tmp_path: Path
) -> None:
    package = tmp_path / "node_modules" / "@anthropic-ai" / "claude-code"
    script = program(package, "cli.js")
    (package / "package.json").write_text(
        json.dumps({"name": "@anthropic-ai/claude-code", "version": "9.8.7"})
    )
    (path / "claude").symlink_to(script)
    native = program(tmp_path / "versions" / "0.1.3", "codex")
    (path / "codex").symlink_to(native)
    program(tmp_path / "env" / "bin", "aider")
    (path / "aider").symlink_to(tmp_path / "env" / "bin" / "aider")
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    (site / "aider_chat-0.9.1.dist-info").mkdir(parents=True)
    program(path, "gemini")
    found = _checks(home, tmp_path)
    assert found["claude"].text.startswith("9.8.7, heard through its own words")
    assert found["codex"].text.startswith("0.1.3, heard through its screen")
    assert found["codex"].level == "warn" and "from 0.169.0 on" in found["codex"].text
    assert found["aider"].text.startswith("0.9.1, ")
    assert found["gemini"].text.startswith("version unknown, ")
    assert found["qwen"].level == "absent"
    assert not list(tmp_path.rglob("ran"))


def test_a_broker_that_runs_is_seen(home: Home, path: Path, tmp_path: Path) -> None:
    home.create()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(home.broker_socket)
        listener.listen()
        assert "running at" in _checks(home, tmp_path)["broker"].text
    # A socket file that its owner left behind.
    assert "not running" in _checks(home, tmp_path)["broker"].text


def test_a_state_directory_that_is_not_writable_is_broken(
    home: Home, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_args: False)
    check = _checks(home, tmp_path)["state"]
    assert (check.level, "not writable" in check.text) == ("bad", True)


def test_a_socket_folder_that_others_may_enter_is_mentioned(
    home: Home, path: Path, tmp_path: Path
) -> None:
    home.create()
    os.chmod(home.run, 0o755)
    check = _checks(home, tmp_path)["socket"]
    assert (check.level, "chmod 700" in check.hint) == ("warn", True)
    assert stat.S_IMODE(os.stat(home.run).st_mode) == 0o755


def test_without_the_terminal_emulator_it_says_what_is_missing(
    home: Home, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("importlib.import_module", missing)
    check = _checks(home, tmp_path)["screen"]
    assert (check.level, "plain lines" in check.text) == ("warn", True)


def test_a_check_that_fails_is_a_line_and_not_a_traceback(
    home: Home, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> doctor.Check:
        raise ValueError("odd")

    monkeypatch.setattr(doctor, "_sqlite", broken)
    assert _checks(home, tmp_path)["sqlite"].text == "could not be examined: ValueError: odd"
