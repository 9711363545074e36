"""``relay doctor``: what it finds, says and mends, and what it knows of installed agents."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from relay.agents.launch import PLANNERS
from relay.agents.profile import find_profile
from relay.broker.client import check_person, connect
from relay.broker.start import may_start
from relay.cli import doctor, status
from relay.cli.doctor import native_hooks
from relay.config.trust import CONFIG_NAME
from relay.core import processes
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.protocol.agent_ops import REGISTER
from tests.broker.support import broker_thread, registration
from tests.cli.verbs import Verb, program, verbs_of
from tests.config.trusted import trusted
from tests.core.packages import install


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


@pytest.fixture
def relay() -> Verb:
    return verbs_of(doctor)


@pytest.mark.parametrize("agent", PLANNERS)
def test_it_says_what_the_screen_of_an_agent_does_not_tell(
    home: Home, path: Path, tmp_path: Path, agent: str
) -> None:
    program(path, agent)
    assert "docs/screen.md" in _checks(home, tmp_path)[agent].hint


def test_a_fresh_machine_is_fine_and_nothing_is_made(
    relay: Verb, home: Home, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert relay("doctor") == 0
    assert not os.path.exists(home.root)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("✓ python")
    assert lines[-1] == "Next: relay demo"
    found = _checks(home, tmp_path)
    assert {check.level for check in found.values()} <= {"ok", "warn", "absent"}
    assert "npm install -g @anthropic-ai/claude-code" in found["claude"].text
    assert "starts when it is needed" in found["broker"].text


def test_the_next_step_is_an_agent_that_is_there(
    relay: Verb, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(path, "codex")
    assert relay("doctor") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Next: relay wrap --name Alice -- codex"


def test_a_trusted_configuration_with_a_mistake_is_not_called_fine(
    home: Home, path: Path, tmp_path: Path
) -> None:
    config = tmp_path / CONFIG_NAME
    config.write_text("config = {'timeuot': 1}\n")
    trusted(home, config)
    check = _checks(home, tmp_path)["config"]
    assert check.level == "warn" and "unknown key 'timeuot'" in check.text
    assert check.hint.startswith("fix it") and check.fix == "relay config check"


def test_an_untrusted_configuration_is_the_next_step(
    relay: Verb, home: Home, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / CONFIG_NAME
    config.write_text("")
    check = _checks(home, tmp_path)["config"]
    assert "is not trusted" in check.text and check.text.count("relay trust") == 1
    assert (check.hint, check.fix) == ("", "relay trust --show")
    assert relay("doctor") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Next: relay trust --show"
    trusted(home, config)
    assert _checks(home, tmp_path)["config"].level == "ok"
    config.write_text("# changed")
    assert "has changed" in _checks(home, tmp_path)["config"].text


def test_a_state_directory_that_is_a_file_is_broken(
    relay: Verb, home: Home, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(home.root).write_text("")
    check = _checks(home, tmp_path)["state"]
    assert (check.level, "RELAY_HOME" in check.hint) == ("bad", True)
    assert relay("doctor") == 1
    assert "✗ state" in capsys.readouterr().out


def test_a_terminal_without_unicode_gets_ascii(
    relay: Verb, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with open(tmp_path / "out", "w", encoding="ascii") as output:
        monkeypatch.setattr("sys.stdout", output)
        assert relay("doctor") == 0
    assert (tmp_path / "out").read_text().startswith("ok python")


# -- single checks
def test_a_program_with_a_profile_is_named_and_a_profile_that_is_wrong_too(
    home: Home, path: Path, tmp_path: Path
) -> None:
    program(path, "chatty")
    dotted = program(tmp_path / "node_modules" / "newer", "newer")
    (path / "newer").symlink_to(dotted)
    described = {"name": "newer", "version": "0.74.0"}
    (tmp_path / "node_modules" / "newer" / "package.json").write_text(json.dumps(described))
    os.makedirs(home.profiles, mode=0o700)
    for name, text in (
        ("chatty", "checked_with: '1.2'\nunseen: code looks live"),
        ("newer", "checked_with: '0.73.10'\npackage: newer"),
        ("odd", "x: 1"),
    ):
        file = Path(home.profiles, f"{name}.yaml")
        file.write_text(text)
        file.chmod(0o600)
    found = _checks(home, tmp_path)
    assert found["chatty"].text == (
        f"relay reads its screen, by a profile, checked with 1.2 ({path / 'chatty'})"
    )
    assert found["chatty"].hint == "code looks live (docs/screen.md)"
    assert found["newer"].text.startswith("0.74.0 (newer than 0.73.10, which relay")
    assert (found["newer"].level, found["newer"].fix) == ("warn", "relay agent check newer")
    assert found["odd"].level == "warn" and "odd.yaml:1: there is no 'x'" in found["odd"].text


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
    checked = find_profile("claude")[0].checked_with
    newer = f"9.8.7 (newer than {checked}, which relay was checked with), relay reads its"
    assert found["claude"].text.startswith(newer)
    assert (found["claude"].level, found["claude"].fix) == ("warn", "relay agent check claude")
    assert found["codex"].text.startswith("0.1.3, relay reads its screen")
    assert found["codex"].level == "warn" and "from 0.169.0" in found["codex"].text
    assert found["aider"].text.startswith("0.9.1, ")
    assert found["gemini"].text.startswith("version unknown, ")
    assert found["qwen"].level == "absent"
    assert not list(tmp_path.rglob("ran"))


def test_an_agent_that_runs_is_not_called_absent(
    relay: Verb, broker_home: Home, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect(broker_home) as bob:
        bob.request(REGISTER, **{**registration("Bob"), "kind": "claude"})
        with connect(broker_home) as cy:
            own = {"kind": "screen", "command": "/opt/own-agent --fast", "run": "run-2"}
            cy.request(REGISTER, **{**registration("Cy"), **own})
            assert relay("doctor") == 0
    shown = capsys.readouterr().out
    assert re.search(r"own-agent +not in this PATH; Cy runs it", shown)
    assert "not in this PATH; Bob runs it" in shown
    assert shown.splitlines()[-1] == "Next: relay agents"


def test_a_broker_is_seen_to_run_only_if_it_answers(home: Home, path: Path, tmp_path: Path) -> None:
    home.create()
    with broker_thread(home):
        assert "running at" in _checks(home, tmp_path)["broker"].text
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(home.broker_socket)
        listener.listen()
        assert "running at" not in _checks(home, tmp_path)["broker"].text
    # A socket file that its owner left behind.
    assert "not running" in _checks(home, tmp_path)["broker"].text


def test_why_the_broker_did_not_start_is_told_by_doctor_and_status(
    home: Home, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.create()
    Path(home.ledger).write_text("this is no ledger\n" * 100)
    with pytest.raises(RelayError):
        connect(home).close()
    check = _checks(home, tmp_path)["broker"]
    assert check.level == "bad" and "not a ledger" in check.text and "move the file" in check.hint
    assert verbs_of(status)("status") == 0
    shown = capsys.readouterr().out
    assert "broker: did not start: " in shown and "no agent runs" not in shown


def test_where_ancestors_are_hidden_nobody_is_the_person(
    home: Home, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "identity" not in _checks(home, tmp_path)
    read, parent = processes.read_process, os.getppid()
    # As with hidepid=2, where another user's process, or one that hides, is not there.
    monkeypatch.setattr(processes, "read_process", lambda pid: None if pid == parent else read(pid))
    assert "hidepid" in _checks(home, tmp_path)["identity"].hint
    with pytest.raises(RelayError, match="nobody can tell whose this process is"):
        check_person(home, "say what is trusted")
    assert not may_start(home)


@pytest.mark.parametrize(("free", "level"), [(10**9, "ok"), (10**8, "warn"), (10**6, "bad")])
def test_a_full_disk_is_seen_before_a_message_is_lost(
    home: Home, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    check = _checks(home, tmp_path)["space"]
    assert (check.level, "free at" in check.text) == (level, True)


def test_a_folder_of_relays_that_can_only_be_read_is_named(
    home: Home, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.create()
    access = os.access
    monkeypatch.setattr(os, "access", lambda one, how: one != home.logs and access(one, how))
    check = _checks(home, tmp_path)["state"]
    assert (check.level, check.text) == ("bad", f"{home.logs} is read-only")


def test_what_is_safe_is_mended_when_asked_for(
    relay: Verb, home: Home, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.create()
    os.chmod(home.logs, 0o777)
    check = _checks(home, tmp_path)["state"]
    assert (check.level, check.text) == ("warn", f"others can write to {home.logs}")
    assert check.fix == "relay doctor --fix"
    os.chmod(home.logs, 0o700)
    os.mkdir(home.run_folder("DEAD"))
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as alive:
        dead.bind(home.session_socket("DEAD"))
        alive.bind(home.session_socket("ALIVE"))
        alive.listen()
        dead.close()
        os.chmod(home.logs, 0o777)
        assert relay("doctor", "--fix") == 0
        assert sorted(os.listdir(home.run)) == ["ALIVE.sock"]
        assert _checks(home, tmp_path)["state"].level == "ok"
    assert os.stat(home.logs).st_mode & 0o777 == 0o700
    assert "Mended: what the killed run DEAD left is gone" in capsys.readouterr().out


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes files of others")
def test_what_belongs_to_another_user_is_named(home: Home, path: Path, tmp_path: Path) -> None:
    home.create()
    os.chown(home.run, 65534, 65534)
    check = _checks(home, tmp_path)["state"]
    assert check.level == "bad" and f"{home.run} belongs to another user" in check.text


def test_without_the_terminal_emulator_it_says_what_is_missing(
    home: Home, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYGHOSTTY_LIB", str(tmp_path / "missing.so"))
    check = _checks(home, tmp_path)["screen"]
    assert (check.level, "without relay" in check.text) == ("bad", True)


def test_a_check_that_fails_is_a_line_and_not_a_traceback(
    home: Home, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> doctor.Check:
        raise ValueError("odd")

    monkeypatch.setattr(doctor, "_python", broken)
    assert _checks(home, tmp_path)["python"].text == "could not be examined: ValueError: odd"


def test_features_from_outside_are_named_and_one_that_fails_says_why(
    home: Home,
    path: Path,
    tmp_path: Path,
    relay: Verb,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "shout_feature", "broker", "")
    install(tmp_path, "torn_feature", "broker", "raise OSError('no disk')\n")
    assert relay("doctor", "--json") == 0
    checks = json.loads(capsys.readouterr().out)["checks"]
    own, *others = [check for check in checks if check["name"] == "features"]
    assert own["level"] == "ok" and "governance, ingest, link, mcp, memory" in own["text"]
    assert [(check["level"], check["text"]) for check in others] == [
        ("ok", "shout_feature, of the package shout_feature 1"),
        ("warn", "the feature torn_feature could not be loaded: OSError: no disk"),
    ]
    log = Path(home.logs) / "features.log"
    assert others[1]["hint"] == f"the details are in {log}"
    assert "Traceback" in log.read_text() and "torn_feature/broker.py" in log.read_text()


CONFIG = "from relay import Relay\nrelay = Relay()\nrelay.on('before_tool', print)\n"


@pytest.fixture
def project(isolated_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trusted configuration, a Claude Code that is known, and an aider."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "relay.config.py").write_text(CONFIG)
    trusted(Home(str(isolated_home)), folder / "relay.config.py")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "claude").symlink_to(program(tmp_path / "claude" / "versions", "2.1.330"))
    program(programs, "aider")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.chdir(folder)
    return folder


def test_who_can_be_gated_is_told_from_who_cannot(isolated_home: Path, project: Path) -> None:
    first, *more = native_hooks(Home(str(isolated_home)), str(project))
    assert first == ("ok", "on_before_tool: reached by the tool calls of claude")
    [(level, text)] = more
    assert level == "warn" and text.startswith("aider: tool calls do not reach on_before_tool")
    found = [c for c in doctor.examine(Home(str(isolated_home)), str(project)) if c.name == "hooks"]
    assert [check.level for check in found] == ["ok", "warn"]


def test_who_tells_of_turns_is_told_from_who_does_not(isolated_home: Path, project: Path) -> None:
    (project / "relay.config.py").write_text(CONFIG.replace("before_tool", "after_agent"))
    trusted(Home(str(isolated_home)), project / "relay.config.py")
    assert native_hooks(Home(str(isolated_home)), str(project)) == [
        ("ok", "on_after_agent: reached by the turns and notices of claude"),
        (
            "warn",
            "aider: these hooks never run here, because aider has no hooks of its own for them: "
            "on_after_agent",
        ),
    ]


def test_without_hooks_for_what_agents_tell_nothing_is_said(
    isolated_home: Path, project: Path
) -> None:
    home = Home(str(isolated_home))
    (project / "relay.config.py").write_text(CONFIG.replace("before_tool", "idle"))
    # Not as it was trusted: what it guarded stays shut, so the agents are asked for it still.
    assert "on_before_tool" in native_hooks(home, str(project))[0][1]
    trusted(home, project / "relay.config.py")
    assert native_hooks(home, str(project)) == []
    (project / "relay.config.py").unlink()
    assert native_hooks(home, str(project)) == []
