"""``relay hooks list|test|log``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.cli import hooks_verbs
from relay.errors import ConfigError, UsageError
from relay.paths import Home
from relay.trust import CONFIG_NAME, read_config, trust
from tests.broker.support import register
from tests.broker.test_invoking import record
from tests.cli.conftest import Run
from tests.cli.verbs import printed_json, verbs_of

CONFIG = """
def guard(tool, input, ctx):
    ctx.notify("tools", tool)
    if "rm" in input.get("command", ""):
        return {"decision": "deny", "reason": "no rm here"}
    return {"input": {"command": "echo safe"}}

def crash(ctx):
    raise ValueError("on purpose")

hooks = {
    "before_tool": [
        {"handler": guard, "matcher": "Bash", "name": "guard", "priority": 5},
        {"command": ["python3", "-c", "import json; print(json.dumps({'context': 'seen'}))"],
         "on_failure": "allow", "name": "watch"},
    ],
    "idle": {"handler": crash, "name": "crash"},
}
"""

Hooks = Callable[..., int]


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated_home: Path) -> Hooks:
    """The verbs, run in a folder with a trusted configuration."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / CONFIG_NAME).write_text(CONFIG)
    monkeypatch.chdir(folder)
    file = read_config(str(folder / CONFIG_NAME))
    trust(Home(str(isolated_home)), file.path, file.sha256)
    return verbs_of(hooks_verbs)


def test_the_list_says_what_would_run_and_in_which_order(
    hooks: Hooks, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hooks("hooks", "list", "--json") == 0
    listed = printed_json(capsys)
    assert [(one["event"], one["name"], one["kind"]) for one in listed] == [
        ("Idle", "crash", "function"),
        ("BeforeTool", "guard", "function"),
        ("BeforeTool", "watch", "command"),
    ]
    assert [one["on_failure"] for one in listed] == ["allow", "block", "allow"]
    assert hooks("hooks", "list") == 0
    assert "guard" in capsys.readouterr().out


def test_a_dry_run_shows_what_would_come_of_it_and_sends_nothing(
    hooks: Hooks, capsys: pytest.CaptureFixture[str]
) -> None:
    def fire(tool: str, command: str) -> dict[str, Any]:
        given = json.dumps({"tool_name": tool, "tool_input": {"command": command}})
        assert hooks("hooks", "test", "before_tool", "--input", given, "--json") == 0
        answer: dict[str, Any] = printed_json(capsys)
        return answer

    denied = fire("Bash", "rm -rf .")
    assert (denied["decision"], denied["reason"]) == ("deny", "no rm here")
    assert denied["asked"] == [{"notify": "Bash", "topic": "tools"}]
    changed = fire("Bash", "ls")
    assert (changed["input"], changed["context"]) == ({"command": "echo safe"}, "seen")
    assert [one["hook"] for one in fire("Read", "")["results"]] == ["watch"]


def test_a_failure_is_shown_and_is_the_status(
    hooks: Hooks, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hooks("hooks", "test", "idle") == 1
    shown = capsys.readouterr().out
    assert "crash: failed" in shown and "ValueError: on purpose" in shown
    assert hooks("hooks", "test", "session_start") == 0
    assert "no hook matches" in capsys.readouterr().err


def test_bad_input_is_explained(hooks: Hooks) -> None:
    for words, what in (
        (("before_tol",), "unknown event"),
        (("idle", "--input", "{"), "no JSON"),
        (("idle", "--input", "[1]"), "no JSON object"),
    ):
        with pytest.raises(UsageError, match=what):
            hooks("hooks", "test", *words)
    Path(CONFIG_NAME).write_text(CONFIG + "\n# changed\n")
    with pytest.raises((UsageError, ConfigError), match="not trusted"):
        hooks("hooks", "list")


def test_the_log_is_what_the_ledger_has_the_newest_last(broker_home: Home, relay: Run) -> None:
    assert "no hook has run" in relay("hooks", "log").stderr
    with register(broker_home, "Ann", run="r1") as ann:
        failed = record("lint", success=False, error="it crashed", event="AfterTool")
        ann.request("hooks_ran", records=[record(decision="deny"), failed])
    rows = json.loads(relay("hooks", "log", "--json").stdout)
    assert [(row["hook"], row["decision"], row["success"]) for row in rows] == [
        ("guard", "deny", True),
        ("lint", "", False),
    ]
    assert rows[0]["created_at"].endswith("Z")
    shown = relay("hooks", "log", "--failed").stdout
    assert "it crashed" in shown and "guard" not in shown
    assert relay("hooks", "log", "--event", "before_tool").stdout.count("guard") == 1
    assert relay("hooks", "log", "--limit", "0").returncode == 2
    assert relay("hooks", "lst").returncode == 2
