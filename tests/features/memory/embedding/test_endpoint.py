"""Vectors from a server: right ones are scaled, wrong ones refused, and none can hang it."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relay.config.llm import LLM, LLMApi, on_server
from relay.core.errors import ConfigError
from relay.features.memory.embedding import Embedder, EmbedderUnavailable, endpoint
from relay.features.memory.embedding.endpoint import (
    BATCH_MAX,
    PATHS,
    EndpointEmbedder,
)
from tests.features.memory.embedding.server import Answer, Asked, EmbeddingServer

Reply = Callable[[Asked], Answer]
BOTH = pytest.mark.parametrize("api", list(PATHS))


def vector(text: str) -> list[float]:
    """Not of length 1, and another for another length of text."""
    return [3.0, 4.0 * len(text), 0.5]


def wrapped(api: LLMApi, vectors: list[Any]) -> dict[str, Any]:
    """The vectors as this kind of server gives them; OpenAI's may come in any order."""
    if api is LLMApi.OLLAMA:
        return {"embeddings": vectors}
    data = [{"index": number, "embedding": one} for number, one in enumerate(vectors)]
    return {"data": data[::-1]}


def right(api: LLMApi) -> Reply:
    return lambda asked: Answer(wrapped(api, [vector(text) for text in asked.body["input"]]))


def always(body: object, status: int = 200, hang: int | None = None) -> Reply:
    return lambda _: Answer(body, status, hang)


def at(server: EmbeddingServer, api: LLMApi = LLMApi.OLLAMA, **more: Any) -> EndpointEmbedder:
    return EndpointEmbedder(model(api, server.url, key=more.pop("key", "")), **more)


def model(api: LLMApi, url: str, name: str = "m", key: str = "") -> LLM:
    return on_server(api, url, PATHS[api], name, key)


def refusal(reply: Reply, api: LLMApi = LLMApi.OLLAMA, **options: Any) -> EmbedderUnavailable:
    with EmbeddingServer(reply) as server:
        embedder = at(server, api, **options)
        with pytest.raises(EmbedderUnavailable) as raised:
            embedder.embed(["a", "bb"])
    return raised.value


@BOTH
def test_rows_are_scaled_and_in_the_order_of_the_texts(api: LLMApi) -> None:
    texts = ["a", "bb", "c" * 50]
    with EmbeddingServer(right(api)) as server:
        embedder: Embedder = at(server, api)
        assert embedder.dims == 0
        rows = embedder.embed(texts)
    assert rows.dtype == np.float32
    assert (rows.shape, rows.flags.c_contiguous) == ((3, 3), True)
    for text, row in zip(texts, rows, strict=True):
        length = math.hypot(*vector(text))
        assert np.allclose(row, [number / length for number in vector(text)])
    assert (embedder.name, embedder.dims) == (f"{api.value}:m", 3)
    embedder.close()


def test_the_requests_are_those_of_the_two_apis() -> None:
    with EmbeddingServer(right(LLMApi.OLLAMA)) as server:
        EndpointEmbedder(model(LLMApi.OLLAMA, server.url, "nomic-embed-text")).embed(["a"])
    (asked,) = server.asked
    assert asked.path == "/api/embed"
    assert asked.body == {"model": "nomic-embed-text", "input": ["a"]}
    assert "authorization" not in asked.headers
    with EmbeddingServer(right(LLMApi.OPENAI)) as server:
        at(server, LLMApi.OPENAI, key=" sesame\n").embed(["a"])
    (asked,) = server.asked
    assert asked.path == "/v1/embeddings"
    assert asked.body == {"model": "m", "input": ["a"], "encoding_format": "float"}
    assert asked.headers["authorization"] == "Bearer sesame"


