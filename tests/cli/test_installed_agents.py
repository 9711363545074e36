"""What doctor says of agents that tell hooks of themselves, and of those that do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relay.cli import doctor
from relay.cli.doctor import native_hooks
from relay.core.paths import Home
from tests.cli.verbs import program
from tests.config.trusted import trusted

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


@pytest.mark.parametrize("where", ["home", "project"])
def test_settings_that_turn_hooks_off_are_named(
    where: str, isolated_home: Path, project: Path, tmp_path: Path
) -> None:
    folder = (project if where == "project" else isolated_home.parent) / ".claude"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"disableAllHooks": True}))
    texts = [text for _, text in native_hooks(Home(str(isolated_home)), str(project))]
    assert texts[0] == "on_before_tool: reached by no tool calls"
    [claude] = [text for text in texts if text.startswith("claude: ")]
    assert "disableAllHooks" in claude and "settings.json" in claude


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
