"""When two texts say the same: only spelling apart, never another fact. Pure.

Two texts are near duplicates when their keys are equal. The key keeps every word, number, sign and
their order, and drops what cannot change a fact: white space, quotes and brackets around a word,
the punctuation behind it, ``the`` and ``an``, a polite beginning ("Please remember that …") and the
capital of an ordinary word. So another number, name, negation, flag or path is another fact; so is
the same fact in other words.
"""

from __future__ import annotations

import re
import unicodedata

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
