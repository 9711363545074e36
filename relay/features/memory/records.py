"""The records of memory: what is kept, where, and what a save or a search answers. Pure."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from relay.core.agent_names import valid_name
from relay.core.errors import UsageError
from relay.features.memory.ops import MemoryRow

#: Bounds, in bytes of UTF-8: beyond them a save is refused, nothing is ever cut.
TEXT_MAX = 16 * 1024
META_MAX = 4 * 1024
OWNER_MAX = 4096
#: A day before the end of the year 9999, in ms: what is later, here or in another time zone, has no
#: date.
TIME_MAX = 253_402_214_399_999
#: An id may be shortened to this many characters while it stays unique.
PREFIX_MIN = 3
#: What may be an id. New ones are 8 of Crockford's base 32.
ID_PATTERN = re.compile(r"[0-9a-z][0-9a-z_-]{2,63}")
#: In the meta of what an agent saved: the end of its project's path, written by relay alone.
ORIGIN, _ORIGIN_MAX = "relay_origin", 200
_SESSION = re.compile(r"[!-~]{1,64}")


class Scope(StrEnum):
    """For whom something is remembered."""

    USER = "user"
    PROJECT = "project"
    AGENT = "agent"


@dataclass(frozen=True, slots=True)
class Place:
    """Where memories are kept: a scope, and whose.

    ``owner``: "" for the user, the repository's absolute path for a project, an agent's name
    (which is lowered: names ignore case). Raises UsageError for what cannot be an owner.
    """

    scope: Scope
    owner: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "owner", _owner(self.scope, self.owner))

    def __str__(self) -> str:
        return f"{self.scope.value} {self.owner}".rstrip()


class Tier(StrEnum):
    """How a search was done: by words alone, or by words and vectors."""

    WORDS = "words"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class Memory:
    """One thing that is remembered.

    ``agent``: who saved it, None for a person. ``session``: the run in which that was. ``*_ms``:
    milliseconds since the epoch. ``supersedes``: the id of what this one replaces. ``meta``: a
    JSON object of at most META_MAX bytes.
    """

    id: str
    text: str
    place: Place
    agent: str | None
    session: str | None
    created_ms: int
    updated_ms: int
    supersedes: str | None = None
    meta: Mapping[str, object] = field(default_factory=dict)


class Outcome(StrEnum):
    """What a save did: ``new``; ``same``, it was there and only its time is new; ``updated``, it
    was nearly there, and its text (or its meta) is the new one."""

    NEW = "new"
    SAME = "same"
    UPDATED = "updated"


@dataclass(frozen=True, slots=True)
class Saved:
    """The answer to a save. ``former``: the text that an update replaced."""

    memory: Memory
    outcome: Outcome
    former: str | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """One result of a search, with its score from 0 to 1."""

    memory: Memory
    score: float
    tier: Tier


@dataclass(frozen=True, slots=True)
class Restored:
    """The counts of a restore. ``conflicting``: the id was there with another content, which
    stayed as it was."""

    new: int = 0
    same: int = 0
    conflicting: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """What the store holds. ``size``: bytes on disk. ``pending``: memories that are not found by
    meaning yet. ``problem``: why ``tier`` is not what it could be, or ""."""

    tier: Tier
    counts: Mapping[Place, int]
    size: int
    embedder: str | None
    pending: int
    problem: str = ""


def origin(project: str | None) -> str:
    """What is kept of where something was saved: all of a path, or the end of a long one."""
    path = project or ""
    return path if len(path) <= _ORIGIN_MAX else "…" + path[1 - _ORIGIN_MAX :]


def may_replace(old: Memory, agent: str, where: object) -> bool:
    """Whether ``agent``, working at the origin ``where``, may replace or forget ``old`` as far as
    it is for everybody: only what it has saved there itself."""
    own = old.agent == agent and old.meta.get(ORIGIN) == where
    return old.place.scope is not Scope.USER or own


def check_text(text: str) -> str:
    """``text`` without the white space around it. Raises UsageError: empty, too long, not UTF-8."""
    text = text.strip()
    if not text:
        raise UsageError("there is nothing to remember: the text is empty", hint="give a text")
    if "\0" in text:
        raise UsageError("the text holds a NUL character", hint="save text, not binary data")
    size = _bytes(text, "the text")
    if size > TEXT_MAX:
        raise UsageError(
            f"the text is too long to remember: {size} bytes of at most {TEXT_MAX}",
            hint="save a summary, or the path of the file that holds it",
            code="too_long",
        )
    return text


def check_meta(meta: Mapping[str, object] | None) -> str:
    """``meta`` as JSON. Raises UsageError when it is not a JSON object or too large."""
    if meta is None:
        return "{}"
    if not isinstance(meta, Mapping):
        raise UsageError("the meta of a memory is not an object", hint="give a JSON object")
    try:
        text = json.dumps(dict(meta), ensure_ascii=False, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            f"the meta of a memory has no JSON form: {error}", hint="use plain JSON values"
        ) from error
    if json.loads(text) != dict(meta):
        raise UsageError(
            "the meta of a memory does not survive JSON", hint="use strings as keys, no tuples"
        )
    size = _bytes(text, "the meta")
    if size > META_MAX:
        raise UsageError(
            f"the meta of a memory is too large: {size} bytes of at most {META_MAX}",
            hint="keep what is large in a file, and its path here",
            code="too_long",
        )
    return text


def to_json(memory: Memory) -> MemoryRow:
    """The memory as a JSON object, for export and ``--json``."""
    return {
        "id": memory.id,
        "text": memory.text,
        "scope": memory.place.scope.value,
        "owner": memory.place.owner,
        "agent": memory.agent,
        "session": memory.session,
        "created_ms": memory.created_ms,
        "updated_ms": memory.updated_ms,
        "supersedes": memory.supersedes,
        "meta": dict(memory.meta),
    }


#: The fields of a memory as JSON, and what each is in words.
_FIELDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("id", "text", "scope", "owner"), (str, "a text")),
    **dict.fromkeys(("agent", "session", "supersedes"), (str | None, "a text")),
    **dict.fromkeys(("created_ms", "updated_ms"), (int, "a time in milliseconds")),
    "meta": (dict, "an object"),
}


def from_json(value: object) -> Memory:
    """The opposite of ``to_json``. Raises UsageError that names what is wrong."""
    if not isinstance(value, dict):
        raise _not_a_memory("it is not an object")
    given: dict[str, Any] = {"meta": {}, **value}
    for name, (kind, words) in _FIELDS.items():
        one = given.get(name)
        late = kind is int and not (type(one) is int and 0 <= one <= TIME_MAX)
        if late or not isinstance(one, kind):
            raise _not_a_memory(f"{name!r} is not {words}")
    scope, agent, session = given["scope"], given.get("agent"), given.get("session")
    if scope not in tuple(Scope):
        raise _not_a_memory(f"'scope' is none of {', '.join(Scope)}")
    if agent is not None and not valid_name(agent):
        raise _not_a_memory(f"{agent[:80]!r} cannot be an agent's name")
    if session is not None and not _SESSION.fullmatch(session):
        raise _not_a_memory(f"{session[:80]!r} cannot be a session")
    times = given["created_ms"], given["updated_ms"]
    place, meta = Place(Scope(scope), given["owner"]), given["meta"]
    more = given.get("supersedes")
    return check_memory(
        Memory(given["id"], given["text"], place, agent, session, *times, more, meta)
    )


def check_memory(memory: Memory) -> Memory:
    """The memory itself, when it may be stored as it is; else UsageError."""
    for id_ in (memory.id, memory.supersedes):
        if id_ is not None and not ID_PATTERN.fullmatch(id_):
            raise _not_a_memory(f"{id_[:80]!r} cannot be an id")
    if check_text(memory.text) != memory.text:
        raise _not_a_memory("white space stands around its text")
    check_meta(memory.meta)
    return memory


def _not_a_memory(why: str) -> UsageError:
    return UsageError(f"this is not a memory: {why}", hint="give what an export wrote")


def _owner(scope: Scope, owner: str) -> str:
    if scope is Scope.USER:
        if owner:
            raise UsageError("the user's own memories have no other owner", hint="give none")
        return ""
    if scope is Scope.AGENT:
        if not valid_name(owner):
            raise UsageError(f"{owner[:80]!r} cannot be an agent's name", hint="give its name")
        return owner.lower()
    if not owner.startswith("/") or "\0" in owner or _bytes(owner, "the path") > OWNER_MAX:
        raise UsageError(
            f"{owner[:80]!r} is not the path of a project", hint="give the absolute path"
        )
    return "/" + posixpath.normpath(owner).lstrip("/")


def _bytes(text: str, what: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(
            f"{what} is not valid Unicode", hint="save text, not binary data"
        ) from None
