"""Which language model relay asks: ``llm``, and ``llm`` of ``memory.config``, checked. Pure.

What memories are made of an agent's last words with is the second; the first is ctx.llm of
automations, and may be a program that answers once (``claude -p``) instead of a server.

Three kinds of servers: OpenAI's ``/v1/chat/completions``, which most others have too, ollama's
``/api/chat`` and Anthropic's ``/v1/messages``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from relay.core.errors import ConfigError
from relay.core.suggest import did_you_mean
from relay.features.memory import memory_providers
from relay.features.memory.memory_spec import resolve
from relay.features.personas.personas import HEADLESS, parse_persona

#: A key in an address would be kept and shown with it.
_KEY_IN_QUERY = re.compile(r"(?:key|token|secret|password|sig(?:nature)?)=", re.IGNORECASE)


class LLMApi(StrEnum):
    """How a server is asked."""

    OPENAI = "openai"
    OLLAMA = "ollama"
    ANTHROPIC = "anthropic"


#: Of a server that the setting ``llm`` names.
_KEYS = ("provider", "model", "url", "api_key_env")
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


def parse_llm(value: object) -> dict[str, Any]:
    """The setting ``llm``, flat and checked, as ``resolved`` or a persona takes it: it has a
    ``command`` or a ``provider``, and no secret. Raises ConfigError."""
    if isinstance(value, Mapping) and "command" in value:
        if value.get("mode", HEADLESS) != HEADLESS:
            raise ConfigError("llm: a program that is asked is headless", hint="leave out mode")
        return parse_persona("llm", {**value, "mode": HEADLESS}, where="llm").to_json()
    found = memory_providers.llm(memory_providers.plain(value, "llm"), "llm")
    for key in found:
        if key not in _KEYS:
            raise ConfigError(f"unknown key {key!r} in llm", hint=f"known: {', '.join(_KEYS)}")
    from_config(found)
    return found


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
    url, key = _text(config, "url"), _text(config, "api_key").strip()
    known = PROVIDERS.get(name)
    if known is None and not url:
        raise ConfigError(
            f"there is no llm provider {name!r}",
            hint=did_you_mean(name, list(PROVIDERS)) or "give the url of an OpenAI-compatible one",
        )
    if not model:
        raise ConfigError("the llm has no model", hint='write {"model": "NAME"}')
    # h11 would put the header it refuses into its error.
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("the llm's key holds characters that no header may have")
    api = known.api if known else LLMApi.OPENAI
    return LLM(api, _address(api, url or (known.url if known else "")), model, key)


def _text(config: Mapping[str, object], key: str) -> str:
    value = config.get(key)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"the llm's {key} must be a string")
    return value or ""


def _address(api: LLMApi, url: str) -> str:
    """The whole address from that of the server, from what clients call the base, or the whole."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc or _KEY_IN_QUERY.search(parts.query):
        raise ConfigError(
            "the llm's url must be http://HOST[:PORT] or https://…",
            hint="a key is not part of it: give api_key_env",
        )
    wanted, path = _PATHS[api], parts.path.rstrip("/")
    if api is LLMApi.OPENAI:
        # The base may have any path (…/openai/v1, …/v1beta/openai).
        last = "/chat/completions"
        path = path.removesuffix(last) + last if path else wanted
    else:
        for cut in (wanted, wanted.rpartition("/")[0]):
            path = path.removesuffix(cut)
        path += wanted
    return parts._replace(path=path, fragment="").geturl()
