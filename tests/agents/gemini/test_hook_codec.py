"""Gemini CLI's hooks: where they can be put in for one run, and how they are read and answered."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from relay.agents.gemini import hook_settings as hooks
from relay.agents.hook_codec import AgentHookCall, HookCodec
from relay.agents.hook_scripts import write_teller
from relay.agents.known_agents import make_hook_codec, ungated, untold
from relay.agents.launch import Launch, Run, plan
from relay.hooks.events import TOOL_CALL, HookEventName
from relay.hooks.hook_types import Aggregated, Decision
from tests.agents.gemini.documented import documented_hooks
from tests.agents.gemini.test_launch import installed

INPUT = {"command": "ls", "dir_path": "."}
BASE = {"session_id": "S", "tool_name": "run_shell_command", "tool_input": INPUT}
BEFORE = {**BASE, "hook_event_name": "BeforeTool"}
AFTER = {**BASE, "hook_event_name": "AfterTool", "tool_response": {"llmContent": "a"}}


@pytest.fixture
def gate() -> HookCodec:
    made = make_hook_codec("gemini")
    assert made is not None
    return made


def answered(gate: HookCodec, event: dict[str, Any], result: Aggregated) -> dict[str, Any]:
    call = gate.read(event)
    assert call is not None and call.waits
    return gate.answer(call, result)


def test_tool_calls_are_read(gate: HookCodec) -> None:
    fields: dict[str, Any] = {
        "tool_name": "run_shell_command",
        "tool_input": INPUT,
        "tool_use_id": "",
    }
    assert gate.read(BEFORE) == AgentHookCall(HookEventName.BEFORE_TOOL, fields, True, BEFORE)
    fields = {**fields, "tool_response": {"llmContent": "a"}, "duration": None}
    assert gate.read(AFTER) == AgentHookCall(HookEventName.AFTER_TOOL, fields, True, AFTER)
    assert gate.read({"hook_event_name": "BeforeModel"}) is None
    assert gate.read({"hook_event_name": {}}) is None


@pytest.mark.parametrize(
    ("event", "call"),
    [
        (
            {"hook_event_name": "BeforeAgent", "prompt": "do it"},
            AgentHookCall(HookEventName.BEFORE_AGENT, {"prompt": "do it"}),
        ),
        (
            {"hook_event_name": "AfterAgent", "prompt": "do it", "prompt_response": " \ndone "},
            AgentHookCall(
                HookEventName.AFTER_AGENT, {"prompt": "do it", "prompt_response": "done"}
            ),
        ),
        (
            {
                "hook_event_name": "Notification",
                "notification_type": "ToolPermission",
                "message": "Run it?",
            },
            AgentHookCall(
                HookEventName.NOTIFICATION,
                {"notification_type": "permission_prompt", "message": "Run it?"},
            ),
        ),
        (
            {"hook_event_name": "PreCompress", "trigger": "manual"},
            AgentHookCall(HookEventName.PRE_COMPRESS, {"trigger": "manual"}),
        ),
        # Told before each request to the model, whether it is compacted or not.
        ({"hook_event_name": "PreCompress", "trigger": "auto"}, None),
    ],
)
def test_turns_and_notices_are_read(
    gate: HookCodec, event: dict[str, Any], call: AgentHookCall | None
) -> None:
    assert gate.read(event) == call


def test_what_nothing_is_said_of_goes_on(gate: HookCodec) -> None:
    assert answered(gate, BEFORE, Aggregated(decision=Decision.ALLOW, reason="fine")) == {}
    assert answered(gate, AFTER, Aggregated()) == {}


def test_a_refusal_and_a_stop(gate: HookCodec) -> None:
    denied = Aggregated(decision=Decision.DENY, reason="no")
    assert answered(gate, BEFORE, denied) == {"decision": "deny", "reason": "no"}
    stopped = answered(gate, BEFORE, Aggregated(stop=True, stop_reason="enough"))
    assert stopped["decision"] == "deny"
    assert (stopped["continue"], stopped["stopReason"]) == (False, "enough")


def test_the_person_is_asked_and_told_why(gate: HookCodec) -> None:
    said = answered(gate, BEFORE, Aggregated(decision=Decision.ASK, reason="sure?"))
    assert said == {"decision": "ask", "reason": "sure?", "systemMessage": "sure?"}


def test_a_changed_input_is_whole(gate: HookCodec) -> None:
    said = answered(gate, BEFORE, Aggregated(input={"command": "ls -l"}))
    assert said["hookSpecificOutput"]["tool_input"] == {**INPUT, "command": "ls -l"}


def test_context_reaches_the_model_with_the_result_of_that_call(gate: HookCodec) -> None:
    result = Aggregated(context="before", input={"command": "ls -l"})
    assert "additionalContext" not in str(answered(gate, BEFORE, result))
    # It has no id: what tells it is its tool and its input, as it was changed.
    assert answered(gate, AFTER, Aggregated()) == {}
    changed = {**AFTER, "tool_input": {**INPUT, "command": "ls -l"}}
    said = answered(gate, changed, Aggregated(context="after"))
    assert said["hookSpecificOutput"] == {
        "hookEventName": "AfterTool",
        "additionalContext": "before\nafter",
    }
    assert answered(gate, changed, Aggregated()) == {}


def test_a_result_is_kept_from_the_model(gate: HookCodec) -> None:
    denied = Aggregated(decision=Decision.DENY, reason="wrong", context="why")
    assert answered(gate, AFTER, denied) == {"decision": "deny", "reason": "wrong\nwhy"}
    replaced = Aggregated(response=["é"])
    assert answered(gate, AFTER, replaced) == {"decision": "deny", "reason": '["é"]'}
    told = Aggregated(system_message="hello", suppress_output=True)
    assert answered(gate, AFTER, told) == {"systemMessage": "hello", "suppressOutput": True}


# -- where they are put in -------------------------------------------------------------------------


@pytest.fixture
def gemini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A Gemini CLI of a known version, in a project, where all folders belong to root."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(hooks, "_insecure", lambda path: "")
    save(tmp_path, {"security": {"folderTrust": {"enabled": False}}})
    return installed(tmp_path / "program")


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
    run = Run(
        name="A",
        run_id="R",
        token="t",
        port=4321,
        folder=str(base / "run"),
        primer=False,
        hooks=events,
    )
    own = {"HOME": str(base / "home"), "PATH": os.environ["PATH"]}
    system = {"GEMINI_CLI_SYSTEM_SETTINGS_PATH": str(base / "system" / "settings.json")}
    return plan(argv, {**own, **system, **(env or {})}, run)


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
        run = Run(
            name="Bob",
            run_id="R",
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


@pytest.mark.parametrize(
    ("arguments", "env", "why"),
    [
        (["--sandbox"], {}, "sandbox"),
        ([], {"GEMINI_SANDBOX": "docker"}, "sandbox"),
        ([], {"PATH": "/nowhere"}, "bash"),
    ],
)
def test_it_is_said_where_there_are_no_hooks(
    gemini: str, tmp_path: Path, arguments: list[str], env: dict[str, str], why: str
) -> None:
    launch = start([gemini, *arguments], tmp_path, env)
    assert launch.env == {} and why in missed(launch)


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
