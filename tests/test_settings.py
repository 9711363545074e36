from relay.hooks.registry import Registry
from relay.settings import Settings, apply_dictionaries, known_key, with_setting


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
