"""What a trusted file registers is known before it runs again; without a manifest, everything is
possible."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.config.examine import examined
from relay.config.load import load_for_session
from relay.config.manifest import Known, every_event, examples, known, read_manifest
from relay.config.trust import CONFIG_NAME, read_config
from relay.core.paths import Home
from tests.config.trusted import trusted

CONFIG = """
from relay import Relay
relay = Relay()
@relay.pattern("deploy:prod-*")
def production(target): ...
@relay.pattern("deploy:staging")
def staging(target): ...
@relay.pattern("who")
def who(ctx): ...
@relay.pattern("relay:everybody", override=True)
def everybody(message): ...
"""
NOTHING = (Known().namespaces, Known().hooks)


@pytest.fixture
def home(isolated_home: Path) -> Home:
    return Home(str(isolated_home))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "relay.config.py"
    path.write_text(CONFIG)
    return path


def told(home: Home, config: Path, explicit: str | None = None) -> tuple[object, object]:
    found = known(home, str(config.parent), explicit)
    return found.namespaces, found.hooks


def test_patterns_and_events_of_a_trusted_file_are_known(home: Home, config: Path) -> None:
    assert told(home, config) == NOTHING
    trusted(home, config)
    namespaces = ("relay", "memory", "deploy:staging", "who")
    assert told(home, config) == (namespaces, ())
    config.write_text(CONFIG + "for event in ['before_tool', 'idle']: relay.on(event, print)\n")
    assert told(home, config) == NOTHING
    trusted(home, config)
    assert told(home, config) == (namespaces, ("Idle", "BeforeTool"))


@pytest.mark.parametrize(
    ("kinds", "hooks"),
    [("None", {"BeforeTool", "AfterTool"}), ("['tool_call']", {"BeforeTool", "AfterTool"})]
    + [("['message']", {"BeforeTool"})],
    ids=["all", "tool-calls", "messages"],
)
def test_agents_are_asked_for_tool_calls_where_a_route_function_wants_them(
    home: Home, config: Path, kinds: str, hooks: set[str]
) -> None:
    """Before each tool in any case: a turn of the agent's may have limits."""
    config.write_text(CONFIG + f"@relay.route(kinds={kinds})\ndef route(event): ...\n")
    trusted(home, config)
    assert set(known(home, str(config.parent)).hooks) == hooks


@pytest.mark.parametrize(
    "more",
    ['config = {"personas": {"atlas": "claude"}}', "@relay.route()\ndef all(event): ..."],
    ids=["personas", "routes"],
)
def test_where_turns_are_dispatched_agents_get_the_gate(
    more: str, home: Home, config: Path
) -> None:
    config.write_text(f"{CONFIG}{more}\n")
    trusted(home, config)
    assert "BeforeTool" in known(home, str(config.parent)).hooks
    found = read_manifest(home, read_config(str(config)).sha256)
    assert found is not None and bool(found.more["routes"]) != bool(found.features)


def test_hook_files_may_hold_any_event(home: Home, config: Path) -> None:
    config.write_text("config = {'hook_files': ['a.json']}\n")
    trusted(home, config)
    assert told(home, config)[1] == tuple(every_event())


EVENTS = ("BeforeTool", "Idle")
EMPTY = '{"patterns": [], "hooks": [], "events": []'


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(None, id="none"),
        pytest.param("{", id="no json"),
        pytest.param("[" * 100_000, id="too deep"),
        pytest.param('["x", 1]', id="no object"),
        pytest.param('{"patterns": [], "hooks": [1]}', id="no texts"),
        pytest.param(EMPTY + ', "features": {"memory": 1}}', id="memory no object"),
        pytest.param(EMPTY + ', "features": {"store": [1]}}', id="store no object"),
    ],
)
def test_without_a_manifest_every_event_is_possible(
    home: Home, config: Path, damage: str | None
) -> None:
    trusted(home, config)
    [kept] = (Path(home.root) / "cache").glob("manifest-*.json")
    if damage is None:
        kept.unlink()
    else:
        kept.write_text(damage)
    assert told(home, config) == (("relay", "memory"), tuple(every_event()))
    load_for_session(home, str(config.parent))  # which makes it anew
    assert told(home, config)[1] == ()


def test_an_event_that_only_a_session_registers_is_asked_for_the_next_time(
    home: Home, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = "import os\nhooks = {os.environ.get('WATCHED', 'idle'): print}\n"
    config.write_text(always)
    trusted(home, config)
    assert told(home, config)[1] == ("Idle",)
    monkeypatch.setenv("WATCHED", "before_tool")
    load_for_session(home, str(config.parent))
    assert told(home, config)[1] == EVENTS
    monkeypatch.delenv("WATCHED")
    load_for_session(home, str(config.parent))
    assert told(home, config)[1] == EVENTS


def test_a_file_that_runs_again_has_no_problem_any_more(
    home: Home, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("import os\nos.environ['NEEDED']\n")
    trusted(home, config)
    monkeypatch.setenv("NEEDED", "1")
    load_for_session(home, str(config.parent))
    manifest = read_manifest(home, read_config(str(config)).sha256)
    assert manifest is not None and manifest.problem == "" and told(home, config) == NOTHING


def test_a_file_that_cannot_run_says_why(home: Home, config: Path) -> None:
    config.write_text("import there_is_no_such_module\n")
    trusted(home, config)
    manifest = read_manifest(home, read_config(str(config)).sha256)
    assert manifest is not None and "there_is_no_such_module" in manifest.problem
    assert told(home, config)[1] == tuple(every_event())


def test_a_process_of_its_own_runs_the_file(config: Path) -> None:
    config.write_text("import os\nprint('said')\npatterns = {f'p{os.getpid()}': print}\n")
    seen = examined(read_config(str(config)))
    assert seen.mistakes == []
    [pattern] = seen.manifest.patterns
    assert pattern.startswith("p") and pattern != f"p{os.getpid()}:*"


def test_a_file_that_ends_its_process_is_a_mistake(config: Path) -> None:
    config.write_text("import os\nos._exit(0)\n")
    [mistake] = examined(read_config(str(config))).mistakes
    assert "ended the process" in mistake


def test_each_namespace_has_one_example() -> None:
    assert examples(["a:*", "a:one", "a:two", "b", "b:x?"]) == ("relay", "memory", "a:one", "b")


def test_what_no_command_line_can_hold_is_left_out() -> None:
    patterns = ["de\0ploy:x", "\ud800:x", "build:a\nb", "who:me"]
    assert examples(patterns) == ("relay", "memory", "who:me")


def test_a_projects_channels_and_stage_hooks_are_named_as_what_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    text = "from relay import Relay\nrelay = Relay()\nrelay.adapter('chat').send(print)\n"
    text += "@relay.on('after_execute_agent')\ndef measure(response): pass\n"
    for folder, said in (("project", 2), ("relay", 0)):
        config = tmp_path / folder / CONFIG_NAME
        config.parent.mkdir()
        config.write_text(text)
        seen = examined(read_config(str(config)))
        assert seen.manifest.settings["channel_adapters"] == ["chat"]
        assert len(seen.warnings) == said
        assert all("only your own configuration" in one for one in seen.warnings)


def test_what_cannot_be_found_is_not_known(home: Home, config: Path) -> None:
    assert told(home, config, "missing.py") == NOTHING
