"""The setting ``memory``: what it may be, and what is shown of it."""

import pytest

from relay.core.errors import ConfigError
from relay.features.memory.settings import MemorySettings, memory_settings
from relay.features.memory.spec import StoreSpec, parse_store


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
