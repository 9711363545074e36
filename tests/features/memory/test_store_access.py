"""From what the configuration says to the backend and the embedder that are meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import ConfigError
from relay.core.paths import Home
from relay.features.memory.records import Place, Scope, Tier
from relay.features.memory.spec import parse_store
from relay.features.memory.store_access import StoreAccess, make_embedder
from tests.features.memory.embedding.server import Answer, Asked, EmbeddingServer

USER = Place(Scope.USER)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path / "home"))


def embedder(home: Home, section: dict[str, Any], backend: str = "local") -> Any:
    return make_embedder(parse_store(backend, {"embedder": section}).config, home)


def test_a_model_that_is_asked_for_must_be_there(home: Home) -> None:
    with pytest.raises(ConfigError) as caught:
        embedder(home, {"provider": "minilm"})
    assert caught.value.hint == "relay memory setup"


def test_a_model_that_is_set_up_is_taken(models: Path, isolated_home: Path) -> None:
    found = make_embedder({}, Home(str(isolated_home)))
    assert found is not None and found.name == "all-MiniLM-L6-v2"
    found.close()


def test_each_server_is_asked_in_its_way(home: Home) -> None:
    def reply(asked: Asked) -> Answer:
        vectors = [[1.0, 0.0, 0.0] for _ in asked.body["input"]]
        data = [{"index": n, "embedding": one} for n, one in enumerate(vectors)]
        return Answer({"embeddings": vectors, "data": data})

    with EmbeddingServer(reply) as server:
        for section, path, name in (
            ({"provider": "ollama"}, "/api/embed", "ollama:nomic-embed-text"),
            ({"provider": "openai", "model": "m"}, "/v1/embeddings", "openai:m"),
            ({"provider": "lmstudio", "model": "m"}, "/v1/embeddings", "openai:m"),
        ):
            found = embedder(home, {**section, "url": server.url, "apiKey": "k", "dims": 3})
            assert found.embed(["x"]).shape == (1, 3)
            assert (found.name, found.dims) == (name, 3)
            assert server.asked[-1].path == path
            assert server.asked[-1].headers["authorization"] == "Bearer k"


def test_the_local_store_searches_with_it(home: Home) -> None:
    """Two texts without a word in common, whose vectors are the same."""

    def reply(asked: Asked) -> Answer:
        return Answer({"embeddings": [[1.0, 0.5] for _ in asked.body["input"]]})

    with EmbeddingServer(reply) as server:
        section = {"provider": "ollama", "model": "m", "url": server.url}
        store = StoreAccess(parse_store("local", {"embedder": section}), home).opened()
        store.save("it listens on 6379", USER, agent=None, session=None, now_ms=0)
        [hit] = store.search("which port?", [USER], 1, now_ms=1)
        assert hit.tier is Tier.HYBRID and store.stats().embedder == "ollama:m"
        store.close()
