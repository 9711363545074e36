"""Hook files that a configuration names: each is trusted by itself, never by being named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relay.cli import config_verbs
from relay.config.load import LoadedConfig, load, load_for_session
from relay.config.trust import CONFIG_NAME, is_trusted, read_config, trust
from relay.core.errors import ConfigError
from relay.core.paths import Home
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Command, Dialect
from relay.hooks.planner import Planner
from tests.cli.verbs import Verb, printed_json, verbs_of


@pytest.fixture
def home(isolated_home: Path) -> Home:
    return Home(str(isolated_home))


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verb:
    """Runs a verb in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return verbs_of(config_verbs)


@pytest.fixture
def project(tmp_path: Path, home: Home) -> Path:
    """A project whose trusted configuration names a hook file beside it."""
    (tmp_path / ".git").mkdir()
    path = tmp_path / CONFIG_NAME
    path.write_text("config = {'hook_files': ['.claude/settings.json']}\n")
    trust(home, str(path))
    write(tmp_path / ".claude" / "settings.json", "check")
    return tmp_path


def write(path: Path, command: str, event: str = "PreToolUse") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    group = {"matcher": "Bash", "hooks": [{"type": "command", "command": command}]}
    path.write_text(json.dumps({"hooks": {event: [group]}}))
    return path


def planned(loaded: LoadedConfig) -> list[str]:
    payload = {"tool_name": "Bash"}
    plan = Planner(loaded.registry).plan(HookEventName.BEFORE_TOOL, payload)
    return [hook.name for hook in plan.hooks]


def test_a_trusted_file_runs_from_any_folder_of_the_project(home: Home, project: Path) -> None:
    path = project / ".claude" / "settings.json"
    trust(home, str(path))
    deep = project / "a" / "b"
    deep.mkdir(parents=True)
    loaded = load_for_session(home, str(deep))
    [hook] = loaded.registry.all_hooks()
    assert (hook.action, hook.source, hook.dialect, hook.trusted) == (
        Command(shell="check", env=(("CLAUDE_PROJECT_DIR", str(project)),), trusted_by=str(path)),
        str(path),
        Dialect.CLAUDE,
        True,
    )
    assert planned(loaded) == ["check"]
    assert (loaded.hook_problems, loaded.warnings) == ((), ())


def test_to_trust_the_configuration_is_not_to_trust_its_hook_files(
    home: Home, project: Path
) -> None:
    path = project / ".claude" / "settings.json"
    for _ in range(2):  # nor does loading it give trust
        loaded = load_for_session(home, str(project))
        assert [hook.trusted for hook in loaded.registry.all_hooks()] == [False]
        assert planned(loaded) == []
        assert f"relay trust {path}" in loaded.hook_problems[0]
    trust(home, str(path))
    write(path, "check --changed")
    loaded = load_for_session(home, str(project))
    assert (planned(loaded), len(loaded.hook_problems)) == ([], 1)


def test_of_an_untrusted_configuration_no_hook_file_is_read(home: Home, project: Path) -> None:
    trust(home, str(project / ".claude" / "settings.json"))
    config = project / CONFIG_NAME
    config.write_text(config.read_text() + "# changed\n")
    loaded = load_for_session(home, str(project))
    assert loaded.registry.all_hooks() == []
    assert loaded.untrusted == str(config)


def test_without_a_store_of_trust_nothing_is_trusted(home: Home, project: Path) -> None:
    trust(home, str(project / ".claude" / "settings.json"))
    assert planned(load(read_config(str(project / CONFIG_NAME)))) == []


def test_the_persons_own_folder_links_and_the_relay_way(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write(tmp_path / "me" / ".gemini" / "settings.json", "mine", "BeforeTool")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    (tmp_path / "link.json").symlink_to(own)
    config = tmp_path / CONFIG_NAME
    config.write_text(
        "from relay import Relay\n"
        "relay = Relay(hook_files=['~/.gemini/settings.json', 'link.json'])\n"
    )
    trust(home, str(own))
    trust(home, str(tmp_path / "link.json"))  # a link is a place of its own
    loaded = load(read_config(str(config)), home=home)
    assert loaded.hook_problems == ()
    assert [hook.source for hook in loaded.registry.all_hooks()] == [
        str(own),
        str(tmp_path / "link.json"),
    ]
    assert planned(loaded) == ["bash -c mine"]  # one program, however often it is named


@pytest.mark.parametrize("name", ["missing.json", ".", "a\\0b", "x" * 5000])
def test_a_file_that_cannot_be_read_costs_its_own_hooks_only(
    home: Home, project: Path, name: str
) -> None:
    config = project / CONFIG_NAME
    config.write_text(f"config = {{'hook_files': ['{name}', '.claude/settings.json']}}\n")
    trust(home, str(config))
    trust(home, str(project / ".claude" / "settings.json"))
    loaded = load_for_session(home, str(project))
    assert planned(loaded) == ["check"]
    [problem] = loaded.hook_problems
    assert problem.endswith("so its hooks do not run")


def test_relay_trust_pins_a_hook_file_and_shows_what_it_would_run(
    relay: Verb, home: Home, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(project / ".claude" / "settings.json", "rm -rf build\nmake \x1b[2J")
    name = ".claude/settings.json"
    assert relay("trust", "--show", name) == 0
    captured = capsys.readouterr()
    assert "runs          on_before_tool (Bash): rm -rf build ⏎ make ␛[2J\n" in captured.out
    assert "patterns" not in captured.out
    assert f"To let it run: relay trust {path}" in captured.err
    file = read_config(str(path))
    assert not is_trusted(home, str(path), file.sha256)
    assert relay("trust", name, "--json") == 0
    record = printed_json(capsys)
    assert (record["path"], record["sha256"], record["trusted"]) == (str(path), file.sha256, True)
    assert (record["hooks"], len(record["runs"])) == (["on_before_tool"], 1)
    assert planned(load_for_session(home, str(project))) != []
    assert relay("trust", "--revoke", name) == 0
    assert planned(load_for_session(home, str(project))) == []


def test_relay_trust_says_what_a_hook_file_holds_that_does_not_run(
    relay: Verb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "settings.json"
    prompt = {"type": "prompt", "prompt": "fine?"}
    entries = [{"type": "command", "command": "check"}, prompt]
    path.write_text(json.dumps({"hooks": {"Stop": [{"hooks": entries}]}}))
    assert relay("trust", "--show", str(path)) == 0
    assert '"prompt"' in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "{}", '{"hooks": {"Stop": [{"hooks": [{}]}]}}'])
def test_relay_trust_refuses_a_hook_file_without_hooks(
    relay: Verb, home: Home, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="no hook that relay could run"):
        relay("trust", str(path))
    assert not is_trusted(home, str(path), read_config(str(path)).sha256)


def test_config_show_and_check_list_untrusted_hooks_as_such(
    relay: Verb, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in ("show", "check"):
        assert relay("config", verb, "--json") == 0
        record = printed_json(capsys)
        assert record["hooks"] == ["on_before_tool (not trusted)"]
        assert "relay trust" in record["warnings"][0]
    relay("trust", ".claude/settings.json")
    capsys.readouterr()
    assert relay("config", "check", "--json") == 0
    record = printed_json(capsys)
    assert (record["hooks"], record["warnings"]) == (["on_before_tool"], [])
