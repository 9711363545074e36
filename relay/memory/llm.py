"""One question to a language model on a server, and its answer.

Three kinds of servers: OpenAI's ``/v1/chat/completions``, which most others have too, ollama's
``/api/chat`` and Anthropic's ``/v1/messages``. Nothing is streamed, and no tool is offered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from relay.core.errors import ConfigError, RelayError
from relay.core.suggest import did_you_mean
from relay.directive.redact import redact
from relay.hooks import run_http
from relay.memory.spec import resolve

#: For all of one question, in seconds; bytes of an answer's body.
DEADLINE = 60.0
ANSWER_MAX = 256 * 1024
#: Tokens of an answer, where the server wants a bound.
_TOKENS_MAX = 8192
_SAID_MAX = 200  # characters of the server's own words in an error
#: Refusals that may pass: too busy, too many, took too long.
_PASSING = (408, 409, 425, 429)
#: A key in an address would be kept and shown with it.
_KEY_IN_QUERY = re.compile(r"(?:key|token|secret|password|sig(?:nature)?)=", re.IGNORECASE)
_ANTHROPIC_VERSION = "2023-06-01"
#: ollama forgets the beginning of what does not fit its context, which is small unless told.
_CONTEXT_MIN, _CONTEXT_MAX = 4096, 32768
_CHARS_A_TOKEN = 3


class Api(StrEnum):
    """How a server is asked."""

    OPENAI = "openai"
    OLLAMA = "ollama"
    ANTHROPIC = "anthropic"


_LISTS = {"type": "array", "items": {"type": "string"}}
_PATHS = {
    Api.OPENAI: "/v1/chat/completions",
    Api.OLLAMA: "/api/chat",
    Api.ANTHROPIC: "/v1/messages",
}


@dataclass(frozen=True, slots=True)
class Provider:
    """Where a provider is, and which variable of the environment usually has its key."""

    api: Api
    url: str
    key_env: str = ""


#: By the name that is written in the configuration; any other OpenAI-compatible server by ``url``.
PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider(Api.OPENAI, "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "ollama": Provider(Api.OLLAMA, "http://127.0.0.1:11434"),
    "anthropic": Provider(Api.ANTHROPIC, "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "groq": Provider(Api.OPENAI, "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "deepseek": Provider(Api.OPENAI, "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "together": Provider(Api.OPENAI, "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "lmstudio": Provider(Api.OPENAI, "http://127.0.0.1:1234/v1"),
    "vllm": Provider(Api.OPENAI, "http://127.0.0.1:8000/v1"),
    "openrouter": Provider(Api.OPENAI, "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "gemini": Provider(
        Api.OPENAI,
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
    ),
}


class LLMUnavailable(RelayError):
    """The model did not answer. ``passing``: it may when it is asked again."""

    code = "llm_unavailable"

    def __init__(self, message: str, *, hint: str = "", passing: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.passing = passing


@dataclass(frozen=True, slots=True)
class LLM:
    """A model on a server. ``url`` is the whole address; the key is in no ``repr``."""

    api: Api
    url: str
    model: str
    key: str = field(default="", repr=False)

    @property
    def host(self) -> str:
        """The server, for people."""
        return urlsplit(self.url).netloc

    def public(self) -> dict[str, str]:
        """All but the key, as ``from_config`` takes it."""
        return {"provider": self.api.value, "url": self.url, "model": self.model}


def resolved(config: Mapping[str, object], environ: Mapping[str, str]) -> LLM:
    """The model of ``config.llm``, with its key from ``environ``: where the user's is.

    ``api_key_env`` names the variable, which must be set then. Without it the provider's own is
    taken, if it is set. Raises ConfigError.
    """
    found = resolve(config, environ)
    known = PROVIDERS.get(str(found.get("provider")))
    # To another address no key goes that was not meant for it.
    if known is not None and not found.get("api_key") and not found.get("url"):
        found["api_key"] = environ.get(known.key_env, "")
    return from_config(found)


def from_config(config: Mapping[str, object]) -> LLM:
    """``{provider, model, url?, api_key?}``, the key being in it. Raises ConfigError."""
    name, model = _text(config, "provider"), _text(config, "model")
    url, key = _text(config, "url"), _text(config, "api_key").strip()
    known = PROVIDERS.get(name)
    if known is None and not url:
        raise ConfigError(
            f"memory: there is no llm provider {name!r}",
            hint=did_you_mean(name, list(PROVIDERS)) or "give the url of an OpenAI-compatible one",
        )
    if not model:
        raise ConfigError("memory: the llm has no model", hint='write {"model": "NAME"}')
    # h11 would put the header it refuses into its error.
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("memory: the llm's key holds characters that no header may have")
    api = known.api if known else Api.OPENAI
    return LLM(api, _address(api, url or (known.url if known else "")), model, key)


async def ask(llm: LLM, system: str, user: str, *, timeout: float = DEADLINE) -> str:
    """What the model says to ``user``, ``system`` being what it is told before.

    Raises LLMUnavailable. The deadline is for all but the look-up of the host's name.
    """
    answer = await run_http.post(
        llm.url,
        _headers(llm),
        json.dumps(_BODIES[llm.api](llm.model, system, user)).encode(),
        timeout=timeout,
        body_max=ANSWER_MAX,
    )
    if answer.error:
        raise _unavailable(llm, answer.error, f"is the server at {llm.host} running?")
    if answer.status != 200:
        raise _refused(llm, answer.status or 0, answer.body)
    try:
        text = _TEXTS[llm.api](json.loads(answer.body))
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise _unavailable(llm, "its answer holds no text", f"is {llm.url} the right address?")
    return text


def _text(config: Mapping[str, object], key: str) -> str:
    value = config.get(key)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"memory: the llm's {key} must be a string")
    return value or ""


def _address(api: Api, url: str) -> str:
    """The whole address from that of the server, from what clients call the base, or the whole."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or _KEY_IN_QUERY.search(parts.query):
        raise ConfigError(
            "memory: the llm's url must be http://HOST[:PORT] or https://…",
            hint="a key is not part of it: give api_key_env",
        )
    wanted, path = _PATHS[api], parts.path.rstrip("/")
    if api is Api.OPENAI:
        # The base may have any path (…/openai/v1, …/v1beta/openai).
        last = "/chat/completions"
        path = path.removesuffix(last) + last if path else wanted
    else:
        for cut in (wanted, wanted.rpartition("/")[0]):
            path = path.removesuffix(cut)
        path += wanted
    return parts._replace(path=path, fragment="").geturl()


