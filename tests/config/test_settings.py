from collections.abc import Mapping

import pytest

from relay.config.mistakes import Mistakes
from relay.config.settings import (
    Settings,
    apply_dictionaries,
    known_key,
    memory_settings,
    with_setting,
)
from relay.core.errors import ConfigError
from relay.features.memory.memory_settings import MemorySettings
from relay.features.memory.memory_spec import StoreSpec, parse_store
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
    assert Settings().memory == MemorySettings(StoreSpec(), False, True, "redact")
    configured = with_setting(Settings(), "memory", {})
    assert configured.memory == Settings().memory and configured.given == {"memory"}
    table = {"backend": "local", "autoSave": False, "promptOnEnd": True, "injectOnStart": False}
    names = {"config": {"memory": {**table, "secrets": "refuse"}}}
    settings = applied(names)
    assert settings.memory == MemorySettings(StoreSpec(), True, False, "refuse")


def test_memory_may_stand_at_the_top_as_patterns_and_hooks_do() -> None:
    names = {"memory": {"promptOnEnd": True}}
    settings = applied(names)
    assert settings.memory.prompt_on_end and settings.given == {"memory"}
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


def test_the_memory_of_the_design_document() -> None:
    table = {
        "backend": "mem0",
        "config": {
            "vectorStore": {"provider": "qdrant", "url": "http://localhost:6333"},
            "embedder": {"provider": "ollama", "model": "nomic-embed-text"},
        },
    }
    settings = memory_settings(table)
    assert settings.backend == "mem0" and settings.store == parse_store("mem0", table["config"])


def test_auto_save_asks_the_llm_that_is_configured() -> None:
    llm = {"provider": "ollama", "model": "m"}
    settings = memory_settings({"autoSave": True, "config": {"llm": llm}})
    assert settings.auto_save and settings.llm == llm and settings.store == StoreSpec()


def test_what_is_shown_of_it_holds_no_secret() -> None:
    config = {"vectorStore": {"url": "http://u:hidden@q", "apiKey": "hidden"}}
    config["llm"] = {"provider": "openai", "model": "m", "apiKey": "hidden"}
    shown = memory_settings({"backend": "mem0", "config": config}).shown()
    assert "hidden" not in str(shown) and shown["llm"]


def test_a_searcher_is_made_by_its_file() -> None:
    settings = memory_settings({"searcher": dict})
    assert settings.searcher is dict
    assert settings.of_file("/c.py", "s").store == StoreSpec("searcher", {}, "/c.py", "s")
    assert MemorySettings().of_file("/c.py", "s").store == StoreSpec()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("local", "must be a dictionary"),
        ({"backend": "locl"}, "no backend 'locl'"),
        ({"backnd": "local"}, "unknown key 'backnd'"),
        ({"promptOnEnd": "yes"}, "prompt_on_end must be True or False"),
        ({"autoSave": True}, "auto_save needs an LLM"),
        ({"secrets": "hide"}, "secrets are not 'hide'"),
        ({"config": {"url": "x"}}, "takes no 'url'"),
    ],
)
def test_what_memory_cannot_be(value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        memory_settings(value)


def test_automations_and_their_model_are_checked() -> None:
    settings = applied({"config": {"automations": {"agents": False}, "llm": {"command": "claude"}}})
    assert settings.automations == {"agents": False, "workers": 4}
    assert settings.llm is not None and settings.llm["command"] == ["claude"]
    for value, why in (
        ({"workers": 0}, "workers must be 1 or more, not 0"),
        ({"agents": "no"}, "agents must be True or False"),
        ({"worker": 1}, "unknown key 'worker' in automations"),
        (True, "must be a dictionary"),
    ):
        with pytest.raises(ConfigError, match=why):
            with_setting(Settings(), "automations", value)


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
