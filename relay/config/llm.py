"""Which language model relay asks, checked, and how a server is asked.

The settings are ``llm`` and ``llm`` of ``memory.config``. What memories are made of an agent's last
words with is the second; the first is ctx.llm of automations, and may be a program that answers
once (``claude -p``) instead of a server.

Three kinds of servers: OpenAI's ``/v1/chat/completions``, which most others have too, ollama's
``/api/chat`` and Anthropic's ``/v1/messages``. Nothing is streamed, and no tool is offered to the
model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from relay.core.errors import ConfigError, RelayError, did_you_mean

Section = dict[str, Any]
#: Other words for a key in a section.
_WORDS = {
    "base_url": "url",
    "ollama_base_url": "url",
    "openai_base_url": "url",
    "lmstudio_base_url": "url",
}
#: What stands in these has names of its own.
_FREE = ("headers", "default_headers", "http_client_proxies", "model_kwargs", "metadata", "extra")
_DEPTH_MAX = 8
#: A key in an address would be kept and shown with it.
_KEY_IN_QUERY = re.compile(r"(?:key|token|secret|password|sig(?:nature)?)=", re.IGNORECASE)
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


class LLMApi(StrEnum):
    """How a server is asked."""

    OPENAI = "openai"
    OLLAMA = "ollama"
    ANTHROPIC = "anthropic"


_PATHS = {
    LLMApi.OPENAI: "/v1/chat/completions",
    LLMApi.OLLAMA: "/api/chat",
    LLMApi.ANTHROPIC: "/v1/messages",
}


@dataclass(frozen=True, slots=True)
class LLMProvider:
    """Where a provider is, and which variable of the environment usually has its key."""

    api: LLMApi
    url: str
    key_env: str = ""


#: By the name that is written in the configuration; any other OpenAI-compatible server by ``url``.
PROVIDERS: Mapping[str, LLMProvider] = {
    "openai": LLMProvider(LLMApi.OPENAI, "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "ollama": LLMProvider(LLMApi.OLLAMA, "http://127.0.0.1:11434"),
    "anthropic": LLMProvider(LLMApi.ANTHROPIC, "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "groq": LLMProvider(LLMApi.OPENAI, "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "deepseek": LLMProvider(LLMApi.OPENAI, "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "together": LLMProvider(LLMApi.OPENAI, "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "lmstudio": LLMProvider(LLMApi.OPENAI, "http://127.0.0.1:1234/v1"),
    "vllm": LLMProvider(LLMApi.OPENAI, "http://127.0.0.1:8000/v1"),
    "openrouter": LLMProvider(LLMApi.OPENAI, "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "gemini": LLMProvider(
        LLMApi.OPENAI,
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
    ),
}


@dataclass(frozen=True, slots=True)
class LLM:
    """A model on a server. ``url`` is the whole address; the key is in no ``repr``."""

    api: LLMApi
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
    """The model of a section ``llm``, with its key from ``environ``: where the user's is.

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
    url, key = _text(config, "url"), _text(config, "api_key")
    known = PROVIDERS.get(name)
    if known is None and not url:
        raise ConfigError(
            f"there is no llm provider {name!r}",
            hint=did_you_mean(name, list(PROVIDERS)) or "give the url of an OpenAI-compatible one",
        )
    api = known.api if known else LLMApi.OPENAI
    return on_server(api, url or (known.url if known else ""), _PATHS[api], model, key)


def on_server(api: LLMApi, url: str, path: str, model: str, key: str) -> LLM:
    """The model of this name; ``path``: where its server answers. Raises ConfigError."""
    key = key.strip()
    if not model:
        raise ConfigError("the llm has no model", hint='write {"model": "NAME"}')
    # h11 would put the header it refuses into its error.
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("the key of a model's server holds characters that no header may have")
    return LLM(api, _address(url, path), model, key)


def _text(config: Mapping[str, object], key: str) -> str:
    value = config.get(key)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"the llm's {key} must be a string")
    return value or ""


