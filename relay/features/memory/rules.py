"""What holds for every memory: ids, near duplicates, what an import adds, no secrets.

An id is 8 characters of Crockford's base 32 in lower case: 40 bits of randomness.

Two texts are near duplicates when their keys are equal. The key keeps every word, number, sign and
their order, and drops what cannot change a fact: white space, quotes and brackets around a word,
the punctuation behind it, ``the`` and ``an``, a polite beginning ("Please remember that …") and the
capital of an ordinary word. So another number, name, negation, flag or path is another fact; so is
the same fact in other words.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from relay.core.errors import NotFound, UsageError, nearest
from relay.directive import redact
from relay.features.memory.records import ORIGIN, PREFIX_MIN, Memory, Outcome, Saved, to_json

ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
ID_LENGTH = 8
_LOOK_ALIKE = str.maketrans("oil", "011")
#: No answer has more memories than this.
LIMIT_MAX = 1000
#: Matches of an ambiguous id that are looked for; all but one of them are shown.
MATCHES_MAX = 11
#: Ids that an unknown one is compared with.
SUGGESTED_FROM = 2000


def new_id(randomness: bytes | None = None) -> str:
    """A new id, from 5 random bytes."""
    value = int.from_bytes(os.urandom(5) if randomness is None else randomness, "big")
    return "".join(ID_ALPHABET[value >> shift & 31] for shift in range(5 * (ID_LENGTH - 1), -1, -5))


def readings(typed: str) -> list[str]:
    """What somebody may have meant who typed ``typed``, the likelier first.

    As it stands, then with o, i and l as the digits that they look like. Raises UsageError when it
    is too short to be looked for.
    """
    wanted = typed.strip().lower().encode("ascii", "replace").decode()
    if len(wanted) < PREFIX_MIN:
        raise UsageError(
            f"{typed[:80]!r} is too short for an id",
            hint=f"give at least {PREFIX_MIN} characters of it",
            code="too_short",
        )
    return list(dict.fromkeys((wanted, wanted.translate(_LOOK_ALIKE))))


def check_limit(limit: int) -> int:
    """``limit``, at most LIMIT_MAX. Raises UsageError when it is less than 1."""
    if limit < 1:
        raise UsageError(f"a limit of {limit} asks for nothing", hint="give 1 or more")
    return min(limit, LIMIT_MAX)


def check_query(query: str) -> str:
    """``query``. Raises UsageError when it is empty."""
    if not query.strip():
        raise UsageError("there is nothing to search for", hint="give some words")
    return query


def updated(there: Memory, fresh: Memory, with_meta: bool) -> Saved:
    """What becomes of ``there`` when ``fresh``, which says the same, is saved.

    Without ``with_meta`` the save had no meta, and the old one stays. What a person has saved stays
    the person's; what an agent has saved becomes the person's when the person saves it, too.
    """
    if there.agent is None and fresh.agent is not None:
        return Saved(replace(there, updated_ms=fresh.updated_ms), Outcome.SAME)
    meta = fresh.meta if with_meta else there.meta
    if fresh.agent is None and there.agent is not None:
        meta = {key: value for key, value in meta.items() if key != ORIGIN}
    if fresh.text == there.text and meta == there.meta:
        return Saved(replace(there, updated_ms=fresh.updated_ms), Outcome.SAME)
    memory = replace(
        fresh,
        id=there.id,
        created_ms=there.created_ms,
        supersedes=there.supersedes,
        meta=meta,
    )
    return Saved(memory, Outcome.UPDATED, there.text)


def not_there(
    batch: Iterable[Memory], known: dict[str, Memory], counts: Counter[str]
) -> list[Memory]:
    """Those of ``batch`` that a restore has to store; ``known`` are there, by id.

    The others are counted as ``same`` or ``conflicting``, an id that comes twice too.
    """
    new = []
    for memory in batch:
        there = known.setdefault(memory.id, memory)
        if there is memory:
            new.append(memory)
        else:
            counts["same" if there == memory else "conflicting"] += 1
    return new


def ambiguous(id_: str, found: Sequence[Memory]) -> UsageError:
    """Several ids begin so."""
    shown = found[: MATCHES_MAX - 1]
    more = " …" if len(found) > len(shown) else ""
    return UsageError(
        f"{id_.strip()!r} begins several ids: {', '.join(one.id for one in shown)}{more}",
        hint="give more of its characters",
        code="ambiguous",
        details={"matches": [to_json(memory) for memory in shown]},
    )


def unknown(id_: str, known: Iterable[str]) -> NotFound:
    """There is no such id; ``known`` are some that are there."""
    near = nearest(id_.strip(), known)
    return NotFound(
        f"there is no memory {id_.strip()[:80]!r}",
        hint=f"did you mean {near!r}?" if near else "list the memories to see their ids",
    )


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


_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " "})
_BEFORE = "\"'`(["
_BEHIND = "\"'`)].,;:!"
_BULLETS = frozenset("-*•–—")
_ORDINARY = re.compile(r"[^\W\d_]{2,}")
_SILENT = frozenset({"the", "an"})
_OPENINGS = frozenset({"please", "note", "remember", "reminder", "fyi", "that"})


def near_key(text: str) -> str:
    """What is left of ``text`` when all that cannot change its fact is gone; never empty."""
    plain = unicodedata.normalize("NFC", text).translate(_QUOTES)
    chunks = plain.split()
    if chunks and chunks[0] in _BULLETS:
        del chunks[0]
    found = [_fold(_bare(chunk)) for chunk in chunks]
    first = 0
    while first < len(found) and found[first] in _OPENINGS:
        first += 1
    kept = [word for word in found[first:] if word not in _SILENT]
    return " ".join(kept) or plain.strip()


def _bare(chunk: str) -> str:
    """``chunk`` without the punctuation around it; what is only punctuation stays."""
    return chunk.lstrip(_BEFORE).rstrip(_BEHIND) or chunk


def _fold(word: str) -> str:
    """An ordinary word, or one with a capital, in lower case; ``PATH``, ``-V``, ``x1`` stay."""
    plain = word.replace("'", "", 1)
    ordinary = _ORDINARY.fullmatch(plain) and (plain[1:].islower() or plain.islower())
    return word.lower() if ordinary else word
