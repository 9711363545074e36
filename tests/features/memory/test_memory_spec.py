"""Which store is meant: what is accepted, in which spelling, and what is told of a mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from relay.core.errors import ConfigError, UsageError
from relay.features.memory import spec as providers
from relay.features.memory.settings import memory_settings
from relay.features.memory.spec import StoreSpec, parse_llm, parse_store

#: As the design document writes it.
DESIGN = {
    "vectorStore": {"provider": "qdrant", "url": "http://localhost:6333"},
    "embedder": {"provider": "ollama", "model": "nomic-embed-text"},
}


def refused(backend: object, config: object) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_store(backend, config)
    return caught.value


def test_a_configuration_as_mem0_writes_it_is_the_same() -> None:
    as_mem0 = {
        "version": "v1.1",
        "vector_store": {
            "provider": "qdrant",
            "config": {
                "url": "http://q:6333/",
                "collection_name": "team",
                "embedding_model_dims": 768,
            },
        },
        "embedder": {
            "provider": "ollama",
            "config": {
                "model": "nomic-embed-text",
                "ollama_base_url": "http://o:11434",
                "embedding_dims": 768,
            },
        },
        "llm": {"provider": "openai", "config": {"model": "m", "temperature": 0.1}},
    }
    flat = {
        "vectorStore": {"url": "http://q:6333", "collection": "team", "dims": 768},
        "embedder": {
            "provider": "ollama",
            "model": "nomic-embed-text",
            "url": "http://o:11434",
            "dims": 768,
        },
    }
    assert parse_store("mem0", as_mem0) == parse_store("mem0", flat)
    assert parse_llm(as_mem0) == {"provider": "openai", "model": "m", "temperature": 0.1}


def test_the_server_of_qdrant_may_stand_beside_the_embedder() -> None:
    short = parse_store("qdrant", {"url": "http://q:6333", "apiKeyEnv": "Q", "collection": "c"})
    long = parse_store(
        "qdrant", {"vectorStore": {"url": "http://q:6333", "apiKeyEnv": "Q", "collectionName": "c"}}
    )
    assert short == long


def test_a_host_and_a_port_are_a_url() -> None:
    for section, url in (
        ({"host": "q"}, "http://q:6333"),
        ({"host": "q", "port": 7, "https": True}, "https://q:7"),
    ):
        assert parse_store("qdrant", section) == parse_store("qdrant", {"url": url})


@pytest.mark.parametrize(
    ("backend", "config", "words"),
    [
        ("mem", {}, "did you mean 'mem0'"),
        (7, {}, "no backend 7"),
        ("local", {"vectorStore": {}}, "needs the backend 'mem0'"),
        ("local", {"embeder": {}}, "did you mean 'embedder'"),
        ("mem0", [], "must be a dictionary"),
        ("mem0", {"vectorStore": {"port": 6333}}, "into the url"),
        ("mem0", {"vectorStore": "qdrant"}, "must be a dictionary"),
        ("mem0", {"vectorStore": {"urll": "http://q"}}, "did you mean 'url'"),
        ("mem0", {"vectorStore": {"url": "localhost:6333"}}, "must begin with http"),
        ("mem0", {"vectorStore": {"path": "data"}}, "not an absolute"),
        ("mem0", {"vectorStore": {"path": "/d", "url": "http://q"}}, "a server and a path"),
        ("mem0", {"vectorStore": {"port": "6333"}}, "port must lie"),
        ("mem0", {"embedder": {"provider": "ollma", "model": "m"}}, "did you mean 'ollama'"),
        ("mem0", {"embedder": {"provider": "none"}}, "needs vectors"),
        ("mem0", {"embedder": {"provider": "ollama", "modle": "m"}}, "did you mean 'model'"),
        ("mem0", {"embedder": {"provider": "openai"}}, "needs the name of a model"),
        ("mem0", {"embedder": {"dims": 0}}, "dims must lie"),
        ("mem0", {"embedder": {"apiKey": "k", "apiKeyEnv": "K"}}, "'api_key' and 'api_key_env'"),
        ("mem0", {"embedder": {"apiKey": "k", "api_key": "k"}}, "'api_key' twice"),
        ("mem0", {"historyDbPath": "/h"}, "no use for mem0's"),
        ("mem0", {"telemetry": True}, "no use for mem0's"),
        ("mem0", {"embedder": {"provider": "gemini", "x": object()}}, "of the type object"),
        ("mem0", {"vectorStore": {"provider": "chroma"}}, "no memories in 'chroma'"),
        ("qdrant", {"url": "http://q", "vectorStore": {"port": 1}}, "'url' beside vector_store"),
        ("qdrant", {"embedder": {"provider": "gemini"}}, "an embedder of mem0's"),
        ("custom", {"object": object}, "register a searcher"),
    ],
)
def test_a_mistake_is_told_with_what_to_do(backend: object, config: object, words: str) -> None:
    error = refused(backend, config)
    assert words in f"{error.message} {error.hint}"


def test_what_stands_for_the_name_of_a_variable_is_not_repeated() -> None:
    error = refused("qdrant", {"url": "http://q", "apiKeyEnv": "s3cr3t value"})
    assert "s3cr3t" not in error.message + error.hint


def test_what_is_nested_for_ever_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(20):
        deep = {"a": deep}
    assert "nested too deeply" in refused("mem0", {"vectorStore": deep}).message


def test_an_openai_compatible_server_embeds_for_every_backend() -> None:
    section = {"provider": "lmstudio", "model": "m", "url": "http://127.0.0.1:1234/v1"}
    for backend in ("local", "qdrant", "mem0"):
        assert parse_store(backend, {"embedder": section}).config["embedder"] == section
    assert providers.own_embedder(section)
    assert not providers.own_embedder({"provider": "lmstudio"})


def test_secrets_come_from_the_environment_and_are_never_shown() -> None:
    spec = parse_store("qdrant", {"url": "http://q", "apiKeyEnv": "Q_KEY"})
    resolved = spec.resolved({"Q_KEY": " hidden \n"})
    store = resolved.config["vector_store"]
    assert isinstance(store, dict) and store["api_key"] == "hidden" and "api_key_env" not in store
    assert "hidden" not in json.dumps(resolved.masked())
    with pytest.raises(ConfigError, match="variable Q_KEY is not set"):
        spec.resolved({"Q_KEY": ""})


def test_secrets_within_lists_are_found_too() -> None:
    section = {"provider": "gemini", "nodes": [{"host": "a", "password_env": "P"}]}
    spec = parse_store("mem0", {"embedder": section}).resolved({"P": "hidden"})
    assert spec.config["embedder"] == {
        "provider": "gemini",
        "nodes": [{"host": "a", "password": "hidden"}],
    }
    assert "hidden" not in json.dumps(spec.masked())


def test_passwords_in_addresses_and_lists_are_never_shown() -> None:
    section = {
        "provider": "gemini",
        "uri": "mongodb://me:pw1@h/d",
        "hosts": ["http://a:pw2@h"],
        "aws_secret_access_key": "pw3",
        "headers": {"Authorization": "pw4", "X-Key": "plain"},
    }
    spec = parse_store("mem0", {"embedder": section})
    shown = json.dumps(spec.masked())
    assert [word for word in ("pw1", "pw2", "pw3", "pw4") if word in shown] == []
    assert "mongodb://" in shown
    assert spec.config["embedder"]["headers"] == section["headers"]  # type: ignore[index]


def test_the_same_store_has_the_same_key() -> None:
    spec = parse_store("qdrant", {"url": "http://q", "apiKeyEnv": "K"})
    one, other = spec.resolved({"K": "1"}), spec.resolved({"K": "2"})
    assert spec.key() == one.key() == other.key()
    assert one.fingerprint() != other.fingerprint()
    embedded = parse_store(
        "qdrant", {"url": "http://q", "embedder": {"provider": "ollama", "model": "m"}}
    )
    assert embedded.key() == spec.key() and embedded.fingerprint() != spec.fingerprint()
    searcher = StoreSpec("searcher", {}, "/c.py", "1")
    assert searcher.key() == StoreSpec("searcher", {}, "/c.py", "2").key()
    assert searcher.fingerprint() != StoreSpec("searcher", {}, "/c.py", "2").fingerprint()


def test_a_title_says_where_and_nothing_secret() -> None:
    titles = {
        parse_store(backend, config).title
        for backend, config in (
            ("qdrant", {"url": "http://me:hidden@q:6333"}),
            ("qdrant", {"host": "q", "port": 6334}),
            ("qdrant", {"path": "/data"}),
            ("mem0", {}),
            ("local", {}),
        )
    }
    assert titles == {
        "qdrant at http://…@q:6333",
        "qdrant at http://q:6334",
        "qdrant in /data",
        "mem0 on qdrant within RELAY_HOME",
        "local",
    }
    assert StoreSpec("searcher", {}, "/c.py", "s").title == "the searcher of /c.py"


@pytest.mark.parametrize(
    "spec",
    [
        StoreSpec(),
        parse_store("mem0", DESIGN),
        parse_store("qdrant", {"url": "http://q", "apiKeyEnv": "K"}).resolved({"K": "v"}),
        parse_store("local", {"embedder": {"provider": "openai", "model": "m"}}),
        parse_store("mem0", {"embedder": {"provider": "gemini", "dims": 768}}),
        StoreSpec("searcher", {}, "/c.py", "abc"),
    ],
)
def test_a_spec_survives_json(spec: StoreSpec) -> None:
    assert StoreSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    "value",
    [
        [],
        "mem0",
        {"backend": "x"},
        {"config": 1},
        {"file": 1},
        {"other": 1},
        {"backend": ["mem0"]},
        {"backend": "searcher"},
        {"backend": "custom", "file": "/c.py", "sha256": "s"},
        {"backend": "searcher", "file": "/c.py", "sha256": "s", "config": {"object": 1}},
    ],
)
def test_a_request_that_names_no_store_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        StoreSpec.from_json(value)


def test_an_llm_is_checked_too() -> None:
    assert parse_llm(None) is None and parse_llm({"llm": None}) is None
    ollama = {"provider": "ollama", "model": "m", "url": "http://127.0.0.1:11434"}
    assert parse_llm({"llm": ollama}) == ollama
    own = {"provider": "ours", "model": "m", "url": "http://127.0.0.1:9"}
    assert parse_llm({"llm": own}) == own
    for section, words in (
        ({"provider": "olama", "model": "m"}, "did you mean 'ollama'"),
        ({"model": "m"}, "has no provider"),
        ({"provider": "ollama"}, "name of a model"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse_llm({"llm": section})
        assert words in f"{caught.value.message} {caught.value.hint}"


def test_nothing_large_is_imported_for_it() -> None:
    code = "import sys, relay.features.memory.spec; print('\\n'.join(sys.modules))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(told.stdout.split())
    assert not loaded & {"numpy", "mem0", "qdrant_client", "sqlite3", "asyncio"}
    ours = {name for name in loaded if name.startswith("relay.features.memory.")}
    assert ours == {"relay.features.memory.spec"}


def test_what_is_shown_of_it_holds_no_secret() -> None:
    config = {"vectorStore": {"url": "http://u:hidden@q", "apiKey": "hidden"}}
    config["llm"] = {"provider": "openai", "model": "m", "apiKey": "hidden"}
    shown = memory_settings({"backend": "mem0", "config": config}).shown()
    assert "hidden" not in str(shown) and shown["llm"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("local", "must be a dictionary"),
        ({"backend": "locl"}, "no backend 'locl'"),
        ({"backnd": "local"}, "unknown key 'backnd'"),
        ({"promptOnEnd": "yes"}, "prompt_on_end must be True or False"),
        ({"autoSave": True}, "auto_save needs an LLM"),
        ({"secrets": "hide"}, 'secrets must be "redact", "refuse" or "keep"'),
        ({"config": {"url": "x"}}, "takes no 'url'"),
    ],
)
def test_what_memory_cannot_be(value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        memory_settings(value)
