"""Where relay's hooks can be put into Gemini CLI for one run."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from relay.agents.gemini import launch as hooks
from relay.agents.hook_install import write_teller
from relay.agents.known_agents import ungated, untold
from relay.agents.launch import Launch
from relay.hooks.events import TOOL_CALL, HookEventName
from tests.agents.gemini.documented import documented_hooks
from tests.agents.installs import install, run_of
from tests.agents.installs import start as planned


@pytest.fixture
def gemini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Gemini CLI of a known version, in a project, where all folders belong to root."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(hooks, "_insecure", lambda path: "")
    save(tmp_path, {"security": {"folderTrust": {"enabled": False}}})
    return install(tmp_path / "program", "gemini")


def save(base: Path, settings: dict[str, Any]) -> Path:
    """The person's own settings."""
    file = base / "home" / ".gemini" / "settings.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(settings))
    return file


def start(
    argv: list[str],
    base: Path,
    env: dict[str, str] | None = None,
    events: tuple[str, ...] = ("BeforeTool", "AfterTool"),
) -> Launch:
    return planned(base, argv, env, hooks=events)


def put_in(launch: Launch) -> dict[str, Any]:
    file = Path(launch.env["GEMINI_CLI_SYSTEM_DEFAULTS_PATH"])
    assert file.stat().st_mode & 0o777 == 0o600
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def missed(launch: Launch) -> str:
    """Why not all tool calls reach the hooks."""
    [note] = ungated("gemini", launch.data, lambda event: event in TOOL_CALL)
    return note


