"""How a memory lies in a store of vectors, and which memories there are relay's. Pure.

A payload is flat and holds texts and numbers only, which every store takes. ``data``, ``user_id``,
``created_at`` and ``updated_at`` are mem0's own names: what relay wrote can be read with mem0.
``relay_record`` is the whole memory but its text; the other fields are there to be asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from relay.core.errors import RelayError
from relay.memory.local.duplicates import near_key
from relay.memory.records import PREFIX_MIN, Memory, Place, Scope, from_json, to_json

TEXT = "data"
PLACE = "user_id"
#: Whatever lacks it is somebody else's.
OURS = "relay_version"
VERSION = "1"
ID = "relay_id"
#: The first characters of the id: by these a shortened one is found.
HEAD = "relay_head"
NEAR = "relay_near"
#: What it replaces, or "".
SUPERSEDES = "relay_supersedes"
#: Whether it replaces anything: "yes" or "no".
REPLACES = "relay_replaces"
UPDATED = "relay_updated_ms"
RECORD = "relay_record"
#: What is asked for by equality, and so wants an index on a server.
EXACT = (PLACE, OURS, ID, HEAD, NEAR, SUPERSEDES, REPLACES)
#: All that a catalogue needs.
LIGHT = (PLACE, ID, NEAR, SUPERSEDES, UPDATED)
_PREFIX = "relay:"


def place_name(place: Place) -> str:
    """``relay:user``, ``relay:project:/src/shop``, ``relay:agent:ada``; never a white space."""
    owner = quote(place.owner, safe="/@+=,~")
    return f"{_PREFIX}{place.scope.value}:{owner}".rstrip(":")


def place_of(name: object) -> Place | None:
    """The place of this name; None for a name that is not of relay's."""
    if not isinstance(name, str) or not name.startswith(_PREFIX):
        return None
    scope, _, owner = name.removeprefix(_PREFIX).partition(":")
    try:
        return Place(Scope(scope), unquote(owner, errors="strict"))
    except (ValueError, RelayError):
        return None


def head(id_: str) -> str:
    """What HEAD holds for this id, or for the beginning of one."""
    return id_[:PREFIX_MIN]


def near(text: str) -> str:
    """Equal for near duplicates: see relay.memory.local.duplicates."""
    return hashlib.sha256(near_key(text).encode()).hexdigest()[:32]


def to_payload(memory: Memory) -> dict[str, str | int]:
    """All fields of ``memory``."""
    record = {key: value for key, value in to_json(memory).items() if key != "text"}
    return {
        TEXT: memory.text,
        PLACE: place_name(memory.place),
        "created_at": _iso(memory.created_ms),
        "updated_at": _iso(memory.updated_ms),
        OURS: VERSION,
        ID: memory.id,
        HEAD: head(memory.id),
        NEAR: near(memory.text),
        SUPERSEDES: memory.supersedes or "",
        REPLACES: "yes" if memory.supersedes else "no",
        UPDATED: memory.updated_ms,
        RECORD: json.dumps(record, ensure_ascii=False, sort_keys=True),
    }


def from_payload(payload: Mapping[str, object] | None) -> Memory | None:
    """The memory, or None for what is not of relay's or was spoilt by others.

    The text is what is there now: somebody may have changed it with mem0.
    """
    if not payload or payload.get(OURS) != VERSION:
        return None
    text, record = payload.get(TEXT), payload.get(RECORD)
    if not isinstance(text, str) or not isinstance(record, str):
        return None
    try:
        return from_json({**json.loads(record), "text": text.strip()})
    except (ValueError, TypeError, RelayError):
        return None


def _iso(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC).isoformat()
