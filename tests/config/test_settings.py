"""Settings, and the door through which features have theirs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from relay.config.load import load, manifest_of
from relay.config.manifest import of_fields
from relay.config.mistakes import Mistakes
from relay.config.settings import Settings, apply_dictionaries, keys, with_setting
from relay.config.trust import CONFIG_NAME, read_config
from relay.core.errors import ConfigError
from relay.features.memory.settings import MEMORY, MemorySettings
from relay.features.memory.spec import StoreSpec
from relay.hooks.registry import Registry
from tests.core.packages import install


def applied(
    names: Mapping[str, object], registry: Registry | None = None, settings: Settings | None = None
) -> Settings:
    """What the dictionaries say. Raises ConfigError for a mistake."""
    mistakes = Mistakes("f")
    registry, settings = registry or Registry(), settings or Settings()
    settings = apply_dictionaries(names, registry, settings, mistakes, source="f")
    mistakes.check()
    return settings


def test_a_setting_remembers_that_it_was_given() -> None:
    settings = with_setting(Settings(), "idle_seconds", 5)
    assert settings.idle_seconds == 5.0
    assert settings.given == {"idle_seconds"}
    assert with_setting(settings, "task", None).given == {"idle_seconds", "task"}


def test_memory_in_either_spelling_and_its_defaults() -> None:
    assert Settings().of(MEMORY) == MemorySettings(StoreSpec(), False, True, "redact")
    configured = with_setting(Settings(), "memory", {})
    assert configured.of(MEMORY) == Settings().of(MEMORY) and configured.given == {"memory"}
    table = {"backend": "local", "autoSave": False, "promptOnEnd": True, "injectOnStart": False}
    names = {"config": {"memory": {**table, "secrets": "refuse"}}}
    settings = applied(names)
    assert settings.of(MEMORY) == MemorySettings(StoreSpec(), True, False, "refuse")


def test_memory_may_stand_at_the_top_as_patterns_and_hooks_do() -> None:
    names = {"memory": {"promptOnEnd": True}}
    settings = applied(names)
    assert settings.of(MEMORY).prompt_on_end and settings.given == {"memory"}
    with pytest.raises(ConfigError, match="unknown key 'promptOnEnt'"):
        applied({"memory": {"promptOnEnt": 1}})
    with pytest.raises(ConfigError, match="must be a dictionary, not 'mem0'"):
        applied({"memory": "mem0"})
    with pytest.raises(ConfigError, match="memory is given twice"):
        applied({"memory": {}, "config": {"memory": {}}})


def test_what_else_is_called_memory_is_left_alone() -> None:
    others: list[object] = [
        test_what_else_is_called_memory_is_left_alone,
        pytest,
        Registry(),
        None,
        [],
    ]
    for other in others:
        settings = Settings()
        names = {"memory": other}
        assert applied(names, Registry(), settings) is settings


@pytest.mark.parametrize(
    ("names", "key"),
    [
        ({"config": {"memory": {"promptOnEnd": True, "prompt_on_end": False}}}, "prompt_on_end"),
        ({"config": {"idleSeconds": 1, "idle_seconds": 2}}, "idle_seconds"),
        ({"hooks": {"idle": {"command": "x", "onFailure": "a", "on_failure": "b"}}}, "on_failure"),
    ],
)
def test_a_key_in_two_spellings_is_a_mistake(names: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=f"'{key}' in .* are the same key|'{key}' and ") as caught:
        applied(names)
    assert caught.value.hint == "leave one out"


def test_rights_of_agents_are_checked() -> None:
    settings = applied({"may": {"Bob": "peek", "*": ["watch", "spawn"]}})
    assert settings.may == {"Bob": ["peek"], "*": ["watch", "spawn"]}
    for value, why in (
        ({"Bob": ["pek"]}, "unknown right 'pek'"),
        ({"Bob": {"peek": True}}, "must be a list of rights"),
        (["peek"], "must be a dictionary"),
    ):
        with pytest.raises(ConfigError, match=why):
            with_setting(Settings(), "may", value)


_LOUD = """
from relay.config.door import Setting
from relay.core.errors import ConfigError

def parse(value):
    if value == 13:
        raise ZeroDivisionError("a bug")
    if not isinstance(value, dict):
        raise ConfigError("loud must be a dictionary")
    return value

LOUD = Setting("loud", "how loud it is", parse, {}, at_top=True)
SETTINGS = (LOUD,)
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration's path, where a good and a broken feature are installed."""
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "loud_feature", "settings", _LOUD)
    install(tmp_path, "broken_settings", "settings", "raise OSError('no disk')\n")
    return tmp_path / CONFIG_NAME


@pytest.mark.parametrize("text", ["loud = {'volume': 11}", "config = {'loud': {'volume': 11}}"])
def test_a_feature_from_outside_has_settings(written: Path, text: str) -> None:
    written.write_text(text)
    loaded = load(read_config(str(written)))
    loud = sys.modules["loud_feature.settings"].LOUD
    assert loaded.settings.of(loud) == {"volume": 11} and loaded.settings.given == {"loud"}
    assert loaded.warnings == ()
    kept = manifest_of(loaded)
    assert kept.features == {"loud": {"volume": 11}}
    assert of_fields(kept.fields()).features == kept.features
    assert keys()["loud"] == "how loud it is" and "memory" in keys()


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("config = {'loud': 1}", "loud must be a dictionary", ""),
        ("config = {'loud': 13}", "loud could not be read: ZeroDivisionError: a bug", "doctor"),
        ("config = {'lout': {}}", "unknown key 'lout'", "broken_settings could not be loaded"),
    ],
)
def test_a_mistake_in_it_is_told_as_any_other(
    written: Path, text: str, why: str, hint: str
) -> None:
    written.write_text(text)
    with pytest.raises(ConfigError, match=why) as caught:
        load(read_config(str(written)))
    assert hint in (caught.value.hint or "")
