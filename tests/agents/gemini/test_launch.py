"""How Gemini CLI is started, how hooks are put into it, and which session file is its own."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from relay.agents.gemini import launch as hooks
from relay.agents.gemini.adapter import spelled
from relay.agents.gemini.source import Claims, SessionFiles
from relay.agents.hook_install import write_teller
from relay.agents.known_agents import ungated, untold
from relay.agents.launch import Launch, plan
from relay.hooks.events import TOOL_CALL, HookEventName
from tests.agents.installs import documented_hooks, install, run_of
from tests.agents.installs import start as planned


def make(
    argv: list[str], base: Path, *, env: dict[str, str] | None = None, primer: bool = False
) -> Launch:
    folder = str(base / "run" / "R")
    run = run_of("Alice", token="t", port=1, folder=folder, primer=primer)
    return plan(argv, {"HOME": str(base / "home"), **(env or {})}, run)


def test_a_new_conversation_gets_an_id_of_its_own(tmp_path: Path) -> None:
    gemini = install(tmp_path, "gemini")
    launch = make([gemini, "-m", "flash", "hello"], tmp_path)
    id_ = launch.data["session"]
    assert isinstance(id_, str) and str(uuid.UUID(id_, version=4)) == id_
    assert launch.argv == [gemini, "--session-id", id_, "-m", "flash", "hello"]
    assert (launch.profile, launch.env, launch.data["heard"]) == ("gemini", {}, True)
    assert make([gemini], tmp_path).data["session"] != id_


UUID = "7c0af7f8-8a85-43de-b88f-3c9c0e06732e"


@pytest.mark.parametrize(
    ("rest", "session"),
    [
        (["--session-id", "mine"], "mine"),
        (["--session-id=mine"], "mine"),
        (["--sessionId", "mine"], "mine"),
        (["--sessionFile=x.json"], None),
        (["--resume", UUID], UUID),
        (["-r", UUID, "go on"], UUID),
        (["-yr", "latest"], None),
        (["--resume"], None),
        (["-r", "--yolo"], None),
        (["--session-file", "x.json"], None),
    ],
)
def test_what_the_person_says_of_the_conversation_stays(
    tmp_path: Path, rest: list[str], session: str | None
) -> None:
    gemini = install(tmp_path, "gemini")
    launch = make([gemini, *rest], tmp_path)
    assert launch.argv == [gemini, *rest]
    assert (launch.data["session"], launch.profile) == (session, "gemini")


def test_the_model_is_told_by_a_file_of_the_run(tmp_path: Path) -> None:
    settings = tmp_path / "home" / ".gemini" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        '{"context": {"fileName": ["AGENTS.md", "GEMINI.md"]}, // mine\n'
        ' "security": {"folderTrust": {"enabled": false}}}'
    )
    launch = make([install(tmp_path, "gemini")], tmp_path, primer=True)
    assert launch.argv[1] == "--include-directories"
    folder = Path(launch.argv[2])
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["AGENTS.md", "GEMINI.md"]
    assert len({path.stat().st_ino for path in folder.iterdir()}) == 1  # so it is read once
    text = (folder / "GEMINI.md").read_text()
    # In a code block an @ is no file to put in.
    assert (
        text.startswith("```\n") and text.endswith("\n```\n") and "Your name here is Alice" in text
    )
    for argv, env in ((["-s"], {}), ([], {"GEMINI_SANDBOX": "docker"})):
        boxed = make([launch.argv[0], *argv], tmp_path, env=env, primer=True)
        assert "--include-directories" not in boxed.argv


@pytest.mark.parametrize(
    ("settings", "rules", "project", "told"),
    [
        (None, {}, None, False),
        ('{"security": {"folderTrust": {"enabled": false}}}', {}, None, True),
        ('{// "security": {"folderTrust": {"enabled": false}}\n}', {}, None, False),
        ('{"security": {"folderTrust": {"enabled": false}}}', {}, "true", False),
        ("{", {}, None, False),
        (None, {"": "TRUST_FOLDER"}, None, True),
        (None, {"run/x": "TRUST_PARENT"}, None, True),
        (None, {"": "TRUST_FOLDER", "run": "DO_NOT_TRUST"}, None, False),
        (None, {"elsewhere": "TRUST_FOLDER"}, None, False),
    ],
)
def test_gemini_is_given_no_folder_that_it_would_ask_about(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: str | None,
    rules: dict[str, str],
    project: str | None,
    told: bool,
) -> None:
    (tmp_path / "project" / ".gemini").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    folder = tmp_path / "home" / ".gemini"
    folder.mkdir(parents=True)
    if settings is not None:
        (folder / "settings.json").write_text(settings)
    if project is not None:
        text = json.dumps({"security": {"folderTrust": {"enabled": project}}})
        (tmp_path / "project" / ".gemini" / "settings.json").write_text(text)
    named = {str(tmp_path / name).rstrip("/"): level for name, level in rules.items()}
    (folder / "trustedFolders.json").write_text(json.dumps(named))
    launch = make([install(tmp_path, "gemini")], tmp_path, primer=True)
    assert ("--include-directories" in launch.argv) is told
    assert ("folderTrust" in str(launch.data.get("degraded"))) is not told


def chat(
    home: Path, session: str, prompts: list[str], at: str = "2026-11-22T07:00:00.000Z"
) -> Path:
    path = (
        home
        / ".gemini"
        / "tmp"
        / "demo"
        / "chats"
        / f"session-2026-11-22T07-00-{session[:8]}.jsonl"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    records: list[object] = [{"sessionId": session, "kind": "main"}]
    records += [
        {"id": f"{number}", "timestamp": at, "type": "user", "content": [{"text": prompt}]}
        for number, prompt in enumerate(prompts)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_the_file_of_a_conversation_is_found_by_its_id(tmp_path: Path) -> None:
    files = SessionFiles({"HOME": str(tmp_path)})
    assert files.find(UUID) is None
    chat(tmp_path, UUID[:8] + "-another", [])
    assert files.find(UUID) is None
    path = chat(tmp_path, UUID, [])
    assert files.find(UUID) == str(path)
    assert SessionFiles({"GEMINI_CLI_HOME": str(tmp_path), "HOME": "/srv"}).find(UUID) == str(path)


def test_other_conversations_that_were_gone_on_with(tmp_path: Path) -> None:
    files = SessionFiles({"HOME": str(tmp_path)})
    own = chat(tmp_path, UUID, ["mine"])
    cleared = chat(tmp_path, "11111111-2222-4333-8444-555555555555", ["old", "new"])
    taken = chat(tmp_path, "22222222-2222-4333-8444-555555555555", ["of another session"])
    chat(tmp_path, "33333333-2222-4333-8444-555555555555", [])
    [found] = files.candidates(0.0, str(own), {str(taken)})
    assert (found.path, found.prompts) == (str(cleared), ("old", "new"))
    assert files.candidates(own.stat().st_mtime + 3600, str(own), set()) == []


def test_nobody_takes_the_file_of_another_that_runs(tmp_path: Path) -> None:
    one, other = (Claims(str(tmp_path / name), os.getpid()) for name in ("one", "other"))
    gone = Claims(str(tmp_path / "gone"), 2**22 + 1)
    for claims, path in ((one, "/srv/demo/1"), (other, "/srv/demo/2"), (gone, "/srv/demo/3")):
        claims.claim(path)
    other.claim("/srv/demo/cleared")
    assert one.others() == {"/srv/demo/cleared"}
    assert Claims(str(tmp_path / "none" / "of" / "it"), 1).others() == set()


def test_words_that_name_files_or_agents_are_kept_from_being_looked_up(tmp_path: Path) -> None:
    (tmp_path / "README.md").touch()
    (tmp_path / "a b").touch()
    for text, expected in (
        ("see @README.md, @README.md.", "see \\@README.md, \\@README.md."),
        ("@nothing @property a@b.c @", "@nothing @property a@b.c @"),
        ("\\@README.md and @\x00", "\\@README.md and @\x00"),
        ('read @"a b" and @a\\ b', 'read \\@"a b" and \\@a\\ b'),
        ("ask @generalist now", "ask \\@generalist now"),
    ):
        assert spelled(text, str(tmp_path)) == expected


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
    [note] = ungated("gemini", launch.data, TOOL_CALL)
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
            "Bob", token="it's", port=listener.getsockname()[1], folder=str(tmp_path / "it's")
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
    [note] = untold("gemini", launch.data, [HookEventName.AFTER_AGENT])
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
