"""From a person's words to an expression of FTS5, in which nothing of theirs is syntax. Pure."""

from __future__ import annotations

import re
import unicodedata

#: Different words of a query that are looked for; a longer one is judged by its first words.
WORDS_MAX = 64
_WORD = re.compile(r"[^\W_]+")
#: Words that nearly every English text holds: they cost time and add noise.
_STOP = (
    "a about all am an and any are as at be been being but by can could did do does doing for from"
    " had has have having he her hers him his how i if in into is it its just me my no nor not of"
    " off on or our ours out over own same she should so some such than that the their theirs them"
    " then there these they this those to too under until up very was we were what when where"
    " which while who whom why will with would you your yours s t d ll m re ve don isn doesn didn"
    " please"
)
STOP_WORDS = frozenset(_STOP.split())


def words(query: str) -> list[str]:
    """The different words of ``query`` that are looked for, at most WORDS_MAX.

    Stop words are left out, unless there is nothing else.
    """
    composed = unicodedata.normalize("NFC", query)
    found = dict.fromkeys(word.lower() for word in _WORD.findall(composed))
    telling = [word for word in found if word not in STOP_WORDS]
    return (telling or list(found))[:WORDS_MAX]


def expression(found: list[str]) -> str:
    """The FTS5 expression for any of the words; each is quoted, so that none is an operator."""
    return " OR ".join(f'"{word}"' for word in found)
