from collections.abc import Mapping

import pytest

from relay.config.mistakes import Mistakes
from relay.config.settings import (
    Settings,
    apply_dictionaries,
    known_key,
    with_setting,
)
from relay.core.errors import ConfigError
from relay.features.memory.settings import MEMORY, MemorySettings
from relay.features.memory.spec import StoreSpec
from relay.hooks.registry import Registry


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


def test_camel_case_is_the_same_key() -> None:
    assert known_key("idleSeconds", ("idle_seconds",), "config") == "idle_seconds"


def test_without_dictionaries_nothing_changes() -> None:
    registry, settings = Registry(), Settings()
    assert applied({"x": 1}, registry, settings) is settings
    assert registry.patterns() == []


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
    others: list[object] = [test_camel_case_is_the_same_key, pytest, Registry(), None, []]
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
    with pytest.raises(ConfigError, match=f"has '{key}' twice") as caught:
        applied(names)
    assert (caught.value.hint or "").startswith("leave out")


def test_builtin_names_a_handler_that_is_there_anyway() -> None:
    registry = Registry()
    applied({"patterns": {"memory": "builtin"}}, registry)
    assert registry.patterns() == []


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
