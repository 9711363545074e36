import pytest

from relay.errors import ConfigError
from relay.hooks.registry import Registry
from relay.settings import (
    MemorySettings,
    Settings,
    apply_dictionaries,
    known_key,
    memory_settings,
    with_setting,
)


def test_a_setting_remembers_that_it_was_given() -> None:
    settings = with_setting(Settings(), "idle_seconds", 5)
    assert settings.idle_seconds == 5.0
    assert settings.given == {"idle_seconds"}
    assert with_setting(settings, "task", None).given == {"idle_seconds", "task"}


def test_camel_case_is_the_same_key() -> None:
    assert known_key("idleSeconds", ("idle_seconds",), "config") == "idle_seconds"


def test_without_dictionaries_nothing_changes() -> None:
    registry, settings = Registry(), Settings()
    assert apply_dictionaries({"x": 1}, registry, settings, source="f") is settings
    assert registry.patterns() == []


def test_memory_in_either_spelling_and_its_defaults() -> None:
    assert Settings().memory == MemorySettings("local", False, False, "redact")
    configured = with_setting(Settings(), "memory", {})
    assert configured.memory == MemorySettings("local", False, True, "redact")
    assert configured.given == {"memory"}
    table = {"backend": "local", "autoSave": False, "promptOnEnd": True, "injectOnStart": False}
    names = {"config": {"memory": {**table, "secrets": "refuse"}}}
    settings = apply_dictionaries(names, Registry(), Settings(), source="f")
    assert settings.memory == MemorySettings("local", True, False, "refuse")


def test_builtin_names_a_handler_that_is_there_anyway() -> None:
    registry = Registry()
    apply_dictionaries({"patterns": {"memory": "builtin"}}, registry, Settings(), source="f")
    assert registry.patterns() == []


@pytest.mark.parametrize("backend", ["mem0", "qdrant", "custom"])
def test_backends_that_come_later_say_so(backend: str) -> None:
    with pytest.raises(ConfigError, match="is not in this version of relay yet"):
        memory_settings({"backend": backend, "config": {"vectorStore": {}}})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("local", "must be a dictionary"),
        ({"backend": "locl"}, "no backend 'locl'"),
        ({"backnd": "local"}, "unknown key 'backnd'"),
        ({"promptOnEnd": "yes"}, "prompt_on_end must be True or False"),
        ({"autoSave": True}, "auto_save is not in this version"),
        ({"secrets": "hide"}, "secrets are not 'hide'"),
        ({"config": {"url": "x"}}, "takes no config"),
    ],
)
def test_what_memory_cannot_be(value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        memory_settings(value)