@pytest.mark.parametrize(
    ("api", "given", "path"),
    [
        (LLMApi.OLLAMA, "/", "/api/embed"),
        (LLMApi.OLLAMA, "/api/", "/api/embed"),
        (LLMApi.OLLAMA, "/api/embed", "/api/embed"),
        (LLMApi.OPENAI, "/v1", "/v1/embeddings"),
        (LLMApi.OPENAI, "/deep/v1/", "/deep/v1/embeddings"),
        (LLMApi.OPENAI, "/v1/embeddings?version=2", "/v1/embeddings?version=2"),
    ],
)
def test_an_address_may_be_the_server_or_the_whole(api: LLMApi, given: str, path: str) -> None:
    with EmbeddingServer(right(api)) as server:
        EndpointEmbedder(model(api, server.url + given)).embed(["a"])
    assert server.asked[0].path == path


def test_many_texts_are_asked_in_batches_and_long_ones_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "CHARS_MAX", 100)
    texts = ["x" * (number + 1) for number in range(BATCH_MAX * 2 + 1)]
    with EmbeddingServer(right(LLMApi.OLLAMA)) as server:
        embedder = at(server)
        rows = embedder.embed(texts)
        assert embedder.embed([]).shape == (0, 3)
    assert [len(asked.body["input"]) for asked in server.asked] == [BATCH_MAX, BATCH_MAX, 1]
    assert server.asked[2].body["input"] == ["x" * 100]
    assert len(rows) == len(texts)


def test_a_text_that_is_too_long_for_the_model_is_cut_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "CHARS_MAX", 100)

    def picky(asked: Asked) -> Answer:
        if len(asked.body["input"][0]) > 30:
            return Answer({"error": "the input length exceeds the context length"}, 400)
        return right(LLMApi.OLLAMA)(asked)

    with EmbeddingServer(picky) as server:
        embedder = at(server)
        assert len(embedder.embed(["y" * 200])) == 1
    assert [len(asked.body["input"][0]) for asked in server.asked] == [100, 25]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"<html>", "holds no vectors"),
        (b"\xff\xfe", "holds no vectors"),
        (b"[" * 100_000, "holds no vectors"),
        ({}, "holds no vectors"),
        (None, "holds no vectors"),
        ({"embeddings": None}, "holds no vectors"),
        ({"embeddings": []}, "0 vectors of 2 texts"),
        ({"embeddings": [[1.0]]}, "1 vectors of 2 texts"),
        ({"embeddings": [[1.0], [1.0, 2.0]]}, "of different lengths"),
        ({"embeddings": [[1.0], ["a"]]}, "not numbers"),
        ({"embeddings": [[1.0], [10**400]]}, "not numbers"),
        ({"embeddings": [[1.0], [{}]]}, "not numbers"),
        ({"embeddings": [1.0, 2.0]}, "not lists of numbers"),
        ({"embeddings": [[], []]}, "not lists of numbers"),
        ({"embeddings": [[1.0], [0.0]]}, "zero, or not finite"),
        ({"embeddings": [[1.0], [None]]}, "zero, or not finite"),
        ({"embeddings": [[1.0], [math.nan]]}, "zero, or not finite"),
        ({"embeddings": [[1.0], [math.inf]]}, "zero, or not finite"),
        ({"embeddings": [[1.0], [1e308 * 1.5]]}, "zero, or not finite"),
    ],
)
def test_an_answer_without_usable_vectors_is_refused(body: object, reason: str) -> None:
    assert reason in refusal(always(body)).message


@pytest.mark.parametrize(
    "data",
    [
        [{"embedding": [1.0]}, {"embedding": [2.0]}],
        [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [2.0]}],
        [{"index": 1, "embedding": [1.0]}, {"index": 2, "embedding": [2.0]}],
        "data",
    ],
)
def test_vectors_that_cannot_be_told_apart_are_refused(data: object) -> None:
    error = refusal(always({"data": data}), LLMApi.OPENAI)
    assert "vectors" in error.message and "openai" in error.hint


def test_vectors_of_another_length_than_before_are_refused() -> None:
    lengths = iter([3, 5])
    with EmbeddingServer(lambda _: Answer({"embeddings": [[1.0] * next(lengths)]})) as server:
        embedder = at(server)
        embedder.embed(["a"])
        with pytest.raises(EmbedderUnavailable, match="5 numbers, not 3") as raised:
            embedder.embed(["a"])
    assert (raised.value.code, embedder.dims) == ("embedder_dims", 3)