def _address(url: str, wanted: str) -> str:
    """The whole address from that of the server, from what clients call the base, or the whole."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or _KEY_IN_QUERY.search(parts.query):
        raise ConfigError(
            "the url of a model's server must be http://HOST[:PORT] or https://…",
            hint="a key is not part of it: give api_key_env",
        )
    path = parts.path.rstrip("/")
    if wanted == _PATHS[LLMApi.OPENAI]:
        # The base may have any path (…/openai/v1, …/v1beta/openai).
        last = "/chat/completions"
        path = path.removesuffix(last) + last if path else wanted
    else:
        for cut in (wanted, wanted.rpartition("/")[0]):
            path = path.removesuffix(cut)
        path += wanted
    return parts._replace(path=path, fragment="").geturl()


# -- sections as people write them


def plain(value: object, where: str, depth: int = 0) -> Any:
    """``value`` as plain JSON whose keys are in snake case. Raises ConfigError, naming the key."""
    if depth > _DEPTH_MAX:
        raise ConfigError(f"{where} is nested too deeply")
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [plain(item, where, depth + 1) for item in value]
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where} is of the type {type(value).__name__}",
            hint="give a text, a number, True, or a dict",
        )
    free = where.rpartition(".")[2] in _FREE
    found: Section = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise ConfigError(f"{where}: the key {key!r} is not text")
        name = key if free else snake(key)
        if name in found:
            raise ConfigError(f"{where} has {name!r} twice", hint=f"leave out {key!r}")
        found[name] = plain(item, f"{where}.{name}", depth + 1)
    return found


def snake(key: str) -> str:
    """``vectorStore`` as ``vector_store``; what is not a name stays as it is."""
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]*", key):
        return key
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()


def llm_section(value: object, where: str) -> Section:
    """The section of an LLM, flat; who uses it says which of them it can ask."""
    found = section(value, where, _WORDS)
    if "provider" not in found:
        raise ConfigError(
            f"{where} has no provider", hint='write {"provider": "ollama", "model": "…"}'
        )
    if not found.get("url") or not isinstance(found["provider"], str):
        what = f"{where}: without a url relay knows no LLM of"
        check_known(found["provider"], tuple(PROVIDERS), what)
    check_url(found, where)
    if not isinstance(found.get("model"), str) or not found["model"]:
        raise ConfigError(f"{where} needs the name of a model")
    return found


def section(value: object, where: str, words: Mapping[str, str]) -> Section:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where} must be a dictionary, not {value!r}", hint='write {"provider": "…"}'
        )
    given = dict(value)
    nested = given.pop("config", None)
    found: Section = {}
    for part in (given, nested or {}):
        if not isinstance(part, Mapping):
            raise ConfigError(f"{where}.config must be a dictionary, not {part!r}")
        for key, item in part.items():
            name = words.get(key, key)
            if name in found:
                raise ConfigError(f"{where} has {name!r} twice", hint=f"leave out {key!r}")
            found[name] = item
    _no_doubles(found, where)
    return found


def _no_doubles(found: Section, where: str) -> None:
    for key, name in found.items():
        if not key.endswith("_env"):
            continue
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            # What stands here may be the secret itself: it is not repeated.
            raise ConfigError(
                f"{where}: {key} is not the name of an environment variable",
                hint=f"write the variable's name, or the value itself as {key[:-4]!r}",
            )
        if key[:-4] in found:
            raise ConfigError(f"{where} has {key[:-4]!r} and {key!r}", hint="leave one out")


def check_known(word: object, known: tuple[str, ...], what: str) -> None:
    if word not in known:
        raise ConfigError(f"{what} {word!r}", hint=did_you_mean(str(word)[:80], known))


def check_url(found: Section, where: str) -> None:
    url = found.get("url")
    if url is None:
        return
    if not isinstance(url, str) or not re.match(r"https?://[^/\s]", url):
        raise ConfigError(f"{where}: the url must begin with http:// or https://")
    found["url"] = url.rstrip("/")


def resolve(section: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, Any]:
    """Plain JSON in which every ``…_env`` key has become what the variable holds.

    Raises ConfigError that names the variable when it is not set.
    """
    found: dict[str, Any] = {}
    for key, value in section.items():
        if key.endswith("_env") and isinstance(value, str):
            held = environ.get(value, "").strip()
            if not held:
                raise ConfigError(
                    f"memory: the environment variable {value} is not set",
                    hint=f"set it where relay is started: it holds the {key[:-4]} of the store",
                    details={"variable": value},
                )
            found[key[:-4]] = held
        else:
            found[key] = _resolved(value, environ)
    return found


def _resolved(value: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_resolved(item, environ) for item in value]
    return resolve(value, environ) if isinstance(value, Mapping) else value


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
    from relay.core.http import RequestFailed, request  # asyncio: only reading settings needs none

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
    why, hint = refusal(llm, status, body)
    return _unavailable(llm, why, hint, passing=status >= 500 or status in _PASSING)


def refusal(llm: LLM, status: int, body: bytes) -> tuple[str, str]:
    """What a server answered instead of what it was asked for, and what to do; "" for nothing."""
    from relay.directive.redact import server_words  # many patterns: only here

    said = server_words(body, llm.key)
    hint = ""
    if status in (401, 403):
        hint = "check its key: api_key_env names the environment variable that has it"
    elif status == 404 and llm.api is LLMApi.OLLAMA:
        hint = f"does it have the model? ollama pull {llm.model}"
    elif status == 404:
        hint = f"check the model's name ({llm.model}) and the address ({llm.url})"
    elif 300 <= status < 400:
        hint = "give the address that it points to; relay does not follow it"
    return f"it answered {status}{f': {said}' if said else ''}", hint


def _unavailable(llm: LLM, why: str, hint: str, *, passing: bool = True) -> LLMUnavailable:
    return LLMUnavailable(f"the model {llm.model} at {llm.host}: {why}", hint=hint, passing=passing)
