"""One question to each kind of server, and what is said of those that do not answer it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from relay.config.llm import (
    ANSWER_MAX,
    PROVIDERS,
    LLMApi,
    LLMUnavailable,
    ask,
    from_config,
    resolved,
)
from relay.core.errors import ConfigError
from tests.features.memory.embedding.server import Answer, Asked, EmbeddingServer

KEY = "sk-sesame-0123456789"
BODIES: dict[str, Any] = {
    "openai": {"choices": [{"message": {"role": "assistant", "content": "the answer"}}]},
    "ollama": {"message": {"role": "assistant", "content": "the answer"}, "done": True},
    "anthropic": {
        "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "answer"}]
    },
}


def asked(
    provider: str, reply: Callable[[Asked], Answer], timeout: float = 20, **config: Any
) -> tuple[str, Asked]:
    with EmbeddingServer(reply) as server:
        model = from_config({"provider": provider, "model": "m", "url": server.url, **config})
        said = asyncio.run(ask(model, "be short", "what?", timeout=timeout, form="json"))
    (one,) = server.asked
    return said, one


def refusal(reply: Callable[[Asked], Answer], provider: str = "openai", **more: Any) -> Any:
    with pytest.raises(LLMUnavailable) as raised:
        asked(provider, reply, **more)
    return raised.value


def always(body: object, status: int = 200, hang: int | None = None) -> Callable[[Asked], Answer]:
    return lambda _: Answer(body, status, hang)


def test_the_requests_are_those_of_the_three_apis() -> None:
    said, openai = asked("openai", always(BODIES["openai"]), api_key=KEY)
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "what?"}]
    assert (said, openai.path) == ("the answer", "/v1/chat/completions")
    assert openai.headers["authorization"] == f"Bearer {KEY}"
    assert openai.body == {"model": "m", "messages": messages, "stream": False}
    said, ollama = asked("ollama", always(BODIES["ollama"]))
    assert (said, ollama.path) == ("the answer", "/api/chat")
    assert "authorization" not in ollama.headers
    assert ollama.body["messages"] == messages
    assert ollama.body["format"] == "json"
    said, anthropic = asked("anthropic", always(BODIES["anthropic"]), api_key=KEY)
    assert (said, anthropic.path) == ("the answer", "/v1/messages")
    assert anthropic.headers["x-api-key"] == KEY and anthropic.headers["anthropic-version"]
    assert anthropic.body["system"] == "be short"
    assert anthropic.body["messages"] == messages[1:]


def test_ollama_is_told_to_read_all_of_a_long_question() -> None:
    with EmbeddingServer(always(BODIES["ollama"])) as server:
        model = from_config({"provider": "ollama", "model": "m", "url": server.url})
        asyncio.run(ask(model, "s", "x" * 30_000))
        asyncio.run(ask(model, "s", "x" * 300_000))
    contexts = [one.body["options"]["num_ctx"] for one in server.asked]
    assert contexts[0] >= 30_000 / 3 and contexts[1] == 32768


@pytest.mark.parametrize(
    ("provider", "url", "whole"),
    [
        ("openai", "http://h:1", "http://h:1/v1/chat/completions"),
        ("openai", "http://h:1/v1/", "http://h:1/v1/chat/completions"),
        ("other", "https://h/openai/v1", "https://h/openai/v1/chat/completions"),
        ("vllm", "http://h/v1/chat/completions", "http://h/v1/chat/completions"),
        ("ollama", "http://h:1/", "http://h:1/api/chat"),
        ("ollama", "http://h:1/api", "http://h:1/api/chat"),
        ("anthropic", "https://h/v1", "https://h/v1/messages"),
        ("anthropic", "https://h/proxy", "https://h/proxy/v1/messages"),
        ("gemini", "", f"{PROVIDERS['gemini'].url}/chat/completions"),
        ("groq", "", "https://api.groq.com/openai/v1/chat/completions"),
        ("ollama", "", "http://127.0.0.1:11434/api/chat"),
    ],
)
def test_an_address_may_be_the_server_the_base_or_the_whole(
    provider: str, url: str, whole: str
) -> None:
    model = from_config({"provider": provider, "model": "m", "url": url})
    assert model.url == whole
    # What is kept for later is the same model.
    assert from_config(model.public()) == model


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"provider": "opanai", "model": "m"}, "no llm provider 'opanai'"),
        ({"provider": "openai"}, "no model"),
        ({"provider": "openai", "model": "m", "url": "ftp://h"}, "must be http"),
        ({"provider": "openai", "model": "m", "url": "http://u:p@h"}, "must be http"),
        ({"provider": "openai", "model": "m", "url": "http://h/v1?key=x"}, "must be http"),
        ({"provider": "openai", "model": 3}, "model must be a string"),
        ({"provider": "openai", "model": "m", "api_key": "a\nb"}, "no header"),
    ],
)
def test_what_is_no_model_is_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        from_config(config)


def test_the_key_is_the_variables_that_is_named_or_the_providers_own() -> None:
    openai = {"provider": "openai", "model": "m"}
    environ = {"OPENAI_API_KEY": "own", "MINE": " mine\n"}
    assert resolved({**openai, "api_key_env": "MINE"}, environ).key == "mine"
    assert resolved(openai, environ).key == "own"
    assert resolved(openai, {}).key == ""
    assert resolved({**openai, "url": "http://127.0.0.1:1"}, environ).key == ""
    with pytest.raises(ConfigError, match="variable ABSENT is not set"):
        resolved({**openai, "api_key_env": "ABSENT"}, environ)


def test_the_key_is_in_nothing_that_is_shown_or_kept() -> None:
    model = from_config({"provider": "openai", "model": "m", "api_key": KEY})
    assert KEY not in repr(model) and KEY not in str(model.public())
    echo = always({"error": {"message": f"no such key: {KEY}"}}, 401)
    error = refusal(echo, api_key=KEY)
    assert "answered 401: no such key: ****" in error.message and KEY not in error.message
    assert "api_key_env" in error.hint


@pytest.mark.parametrize(
    ("status", "passing"),
    [(500, True), (503, True), (429, True), (408, True), (400, False), (401, False), (404, False)],
)
def test_some_refusals_pass(status: int, passing: bool) -> None:
    assert refusal(always({"error": "no"}, status)).passing is passing


@pytest.mark.parametrize("provider", ["openai", "ollama", "anthropic"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        [],
        {"choices": []},
        {"choices": [{"message": {"content": None}}]},
        b"[" * 9999,
    ],
)
def test_an_answer_without_a_text_is_said_to_be_one(provider: str, body: object) -> None:
    assert "holds no text" in refusal(always(body), provider).message


def test_a_huge_answer_is_not_read_to_its_end() -> None:
    error = refusal(always(b" " * (ANSWER_MAX + 1)))
    assert f"more than {ANSWER_MAX} bytes" in error.message


@pytest.mark.parametrize("hang", [0, 20])
def test_a_server_that_hangs_is_left_at_the_deadline(hang: int) -> None:
    error = refusal(always(BODIES["openai"], hang=hang), timeout=0.2)
    assert "did not answer within 0.2 s" in error.message and error.passing


def test_a_server_that_is_away_is_named() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        model = from_config({"provider": "vllm", "model": "m", "url": url})
        with pytest.raises(LLMUnavailable, match="cannot be reached") as raised:
            asyncio.run(ask(model, "s", "u"))
    assert url.removeprefix("http://") in raised.value.hint
    assert model.api is LLMApi.OPENAI