def test_vectors_of_another_length_than_configured_are_refused() -> None:
    error = refusal(right(LLMApi.OLLAMA), dims=768)
    assert "3 numbers, not 768" in error.message and "dims" in error.hint


def test_a_huge_answer_is_not_read_to_its_end() -> None:
    error = refusal(always(b"[" + b"1" * 3_000_000), dims=384)
    assert "more than" in error.message


@pytest.mark.parametrize("hang", [0, 10])
def test_a_server_that_stops_in_the_middle_is_left_at_the_deadline(hang: int) -> None:
    error = refusal(always({"embeddings": [[1.0], [2.0]]}, hang=hang), timeout=0.2)
    assert "0.2 s" in error.message


@pytest.mark.parametrize(
    ("status", "body", "said", "hint"),
    [
        (404, {"error": "model 'm' not found"}, "404: model 'm' not found", "ollama pull m"),
        (401, {"error": {"message": "no key"}}, "401: no key", "api_key_env"),
        (301, b"", "301", "does not follow"),
        (500, b"\x00", "500", "found by their words"),
        (503, {"error": "x" * 5000}, "xxx…", "found by their words"),
        (429, {"error": ["two", "\x1b[31mlines\n"]}, "429", "found by their words"),
        (400, {"error": "no"}, "400: no", "found by their words"),
    ],
)
def test_a_refusal_says_what_to_do(status: int, body: object, said: str, hint: str) -> None:
    error = refusal(always(body, status))
    assert said in error.message and hint in error.hint
    assert len(error.message) < 400 and error.message.isprintable()


def test_a_key_is_never_repeated() -> None:
    key = "correct-horse-battery"
    error = refusal(always({"error": f"wrong key {key}"}, 401), LLMApi.OPENAI, key=key)
    assert key not in error.message and "check its key" in error.hint


def test_after_a_failure_the_server_rests_and_is_asked_again() -> None:
    now, down = [100.0], [True]

    def reply(asked: Asked) -> Answer:
        return Answer({}, 503) if down[0] else right(LLMApi.OLLAMA)(asked)

    with EmbeddingServer(reply) as server:
        embedder = EndpointEmbedder(model(LLMApi.OLLAMA, server.url), clock=lambda: now[0])
        for _ in range(3):
            with pytest.raises(EmbedderUnavailable, match="503"):
                embedder.embed(["a"])
        assert len(server.asked) == 1
        down[0] = False
        now[0] += 14.9
        with pytest.raises(EmbedderUnavailable, match="asked again in 1 s"):
            embedder.embed(["a"])
        now[0] += 0.2
        assert len(embedder.embed(["a"])) == 1
        assert len(embedder.embed(["a"])) == 1
    assert len(server.asked) == 3


def test_a_server_that_is_away_is_named() -> None:
    with socket.socket() as bound:  # bound and not listening: nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        embedder = EndpointEmbedder(model(LLMApi.OLLAMA, f"http://127.0.0.1:{port}"))
        with pytest.raises(EmbedderUnavailable, match=f"127.0.0.1:{port}") as raised:
            embedder.embed(["a"])
    assert "running?" in raised.value.hint


@pytest.mark.parametrize(
    ("url", "name", "key"),
    [
        ("", "m", ""),
        ("localhost:11434", "m", ""),
        ("ftp://host", "m", ""),
        ("http://", "m", ""),
        ("http://host:x", "m", ""),
        ("http://[::1", "m", ""),
        ("https://me:sesame@host", "m", ""),
        ("http://host", "", ""),
        ("http://host", "m", "schlüssel"),
        ("http://host", "m", "se\nsame"),
    ],
)
def test_what_cannot_be_an_endpoint_is_refused_at_once(url: str, name: str, key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        model(LLMApi.OLLAMA, url, name, key)
    assert "same" not in f"{raised.value} {raised.value.hint}"