def test_hooks_go_into_the_lowest_settings(gemini: str, tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    theirs = {"ui": {"theme": "x"}, "hooks": {"BeforeTool": [{"hooks": []}]}}
    (tmp_path / "system" / "system-defaults.json").write_text(json.dumps(theirs))
    launch = start([gemini], tmp_path)
    assert launch.data["gates"] == ["BeforeTool", "AfterTool"]
    found = put_in(launch)
    assert found["ui"] == {"theme": "x"} and set(found["hooks"]) == {"BeforeTool", "AfterTool"}
    first, second = found["hooks"]["BeforeTool"]
    assert first == {"hooks": []}
    [hook] = second["hooks"]
    assert (hook["name"], hook["timeout"]) == ("relay", 600_000)  # in milliseconds
    assert '"decision": "deny"' in hook["command"]


def test_nothing_is_put_in_that_nobody_asked_for(gemini: str, tmp_path: Path) -> None:
    launch = start([gemini], tmp_path, events=("Output",))
    assert launch.env == {} and "gates" not in launch.data and "ungated" not in launch.data
    assert set(put_in(start([gemini], tmp_path, events=("AfterTool",)))["hooks"]) == {"AfterTool"}


def test_it_tells_of_turns_and_notices_without_waiting(gemini: str, tmp_path: Path) -> None:
    launch = start([gemini], tmp_path, events=("BeforeAgent", "PreCompress"))
    assert launch.data["tells"] == ["BeforeAgent", "PreCompress"] and "gates" not in launch.data
    assert untold("gemini", launch.data, launch.data["tells"].__contains__) == []
    found = put_in(launch)["hooks"]
    assert set(found) == {"BeforeAgent", "PreCompress"}
    [group] = found["PreCompress"]
    assert group["matcher"] == "manual"
    [hook] = group["hooks"]
    assert (hook["name"], hook["timeout"]) == ("relay", 5_000)


@pytest.mark.parametrize("size", [10, 65_536, 3_000_000])
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_hook_that_tells_has_all_of_the_event_when_it_ends_and_waits_for_nobody(
    tmp_path: Path, shell: str, size: int
) -> None:
    """Gemini CLI hangs up when the command has ended, whatever of the event is left to write."""
    event = b'{"prompt": "%s"}' % (b"x" * size)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        run = run_of(
            "Bob",
            token="it's",
            port=listener.getsockname()[1],
            folder=str(tmp_path / "it's"),
        )
        [group] = hooks.observers(write_teller(run, aside=True), ["BeforeAgent"])["BeforeAgent"]
        line = [shell, "-c", group["hooks"][0]["command"]]
        pipe = subprocess.PIPE
        with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as process:
            assert process.stdin and process.stdout and process.stderr
            left = memoryview(event)
            while left and process.poll() is None:
                left = left[process.stdin.write(left[:4096]) :]
            process.stdin.close()
            assert not left
            assert process.stdout.read() + process.stderr.read() == b""
            assert process.wait(30) == 0
        client, _ = listener.accept()
        with client, client.makefile("rb") as said:
            client.settimeout(30)
            head, _, body = said.read().partition(b"\r\n\r\n")
    assert b"Authorization: Bearer it's\r\n" in head
    assert body == event + b"\n"


def test_only_root_has_files_that_gemini_cli_believes(
    gemini: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "_insecure", lambda path: path)
    launch = start([gemini], tmp_path)
    assert launch.env == {}
    assert str(tmp_path / "run") in missed(launch) and "your own settings" in missed(launch)
    launch = start([gemini], tmp_path, events=("AfterAgent",))
    [note] = untold("gemini", launch.data, lambda event: event is HookEventName.AFTER_AGENT)
    assert launch.env == {} and "only from root's files" in note and "settings" not in note


def test_whoever_has_named_the_hooks_in_their_settings_needs_no_such_file(
    gemini: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "_insecure", lambda path: path)
    save(tmp_path, {"security": {"folderTrust": {"enabled": False}}, **documented_hooks()})
    launch = start([gemini], tmp_path)
    assert list(launch.env) == ["RELAY_ASK"] and os.path.isfile(launch.env["RELAY_ASK"])
    assert launch.data["gates"] == ["BeforeTool", "AfterTool"]
    both = start([gemini], tmp_path, events=("BeforeTool", "AfterAgent"))
    assert both.data["gates"] == ["BeforeTool"] and "root" in str(both.data["untold"])
    monkeypatch.setattr(hooks, "_insecure", lambda path: "")
    both = start([gemini], tmp_path, events=("BeforeTool", "AfterAgent"))
    # Their own hook asks about tools, so ours does not ask again.
    assert set(put_in(both)["hooks"]) == {"AfterAgent"} and "RELAY_ASK" in both.env


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"hooksConfig": {"enabled": False}}, "hooksConfig.enabled"),
        ({"hooksConfig": {"disabled": ["relay"]}}, "hooksConfig.disabled"),
    ],
)
def test_hooks_that_the_person_has_turned_off_stay_off(
    gemini: str, tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    file = save(tmp_path, {"security": {"folderTrust": {"enabled": False}}, **settings})
    launch = start([gemini], tmp_path)
    assert launch.env == {} and why in missed(launch) and str(file) in missed(launch)


def test_in_a_folder_that_is_not_trusted_hooks_do_not_run_yet(gemini: str, tmp_path: Path) -> None:
    save(tmp_path, {})
    launch = start([gemini], tmp_path)
    # They are put in: the person may trust the folder when Gemini CLI asks.
    assert "hooks" in put_in(launch) and "trusts" in missed(launch)
    assert "gates" in start([gemini, "--skip-trust"], tmp_path).data
    assert "gates" in start([gemini], tmp_path, {"GEMINI_CLI_TRUST_WORKSPACE": "true"}).data
    rules = tmp_path / "home" / ".gemini" / "trustedFolders.json"
    rules.write_text(json.dumps({str(tmp_path / "project"): "TRUST_FOLDER"}))
    assert "gates" in start([gemini], tmp_path).data
    assert "ungated" in start([gemini], tmp_path, {"GEMINI_RESTRICTED_MODE": "true"}).data


def test_what_gemini_cli_believes(tmp_path: Path) -> None:
    """Root's files, in root's folders, that nobody else may write."""
    assert hooks._insecure("/usr/bin") == ""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    file = shared / "settings.json"
    file.write_text("{}")
    assert hooks._insecure(str(file)) != ""
    mine = shared / "mine"
    mine.mkdir(mode=0o700)
    assert hooks._insecure(str(mine / "not yet")) != ""
