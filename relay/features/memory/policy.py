"""Keeps secrets out of what is remembered. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from relay.core.errors import UsageError
from relay.directive import redact


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
