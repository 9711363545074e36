"""``relay hooks list|test|fire|log``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from relay.cli import hooks_verbs
from relay.config.trust import CONFIG_NAME, read_config, trust
from relay.core.errors import ConfigError, UsageError
from relay.core.paths import Home
from relay.hooks.events import HookEventName
from relay.hooks.hook_log import aggregated_record
from relay.hooks.hook_types import Aggregated
from relay.protocol.agent_ops import ANSWER, HOOKS_RAN
from tests.broker.support import register
from tests.broker.test_session_requests import record
from tests.cli.fixtures import Run
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

async def deploy(target, message, ctx):
    ctx.send("Bob", message)
    return f"deploying {target}"

patterns = {"deploy:staging": deploy, "deploy": lambda: 5}
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
    head, crash, guard, _ = capsys.readouterr().out.splitlines()
    assert head.split() == ["EVENT", "HOOK", "KIND", "MATCHER", "PRIORITY", "ON", "FAILURE", "FILE"]
    assert guard.split()[1:] == ["guard", "function", "Bash", "5", "block", CONFIG_NAME]


def test_the_handlers_of_a_pattern_can_be_tried(
    hooks: Hooks, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hooks("hooks", "test", "@deploy:staging", "v1") == 1
    first, inject, second, error, asked = capsys.readouterr().out.splitlines()
    assert first.startswith("@deploy\\:staging deploy [relay.config.py]: ok")
    assert inject == "inject: deploying staging"
    assert asked == 'asked: {"send": "v1", "to": "Bob"}'
    assert ": failed" in second and error.startswith("  error: returned 5 (int); a handler returns")
    with pytest.raises(UsageError, match="nothing handles @deply:staging") as caught:
        hooks("hooks", "test", "@deply:staging")
    assert "'@deploy:staging'" in caught.value.hint


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
        (("idle", "--input", "{"), "not JSON"),
        (("idle", "--input", "[1]"), "not a JSON object"),
        (("on_tool_call",), "is two events"),
        (("before_tool",), "has no tool_name"),
        (("before_tool", "--input", '{"tool_name": "Bash", "tool_input": "ls"}'), "not an object"),
        (("output",), "has no output"),
    ):
        with pytest.raises(UsageError, match=what):
            hooks("hooks", "test", *words)
    Path(CONFIG_NAME).write_text(CONFIG + "\n# changed\n")
    with pytest.raises((UsageError, ConfigError), match="has changed since you trusted"):
        hooks("hooks", "list")


def test_what_an_event_usually_is_about_need_not_be_said(
    hooks: Hooks, capsys: pytest.CaptureFixture[str]
) -> None:
    own = 'hooks = {"session_start": lambda source: source, "idle": lambda event: '
    own += 'str(event["idle_seconds"]), "before_tool": lambda input: {"context": str(input)}}\n'
    Path(CONFIG_NAME).write_text(own + 'config = {"idle_seconds": 7}\n')
    file = read_config(str(Path(CONFIG_NAME).absolute()))
    trust(Home.from_env(), file.path, file.sha256)
    for words in (("session_start",), ("idle",), ("before_tool", "--input", '{"tool_name": "X"}')):
        assert hooks("hooks", "test", *words) == 0
    said = capsys.readouterr().out
    assert "inject: startup" in said and "inject: 7.0" in said and "context: {}" in said


REASON = {"decision": "deny", "reason": "no rm\x1b[31m here"}
OUTPUT = {**aggregated_record(Aggregated()), **REASON, "event": "BeforeTool", "correlation_id": "C"}
WRONG = {"code": "unsupported_event", "message": "unknown event 'x'", "hint": "y?", "status": 2}
CRASH = {"code": "internal_error", "message": "it broke", "details": {"stage": "planning"}}


@contextmanager
def answering(home: Home, *responses: dict[str, Any]) -> Iterator[list[Any]]:
    """A session of Ann's that gives these responses; what it is asked."""
    asked: list[Any] = []
    with register(home, "Ann") as ann, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            for one in responses:
                push = ann.next_push(30)
                assert push is not None
                asked.append((push["request"], push["timeout"]))
                ann.request(ANSWER, id=push["id"], **one)

        answered = pool.submit(answer)
        yield asked
        answered.result(30)


