"""Scopes: which files of a project the globs of an intent allow to be written. Pure.

No glob takes more than its length times the path's, whoever wrote it.

- ``*`` is anything within one name, ``?`` one character, ``[a-z]`` one of these, ``[!a-z]`` none of
  them; ``**`` as a whole name is any number of folders, or none. Names that begin with a dot are
  names like any other.
- A glob whose last name has no wildcard, such as ``src`` or ``docs/``, means all below it, too.
- One that begins with ``!`` excludes what it matches and all below that. It always wins.
"""

from __future__ import annotations

import fnmatch
import re
import unicodedata
from collections.abc import Iterable

#: Characters of one glob.
GLOB_MAX = 500
_WILD = re.compile(r"[*?[]")
_CHOICE = re.compile(r"\{[^{}/]*,[^{}]*\}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def glob_mistake(glob: str) -> str:
    """What is wrong with a glob of a scope, in words; "" where nothing is."""
    plain = glob.removeprefix("!")
    parts = _parts(plain)
    if not parts:
        return "a glob is empty"
    if len(glob) > GLOB_MAX:
        return f"a glob has more than {GLOB_MAX} characters"
    if _CONTROL.search(glob):
        return "a glob has a control character"
    if plain.startswith(("/", "~", "!")):
        return f"{glob[:80]!r}: a glob is relative to the project's folder, as in 'src/**'"
    if ".." in parts:
        return f"{glob[:80]!r}: a glob cannot leave the project's folder with '..'"
    if "\\" in plain:
        return f"{glob[:80]!r}: folders are separated by '/'"
    if any("**" in part and part != "**" for part in parts):
        return f"{glob[:80]!r}: '**' stands alone between slashes, as in 'src/**/*.py'"
    if _CHOICE.search(plain):
        return f"{glob[:80]!r}: there is no {{a,b}} here; write one glob for each"
    return ""


class IntentScope:
    """What the globs of one intent allow. Paths are real ones, relative to the project's root, with
    ``/`` between their names; the root itself is in no scope."""

    def __init__(self, globs: Iterable[str], *, ignore_case: bool = False) -> None:
        #: Two names that differ in case only are one file.
        self._ignore_case = ignore_case
        self._allowed: list[_Glob] = []
        self._excluded: list[_Glob] = []
        for glob in globs:
            plain = self._normal(glob.removeprefix("!"))
            if glob.startswith("!"):
                self._excluded.append(_Glob(plain, below=True))
            else:
                self._allowed.append(_Glob(plain, below=False))

    def allows(self, path: str) -> bool:
        """Whether the file, or a new one there, may be written."""
        parts = _parts(self._normal(path))
        if not parts or ".." in parts or not any(one.matches(parts) for one in self._allowed):
            return False
        return not any(one.matches(parts) for one in self._excluded)

    def excludes(self, path: str) -> bool:
        """Whether one that begins with ``!`` keeps the path out."""
        parts = _parts(self._normal(path))
        return any(one.matches(parts) for one in self._excluded)

    def _normal(self, text: str) -> str:
        if not text.isascii():
            text = unicodedata.normalize("NFC", text)
        return text.casefold() if self._ignore_case else text


class _Glob:
    """One glob: a name's pattern each, None for ``**``."""

    __slots__ = ("_parts", "_below")

    def __init__(self, glob: str, *, below: bool) -> None:
        #: What it matches stands for all below, too.
        parts = _parts(glob)
        self._below = below or not _WILD.search(parts[-1])
        self._parts: list[str | re.Pattern[str] | None] = []
        for part in parts:
            if part != "**":
                self._parts.append(_pattern(part))
            elif not self._parts or self._parts[-1] is not None:  # ``**/**`` is ``**``
                self._parts.append(None)

    def matches(self, path: list[str]) -> bool:
        end = len(self._parts)
        places = self._from({0})
        for part in path:
            if self._below and end in places:
                return True
            places = self._after(places, part)
        return end in places

    def _after(self, places: set[int], name: str) -> set[int]:
        """Where in the glob one is behind ``name``, from any of ``places``."""
        found = set()
        for place in places:
            if place == len(self._parts):
                continue
            part = self._parts[place]
            if part is None:
                found.add(place)
            elif part == name if isinstance(part, str) else part.match(name):
                found.add(place + 1)
        return self._from(found)

    def _from(self, places: set[int]) -> set[int]:
        """These, and behind each ``**``, which may be nothing."""
        for place in tuple(places):
            if place < len(self._parts) and self._parts[place] is None:
                places.add(place + 1)
        return places


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _pattern(part: str) -> str | re.Pattern[str]:
    if not _WILD.search(part):
        return part
    return re.compile(fnmatch.translate(part))
