"""Which lines an agent is told that it can write."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay import outline
from relay.paths import Home
from relay.trust import trust
from relay.vocabulary import examples, vocabulary

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
    assert vocabulary(home, cwd) == ("relay",)
    trust(home, str(config))
    expected = ("relay", "deploy:staging", "who")
    assert vocabulary(home, cwd) == expected

    def never(*_: object) -> None:
        raise AssertionError("what was found is kept")

    monkeypatch.setattr(outline, "outline", never)
    assert vocabulary(home, cwd) == expected
    config.write_text(CONFIG + "\n")
    assert vocabulary(home, cwd) == ("relay",)


def test_what_cannot_be_read_is_left_out(isolated_home: Path, config: Path) -> None:
    home = Home(str(isolated_home))
    config.write_text("def broken(:")
    trust(home, str(config))
    assert vocabulary(home, str(config.parent)) == ("relay",)
    assert vocabulary(home, str(config.parent), "missing.py") == ("relay",)


def test_a_damaged_memory_of_it_is_made_anew(isolated_home: Path, config: Path) -> None:
    home = Home(str(isolated_home))
    trust(home, str(config))
    first = vocabulary(home, str(config.parent))
    [kept] = (isolated_home / "cache").glob("patterns-*.json")
    kept.write_text("{")
    assert vocabulary(home, str(config.parent)) == first
    kept.write_text('["x", 1]')
    assert vocabulary(home, str(config.parent)) == first


def test_each_namespace_has_one_example() -> None:
    assert examples(["a:*", "a:one", "a:two", "b", "b:x?"]) == ("relay", "a:one", "b")


def test_what_no_command_line_can_hold_is_left_out() -> None:
    patterns = ["de\0ploy:x", "\ud800:x", "build:a\nb", "who:me"]
    assert examples(patterns) == ("relay", "who:me")
