"""Which file holds a place's memories. Pure."""

from __future__ import annotations

import hashlib
import re

from relay.memory.records import Place, Scope

SUFFIX = ".db"
_PATTERN = re.compile(r"user\.db|(?:project|agent)-(?:[a-z0-9]+-)*[0-9a-f]{16}\.db")
_ODD = re.compile(r"[^a-z0-9]+")
_SLUG_MAX = 32


def file_name(place: Place) -> str:
    """A name of letters, digits and dashes: readable, and different for every place."""
    if place.scope is Scope.USER:
        return "user" + SUFFIX
    slug = _ODD.sub("-", place.owner.rsplit("/", 1)[-1].lower())[:_SLUG_MAX].strip("-")
    digest = hashlib.sha256(place.owner.encode()).hexdigest()[:16]
    return "-".join(part for part in (place.scope.value, slug, digest) if part) + SUFFIX


def is_ours(name: str) -> bool:
    """Whether a file of this name in the folder holds memories."""
    return bool(_PATTERN.fullmatch(name))
