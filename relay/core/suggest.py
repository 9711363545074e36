"""“Did you mean”: the known word nearest to one that is not known."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The best of ``known`` for ``word``, or None when nothing is near. Ignores case."""
    import difflib

    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint for people: the nearest known word, else all of them (at most 20)."""
    names = sorted(known)
    best = nearest(word, names)
    if best is not None:
        return f"did you mean {best!r}?"
    if not names:
        return ""
    return "known: " + ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
