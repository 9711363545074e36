"""Collects the mistakes in a configuration file, each with its line, to report all of them at once.

The settings, the registration in a program and the loader all report here.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from relay.core.errors import ConfigError

_running = threading.local()


class Mistakes:
    """The mistakes in one file. ``text`` is the file's, "" where there is none."""

    def __init__(self, path: str, text: str = "") -> None:
        self._path = path
        self._text = text
        self._keys: list[tuple[str, int]] | None = None
        self._errors: list[tuple[int, ConfigError]] = []

    @contextmanager
    def at(self, key: str = "") -> Iterator[None]:
        """Note a ConfigError that is raised within; ``key`` is where in the tables it is."""
        try:
            yield
        except ConfigError as error:
            words = [word for pair in _QUOTED.findall(error.message) for word in pair if word]
            self.note(error, self._line([*words, key]))

    @contextmanager
    def at_line(self, line: int) -> Iterator[None]:
        """Note a ConfigError that is raised within, at this line."""
        try:
            yield
        except ConfigError as error:
            self.note(error, line)

    def note(self, error: ConfigError, line: int | None = None) -> None:
        """Add one mistake, at ``line`` of the file."""
        place = self._path if line is None else f"{self._path}:{line}"
        self._errors.append((line or 0, ConfigError(f"{place}: {error.message}", hint=error.hint)))

    @contextmanager
    def running(self) -> Iterator[None]:
        """While the file runs in this thread, what it registers wrongly is noted here."""
        _running.mistakes = self
        try:
            yield
        finally:
            _running.mistakes = None

    def check(self) -> None:
        """Raise ConfigError if there was any: the first, with all as ``details["mistakes"]``."""
        if not self._errors:
            return
        errors = [error for _, error in sorted(self._errors, key=lambda one: one[0])]
        first, *more = errors
        if not more:
            raise ConfigError(first.message, hint=first.hint, details={"mistakes": [first.line]})
        lines = [one.line for one in errors]
        raise ConfigError(
            f"{first.line}; and {len(more)} more",
            hint="to see all: relay config check",
            details={"mistakes": lines},
        )

    def _line(self, words: list[str]) -> int | None:
        """The line of the first of ``words`` that is a key, or else a text, in the file."""
        if self._keys is None:
            self._keys = _keys(self._text)
        for word in words:
            for number, (key, line) in enumerate(self._keys):
                if key == word:
                    # A second mistake with the same key is that key's next place.
                    self._keys.append(self._keys.pop(number))
                    return line
        return None


@contextmanager
def noted() -> Iterator[None]:
    """Note a mistake of the file that this thread runs, where it was made; elsewhere raise it."""
    mistakes: Mistakes | None = getattr(_running, "mistakes", None)
    try:
        yield
    except ConfigError as error:
        if mistakes is None:
            raise
        frame = sys._getframe(1)
        path = mistakes._path
        while frame is not None and frame.f_code.co_filename != path:
            frame = frame.f_back  # type: ignore[assignment]
        mistakes.note(error, frame.f_lineno if frame is not None else None)


_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")


def _keys(text: str) -> list[tuple[str, int]]:
    """The keys in the dictionaries and calls of a source, with their lines, then other texts."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    keys: list[tuple[str, int]] = []
    others: list[tuple[str, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    keys.append((key.value, key.lineno))
        elif isinstance(node, ast.keyword) and node.arg:
            keys.append((node.arg, node.value.lineno))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            others.append((node.value, node.lineno))
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            others += [(name, node.lineno) for name in names]
    return sorted(keys, key=lambda one: one[1]) + sorted(others, key=lambda one: one[1])