def test_the_hooks_of_an_agent_that_runs_are_fired_in_its_session(
    broker_home: Home, relay: Run
) -> None:
    said = {"response": OUTPUT}
    failed = {"response": {**OUTPUT, "success": False}}
    with answering(broker_home, said, said, failed) as asked:
        done = relay("hooks", "fire", "ann", "before_tool", "--input", '{"tool_name": "Bash"}')
        assert done.returncode == 0, done.stderr
        assert "decision: deny\n" in done.stdout and "no rm" in done.stdout
        assert "\x1b" not in done.stdout
        printed = relay("hooks", "fire", "Ann", "beforeTool", "--timeout", "2", "--json").stdout
        assert json.loads(printed) == OUTPUT
        assert relay("hooks", "fire", "Ann", "idle").returncode == 1
    assert all(request.pop("correlation_id") for request, _timeout in asked)
    assert asked[:2] == [
        ({"event_name": "before_tool", "input": {"tool_name": "Bash"}}, 30.0),
        ({"event_name": "beforeTool", "input": {}}, 2.0),
    ]


def test_why_nothing_was_fired_is_said(broker_home: Home, relay: Run) -> None:
    refused = ({"error": error} for error in (WRONG, CRASH, CRASH))
    with answering(broker_home, *refused):
        wrong = relay("hooks", "fire", "Ann", "x")
        assert (wrong.returncode, wrong.stdout) == (2, "")
        assert "unknown event" in wrong.stderr and "y?" in wrong.stderr
        crashed = relay("hooks", "fire", "Ann", "idle")
        assert crashed.returncode == 1 and "it broke" in crashed.stderr
        in_json = json.loads(relay("hooks", "fire", "Ann", "idle", "--json").stdout)["error"]
        assert (in_json["code"], in_json["message"]) == ("internal_error", "it broke")
        late = relay("hooks", "fire", "Ann", "idle", "--timeout", "0.1")
        assert late.returncode == 5 and "Ann did not answer within 0.1 s" in late.stderr
    unknown = relay("hooks", "fire", "An", "idle")
    assert unknown.returncode == 3 and "did you mean Ann?" in unknown.stderr
    for words in (("--timeout", "0"), ("--timeout", "nan"), ("--timeout", "121"), ("--input", "[")):
        assert relay("hooks", "fire", "Ann", "idle", *words).returncode == 2


def test_the_log_is_what_the_ledger_has_the_newest_last(broker_home: Home, relay: Run) -> None:
    assert "no hook has run" in relay("hooks", "log").stderr
    with register(broker_home, "Ann", run="r1") as ann:
        failed = record("lint", success=False, error="it crashed", event="AfterTool")
        ann.request(HOOKS_RAN, records=[record(decision="deny"), failed])
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


def test_a_dry_run_saves_nothing_and_answers_in_the_shape_of_a_save(
    hooks: Hooks, capsys: pytest.CaptureFixture[str], isolated_home: Path
) -> None:
    Path(CONFIG_NAME).write_text(
        "def end(ctx):\n"
        '    saved = ctx.memory.add("a fact", meta={"a": 1}).wait()\n'
        "    assert saved.created_ms == saved.updated_ms and saved.supersedes is None\n"
        '    return f"{saved.scope} {saved.meta} {saved.agent} {len(ctx.memory.list())}"\n'
        'hooks = {"session_start": end}\n'
    )
    file = read_config(str(Path(CONFIG_NAME).absolute()))
    trust(Home.from_env(), file.path, file.sha256)
    assert hooks("hooks", "test", "session_start") == 0
    shown = capsys.readouterr().out
    assert "inject: project {'a': 1} test 0" in shown and '"memory": "a fact"' in shown
    assert not (isolated_home / "memory").exists()


def test_every_event_that_people_read_has_one_spelling(
    hooks: Hooks, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ""
    for words in (("list",), ("test", "before_tool", "--input", '{"tool_name": "None"}')):
        hooks("hooks", *words)
        printed = capsys.readouterr()
        said += printed.out + printed.err
    with pytest.raises(UsageError) as caught:
        hooks("hooks", "test", "BeforeTool")
    said += caught.value.message
    assert "on_before_tool" in said
    assert [event for event in HookEventName if event.value in said] == []
