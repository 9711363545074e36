"""The searcher that a ``relay.config.py`` registers, called in the memory service.

It gives ids of memories, or texts that memories say, the best first; the files have the memories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from relay.core.errors import ConfigError, StorageError
from relay.core.paths import Home
from relay.features.memory.records import Memory, Place
from relay.features.memory.spec import StoreSpec

Search = Callable[[str, int, str], Iterable[str]]


def load(spec: StoreSpec, home: Home) -> Search:
    """``memory["searcher"]`` of the trusted file that ``spec`` names, or what that class makes.

    The file is run again, here, once. Raises ConfigError when it is not that file any more, is
    not trusted, or has no searcher.
    """
    from relay.config import load, trust
    from relay.features.memory.settings import MEMORY

    file = trust.read_config(spec.file)
    if file.sha256 != spec.sha256:
        raise ConfigError(
            f"memory: {spec.file} has changed since this session or command has read it",
            hint="trust it again and start the session anew: relay trust",
        )
    if not trust.is_trusted(home, spec.file, file.sha256):
        raise ConfigError(
            f"memory: {spec.file} is not trusted, so its searcher is not called",
            hint="read it, then: relay trust",
        )
    searcher: Any = load.load(file, home=home).settings.of(MEMORY).searcher
    if searcher is None:
        raise ConfigError(f"memory: {spec.file} registers no searcher any more")
    if isinstance(searcher, type):
        searcher = searcher()
    search: Any = getattr(searcher, "search", searcher)
    if not callable(search):
        raise ConfigError(f"memory: the searcher {searcher!r} has no method search")
    return search  # type: ignore[no-any-return]


class SearcherIndex:
    """See relay.features.memory.indexes. What it searches is the user's own affair: relay fills
    nothing."""

    batch = 0
    shared = True

    def __init__(self, search: Search) -> None:
        self._search = search

    def former(self) -> Iterator[tuple[str, Memory]]:
        """relay has kept nothing there."""
        return iter(())

    def start(self) -> bool:
        """Nothing is to be made."""
        return False

    def add(self, memories: Sequence[Memory]) -> list[str]:
        """Nothing is filled."""
        return []

    def delete(self, keys: Sequence[str]) -> None:
        """Nothing is filled."""

    def search(self, query: str, place: Place, limit: int) -> Mapping[str, float]:
        """A score by their order. Ids and texts alike."""
        answer: Any = self._search(query, limit, place.scope.value)
        given = [] if isinstance(answer, str) else list(answer)
        if isinstance(answer, str) or not all(isinstance(name, str) for name in given):
            raise StorageError("the searcher did not give a list of ids or texts")
        names = list(dict.fromkeys(given))[:limit]
        return {name: 1 - number / len(names) for number, name in enumerate(names)}

    def close(self) -> None:
        """Nothing is held."""
