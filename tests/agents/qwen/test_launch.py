"""How Qwen Code is started, and how relay's hooks are put into it for one run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relay.agents.known_agents import ungated
from relay.agents.launch import Launch, plan
from relay.hooks.events import TOOL_CALL
from tests.agents import installs
from tests.agents.installs import install, run_of


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that says it is a Qwen Code of the version that all of this is for."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    return Path(install(tmp_path, "qwen"))


def planned(argv: list[str], base: Path, *, primer: bool = False) -> Launch:
    run = run_of("Alice", token="t", port=None, folder=str(base / "run"), primer=primer)
    return plan(argv, {"HOME": str(base / "home"), "PATH": ""}, run)


def test_the_two_files_lie_in_the_runs_folder(installed: Path, tmp_path: Path) -> None:
    launch = planned([str(installed), "-c"], tmp_path)
    events, given = tmp_path / "run" / "events.jsonl", tmp_path / "run" / "input.jsonl"
    files = ["--json-file", str(events), "--input-file", str(given)]
    assert launch.argv == [str(installed), *files, "-c"]
    assert (launch.profile, launch.env) == ("qwen", {})
    assert launch.data == {"events": True, "input": True}
    assert not events.exists()
    assert given.read_bytes() == b""
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert given.stat().st_mode & 0o777 == 0o600


def test_the_primer_follows_what_the_person_has_the_model_told(
    installed: Path, tmp_path: Path
) -> None:
    told = planned([str(installed)], tmp_path, primer=True).argv
    assert told[5] == "--append-system-prompt"
    assert "Your name here is Alice" in told[6]
    name = "--append-system-prompt"
    for own in ([name, "Mine."], [f"{name}=Mine."], ["--appendSystemPrompt", "Mine."]):
        argv = planned([str(installed), *own, "-c"], tmp_path, primer=True).argv
        assert sum("ppend" in word for word in argv) == 1
        [text] = [word for word in argv if "Mine." in word]
        assert text.index("Mine.") < text.index("Your name here is Alice")
        assert argv[-1] == "-c"


@pytest.mark.parametrize(
    ("own", "missing", "data"),
    [
        (["--json-file", "x"], "relay reads its screen", {"events": False, "input": True}),
        (["--jsonFile=x"], "relay reads its screen", {"events": False, "input": True}),
        (["--json-fd=3"], "relay reads its screen", {"events": False, "input": True}),
        (["--input-file", "x"], "messages are typed", {"events": True, "input": False}),
    ],
)
def test_the_persons_own_files_stay(
    installed: Path, tmp_path: Path, own: list[str], missing: str, data: dict[str, bool]
) -> None:
    launch = planned([str(installed), *own], tmp_path)
    assert launch.argv[-len(own) :] == own
    assert missing in str(launch.data.pop("degraded"))
    assert launch.data == data


@pytest.mark.parametrize("where", ["home/.qwen", "project/.qwen"])
def test_files_named_in_settings_stay_too(installed: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / where).mkdir(parents=True)
    settings = '{ // mine\n "dualOutput": {"jsonFile": "/srv/demo/mine.jsonl"} }'
    (tmp_path / where / "settings.json").write_text(settings)
    launch = planned([str(installed)], tmp_path)
    assert "--json-file" not in launch.argv
    assert "--input-file" in launch.argv
    assert "relay reads its screen" in str(launch.data["degraded"])


@pytest.fixture
def qwen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program that looks like Qwen Code of a version that is known, in a folder of its own."""
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return install(tmp_path, "qwen")


def start(
    argv: list[str],
    base: Path,
    env: dict[str, str] | None = None,
    hooks: tuple[str, ...] = ("BeforeTool", "AfterTool"),
    port: int | None = 4321,
) -> Launch:
    return installs.start(base, argv, env, hooks=hooks, port=port)


def put_in(launch: Launch) -> dict[str, Any]:
    file = Path(launch.env["QWEN_CODE_SYSTEM_DEFAULTS_PATH"])
    assert file.stat().st_mode & 0o777 == 0o600
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def missed(launch: Launch) -> str:
    """Why nothing is put in."""
    assert not launch.env
    [note] = ungated("qwen", launch.data, TOOL_CALL)
    return note


def test_hooks_go_into_the_lowest_settings(qwen: str, tmp_path: Path) -> None:
    launch = start([qwen], tmp_path)
    assert launch.data["gates"] == ["BeforeTool", "AfterTool"]
    assert ungated("qwen", launch.data, TOOL_CALL) == []
    hooks = put_in(launch)["hooks"]
    assert set(hooks) == {"PreToolUse", "PostToolUse", "PostToolUseFailure", "UserPromptSubmit"}
    [[hook]] = [group["hooks"] for group in hooks["PreToolUse"]]
    # In seconds: 1000 and more would be milliseconds.
    assert (hook["type"], hook["timeout"]) == ("command", 600)
    assert '"permissionDecision": "deny"' in hook["command"]
    assert not (tmp_path / "home").exists()


def test_what_the_machine_has_there_stays(qwen: str, tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    theirs = {"ui": {"theme": "x"}, "hooks": {"PreToolUse": [{"hooks": []}], "Stop": []}}
    text = "// a comment\n" + json.dumps(theirs)
    (tmp_path / "system" / "system-defaults.json").write_text(text)
    found = put_in(start([qwen], tmp_path))
    assert found["ui"] == {"theme": "x"} and "$version" not in found
    assert found["hooks"]["PreToolUse"][0] == {"hooks": []}
    assert len(found["hooks"]["PreToolUse"]) == 2 and found["hooks"]["Stop"] == []
    (tmp_path / "mine.json").write_text('{"ui": {"theme": "y"}}')
    named = {"QWEN_CODE_SYSTEM_DEFAULTS_PATH": str(tmp_path / "mine.json")}
    assert put_in(start([qwen], tmp_path, named))["ui"] == {"theme": "y"}


def test_hooks_that_the_person_has_turned_off_stay_off(qwen: str, tmp_path: Path) -> None:
    own = tmp_path / "home" / ".qwen" / "settings.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"disableAllHooks": true}')
    assert str(own) in missed(start([qwen], tmp_path))
    project = Path(".qwen/settings.json")
    project.parent.mkdir()
    project.write_text('{"disableAllHooks": false}')  # a later layer decides
    assert "gates" in start([qwen], tmp_path).data


def test_it_is_said_where_they_cannot_be_put_in(qwen: str, tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    defaults = tmp_path / "system" / "system-defaults.json"
    defaults.write_text("{broken")
    assert str(defaults) in missed(start([qwen], tmp_path))
    defaults.write_text('{"hooks": []}')
    assert "gates" in start([qwen], tmp_path).data  # empty, whatever its form
    defaults.write_text('{"hooks": "none"}')
    assert "no hooks could be put in" in missed(start([qwen], tmp_path))


def test_a_folder_that_cannot_be_made_is_said(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    launch = planned([str(installed)], tmp_path)
    assert launch.argv == [str(installed)]
    assert "cannot be made" in str(launch.data["degraded"])
