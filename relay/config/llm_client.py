"""Asks a language model on a server, over HTTP. Nothing is streamed, no tool is offered to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from relay.config.llm_settings import LLM, LLMApi
from relay.core.errors import RelayError
from relay.core.http import RequestFailed, request
from relay.directive.redact import server_words

#: Seconds for one question and its answer; bytes of the answer's body.
DEADLINE = 60.0
ANSWER_MAX = 256 * 1024
#: Tokens of an answer, where the server wants a bound.
_TOKENS_MAX = 8192
#: Refusals that may pass: too busy, too many, took too long.
_PASSING = (408, 409, 425, 429)
_ANTHROPIC_VERSION = "2023-06-01"
#: ollama forgets the beginning of what does not fit its context, which is small unless told.
_CONTEXT_MIN, _CONTEXT_MAX = 4096, 32768
_CHARS_A_TOKEN = 3


class LLMUnavailable(RelayError):
    """The model did not answer. ``passing``: it may answer when it is asked again."""

    code = "llm_unavailable"

    def __init__(self, message: str, *, hint: str = "", passing: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.passing = passing


async def ask(
    llm: LLM, system: str, user: str, *, timeout: float = DEADLINE, form: object = None
) -> str:
    """The model's answer to the prompts ``system`` and ``user``. ``form``: what an ollama holds it
    to, "json" or a schema.

    Raises LLMUnavailable. The deadline is for all but the look-up of the host's name.
    """
    body = _BODIES[llm.api](llm.model, system, user)
    if form is not None and llm.api is LLMApi.OLLAMA:
        body["format"] = form
    asked = json.dumps(body).encode()
    try:
        answer = await request(
            "POST", llm.url, _headers(llm), asked, timeout=timeout, body_max=ANSWER_MAX
        )
    except RequestFailed as failed:
        hint = f"is the server at {llm.host} running?"
        raise _unavailable(llm, failed.message, hint) from failed
    if answer.status != 200:
        raise _refused(llm, answer.status, answer.body)
    try:
        text = _TEXTS[llm.api](json.loads(answer.body))
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise _unavailable(llm, "its answer holds no text", f"is {llm.url} the right address?")
    return text


def _headers(llm: LLM) -> list[tuple[str, str]]:
    if llm.api is LLMApi.ANTHROPIC:
        version = ("anthropic-version", _ANTHROPIC_VERSION)
        return [version, ("x-api-key", llm.key)] if llm.key else [version]
    return [("authorization", f"Bearer {llm.key}")] if llm.key else []


def _openai(model: str, system: str, user: str) -> dict[str, object]:
    # No temperature and no bound of tokens: some models refuse the one, some the other.
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": model, "messages": messages, "stream": False}


def _ollama(model: str, system: str, user: str) -> dict[str, object]:
    wanted = (len(system) + len(user)) // _CHARS_A_TOKEN + _CONTEXT_MIN // 2
    context = min(max(wanted, _CONTEXT_MIN), _CONTEXT_MAX)
    options = {"temperature": 0, "num_ctx": context}
    return {**_openai(model, system, user), "options": options}


def _anthropic(model: str, system: str, user: str) -> dict[str, object]:
    messages = [{"role": "user", "content": user}]
    return {"model": model, "max_tokens": _TOKENS_MAX, "system": system, "messages": messages}


def _of_anthropic(told: Any) -> str:
    return "".join(part["text"] for part in told["content"] if part["type"] == "text")


_BODIES: Mapping[LLMApi, Callable[[str, str, str], dict[str, object]]] = {
    LLMApi.OPENAI: _openai,
    LLMApi.OLLAMA: _ollama,
    LLMApi.ANTHROPIC: _anthropic,
}
_TEXTS: Mapping[LLMApi, Callable[[Any], object]] = {
    LLMApi.OPENAI: lambda told: told["choices"][0]["message"]["content"],
    LLMApi.OLLAMA: lambda told: told["message"]["content"],
    LLMApi.ANTHROPIC: _of_anthropic,
}


def _refused(llm: LLM, status: int, body: bytes) -> LLMUnavailable:
    said = server_words(body, llm.key)
    hint = ""
    if status in (401, 403):
        hint = "check the key: api_key_env of llm names the environment variable that has it"
    elif status == 404 and llm.api is LLMApi.OLLAMA:
        hint = f"does it have the model? ollama pull {llm.model}"
    elif status == 404:
        hint = f"check the model's name ({llm.model}) and the address ({llm.url})"
    elif 300 <= status < 400:
        hint = "give the address that it points to; relay does not follow it"
    passing = status >= 500 or status in _PASSING
    why = f"it answered {status}{f': {said}' if said else ''}"
    return _unavailable(llm, why, hint, passing=passing)


def _unavailable(llm: LLM, why: str, hint: str, *, passing: bool = True) -> LLMUnavailable:
    return LLMUnavailable(f"the model {llm.model} at {llm.host}: {why}", hint=hint, passing=passing)
