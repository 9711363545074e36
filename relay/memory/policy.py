"""Keeps secrets out of what is remembered, and out of what a server's errors repeat. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum

from relay.core.errors import UsageError
from relay.directive import redact

#: Characters of a server's own words in an error.
_WORDS_MAX = 200


class Secrets(StrEnum):
    """What is done with a secret (see relay.directive.redact) in a text or a meta value."""

    REDACT = "redact"
    REFUSE = "refuse"
    KEEP = "keep"


def clean_text(text: str, policy: Secrets) -> str:
    """``text`` as it may be stored. Raises UsageError of the code ``secret`` under REFUSE."""
    if policy is Secrets.KEEP:
        return text
    found = redact.find(text)
    if not found:
        return text
    if policy is Secrets.REDACT:
        return redact.redact(text)
    kinds = sorted({kind for _, _, kind in found})
    raise UsageError(
        f"the text holds a secret ({', '.join(kinds)}) and was not saved",
        hint="say where the secret is kept instead of what it is",
        code="secret",
        details={"kinds": kinds},
    )


def clean_meta(meta: Mapping[str, object] | None, policy: Secrets) -> dict[str, object] | None:
    """The same for every text in a JSON object, keys too."""
    if meta is None:
        return None
    return {clean_text(key, policy): _clean(value, policy) for key, value in meta.items()}


def _clean(value: object, policy: Secrets) -> object:
    if isinstance(value, str):
        return clean_text(value, policy)
    if isinstance(value, list):
        return [_clean(item, policy) for item in value]
    return clean_meta(value, policy) if isinstance(value, dict) else value


def server_words(body: bytes, key: str) -> str:
    """The server's words for what is wrong, in one short line; some repeat the key."""
    try:
        error = json.loads(body)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    if key:
        text = text.replace(key, "*" * len(key))
    # Cut first, but far behind the end: a token that is cut may not be known as one.
    text = redact.redact(text[: 10 * _WORDS_MAX])
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _WORDS_MAX else line[:_WORDS_MAX] + "…"
