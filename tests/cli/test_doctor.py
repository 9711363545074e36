from __future__ import annotations

import argparse
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from relay.cli import doctor
from relay.paths import Home
from relay.trust import CONFIG_NAME, trust


@pytest.fixture
def home(isolated_home: Path) -> Home:
    return Home(str(isolated_home))


def _program(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    # Would be noticed if it were run: the checks read files only.
    path.write_text(f"#!/bin/sh\necho ran >> {folder}/ran\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def _checks(home: Home, cwd: Path) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.examine(home, str(cwd))}


def _run(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="relay")
    doctor.add(parser.add_subparsers())
    args = parser.parse_args(["doctor", *words])
    status: int = args.run(args)
    return status


def test_a_fresh_machine_is_fine_and_nothing_is_made(
    home: Home, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run() == 0
    assert not os.path.exists(home.root)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("✓ python")
    assert lines[-1] == "Next: relay demo"
    checks = _checks(home, tmp_path)
    assert {check.level for check in checks.values()} <= {"ok", "warn", "absent"}
    assert checks["claude"].text == "not installed"
    assert "starts when it is needed" in checks["broker"].text


def test_json_has_the_same(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--json") == 0
    record: Any = json.loads(capsys.readouterr().out)
    assert record["ok"] is True
    assert record["next"] == "relay demo"
    assert set(record["checks"][0]) == {"name", "level", "text", "hint"}


def test_agents_are_found_with_their_versions_and_not_run(
    home: Home, path: Path, tmp_path: Path
) -> None:
    package = tmp_path / "node_modules" / "@anthropic-ai" / "claude-code"
    program = _program(package, "cli.js")
    (package / "package.json").write_text(
        json.dumps({"name": "@anthropic-ai/claude-code", "version": "9.8.7"})
    )
    (path / "claude").symlink_to(program)
    native = _program(tmp_path / "versions" / "1.2.3", "codex")
    (path / "codex").symlink_to(native)
    _program(tmp_path / "env" / "bin", "aider")
    (path / "aider").symlink_to(tmp_path / "env" / "bin" / "aider")
    site = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    (site / "aider_chat-0.9.1.dist-info").mkdir(parents=True)
    _program(path, "gemini")
    checks = _checks(home, tmp_path)
    assert checks["claude"].text.startswith("9.8.7, heard through its own words")
    assert checks["codex"].text.startswith("1.2.3, heard through its screen")
    assert checks["aider"].text.startswith("0.9.1, ")
    assert checks["gemini"].text.startswith("version unknown, ")
    assert checks["qwen"].level == "absent"
    assert not list(tmp_path.rglob("ran"))


def test_the_next_step_is_an_agent_that_is_there(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _program(path, "codex")
    assert _run() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Next: relay wrap --name Alice -- codex"


def test_an_untrusted_configuration_is_the_next_step(
    home: Home, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / CONFIG_NAME
    config.write_text("")
    assert "is not trusted" in _checks(home, tmp_path)["config"].text
    assert _run() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Next: relay trust --show"
    trust(home, str(config))
    assert _checks(home, tmp_path)["config"].level == "ok"
    config.write_text("# changed")
    assert "has changed" in _checks(home, tmp_path)["config"].text


def test_a_broker_that_runs_is_seen(home: Home, path: Path, tmp_path: Path) -> None:
    home.create()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(home.broker_socket)
        listener.listen()
        assert "running at" in _checks(home, tmp_path)["broker"].text
    # A socket file that its owner left behind.
    assert "not running" in _checks(home, tmp_path)["broker"].text


def test_a_state_directory_that_is_a_file_is_broken(
    home: Home, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(home.root).write_text("")
    check = _checks(home, tmp_path)["state"]
    assert (check.level, "RELAY_HOME" in check.hint) == ("bad", True)
    assert _run() == 1
    assert "✗ state" in capsys.readouterr().out


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


def test_a_terminal_without_unicode_gets_ascii(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with open(tmp_path / "out", "w", encoding="ascii") as output:
        monkeypatch.setattr("sys.stdout", output)
        assert _run() == 0
    assert (tmp_path / "out").read_text().startswith("ok python")
