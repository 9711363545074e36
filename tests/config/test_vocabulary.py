"""Which lines an agent is told that it can write."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.config import outline
from relay.config.trust import trust
from relay.config.vocabulary import examples, vocabulary
from relay.core.paths import Home

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


def told(home: Home, cwd: str, explicit: str | None = None) -> tuple[str, ...]:
    return vocabulary(home, cwd, explicit).namespaces


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "relay.config.py"
    path.write_text(CONFIG)
    return path


def test_a_trusted_configuration_is_told_of(
    isolated_home: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(str(isolated_home))
    cwd = str(config.parent)
    assert told(home, cwd) == ("relay", "memory")
    trust(home, str(config))
    expected = ("relay", "memory", "deploy:staging", "who")
    assert told(home, cwd) == expected

    def never(*_: object) -> None:
        raise AssertionError("what was found is kept")

    monkeypatch.setattr(outline, "outline", never)
    assert told(home, cwd) == expected
    config.write_text(CONFIG + "\n")
    assert told(home, cwd) == ("relay", "memory")


def test_what_cannot_be_read_is_left_out(isolated_home: Path, config: Path) -> None:
    home = Home(str(isolated_home))
    config.write_text("def broken(:")
    trust(home, str(config))
    assert told(home, str(config.parent)) == ("relay", "memory")
    assert told(home, str(config.parent), "missing.py") == ("relay", "memory")


def test_a_damaged_memory_of_it_is_made_anew(isolated_home: Path, config: Path) -> None:
    home = Home(str(isolated_home))
    trust(home, str(config))
    first = told(home, str(config.parent))
    [kept] = (isolated_home / "cache").glob("outline-*.json")
    kept.write_text("{")
    assert told(home, str(config.parent)) == first
    for damaged in ('["x", 1]', '{"patterns": [], "hooks": [1]}', '{"patterns": []}'):
        kept.write_text(damaged)
        assert told(home, str(config.parent)) == first


def test_each_namespace_has_one_example() -> None:
    assert examples(["a:*", "a:one", "a:two", "b", "b:x?"]) == ("relay", "memory", "a:one", "b")


def test_what_no_command_line_can_hold_is_left_out() -> None:
    patterns = ["de\0ploy:x", "\ud800:x", "build:a\nb", "who:me"]
    assert examples(patterns) == ("relay", "memory", "who:me")


def test_the_hooks_of_a_trusted_configuration_are_known(isolated_home: Path, config: Path) -> None:
    home, cwd = Home(str(isolated_home)), str(config.parent)
    assert vocabulary(home, cwd).hooks == ()
    trust(home, str(config))
    assert vocabulary(home, cwd).hooks == ()
    config.write_text(CONFIG + "@relay.on('before_tool')\ndef gate(): ...\n")
    assert vocabulary(home, cwd).hooks == ()
    trust(home, str(config))
    assert vocabulary(home, cwd).hooks == ("BeforeTool",)
    assert vocabulary(home, cwd).hooks == ("BeforeTool",)  # as it was kept