def _headers(llm: LLM) -> list[tuple[str, str]]:
    if llm.api is Api.ANTHROPIC:
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
    return {**_openai(model, system, user), "format": _LISTS, "options": options}


def _anthropic(model: str, system: str, user: str) -> dict[str, object]:
    messages = [{"role": "user", "content": user}]
    return {"model": model, "max_tokens": _TOKENS_MAX, "system": system, "messages": messages}


def _of_anthropic(told: Any) -> str:
    return "".join(part["text"] for part in told["content"] if part["type"] == "text")


_BODIES: Mapping[Api, Callable[[str, str, str], dict[str, object]]] = {
    Api.OPENAI: _openai,
    Api.OLLAMA: _ollama,
    Api.ANTHROPIC: _anthropic,
}
_TEXTS: Mapping[Api, Callable[[Any], object]] = {
    Api.OPENAI: lambda told: told["choices"][0]["message"]["content"],
    Api.OLLAMA: lambda told: told["message"]["content"],
    Api.ANTHROPIC: _of_anthropic,
}


def _refused(llm: LLM, status: int, body: bytes) -> LLMUnavailable:
    said = _said(body, llm.key)
    hint = ""
    if status in (401, 403):
        hint = "check the key: config.llm.api_key_env names the environment variable that has it"
    elif status == 404 and llm.api is Api.OLLAMA:
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


def _said(body: bytes, key: str) -> str:
    """The server's words for what is wrong, in one short line; some repeat the key."""
    try:
        error = json.loads(body)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    if key:
        text = text.replace(key, "*" * len(key))
    # Cut first, but far behind the end: a token that is cut may not be known as one.
    text = redact(text[: 10 * _SAID_MAX])
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _SAID_MAX else line[:_SAID_MAX] + "…"
