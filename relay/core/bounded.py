"""Containers that forget their oldest entry instead of growing without bound."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedDict(OrderedDict[K, V]):
    """A dict of at most ``limit`` keys. Writing a key makes it the newest; the oldest goes first.

    ``items`` fills it in order, the oldest first (as JSON keeps it).
    """

    def __init__(self, limit: int, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        super().__init__()
        self.limit = limit
        for key, value in items.items() if isinstance(items, Mapping) else items:
            self[key] = value

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def put(self, key: K, value: V) -> tuple[K, V] | None:
        """Write ``key``; return the entry that was forgotten for it, if one was."""
        super().__setitem__(key, value)
        self.move_to_end(key)
        return self.popitem(last=False) if len(self) > self.limit else None


class RecentSet(Generic[K]):
    """The last ``limit`` keys that were added. Iterates from the oldest to the newest."""

    def __init__(self, limit: int, keys: Iterable[K] = ()) -> None:
        self._keys: BoundedDict[K, None] = BoundedDict(limit, ((key, None) for key in keys))

    def add(self, key: K) -> bool:
        """Make ``key`` the newest; whether it was not in the set."""
        fresh = key not in self._keys
        self._keys[key] = None
        return fresh

    def update(self, keys: Iterable[K]) -> None:
        for key in keys:
            self._keys[key] = None

    def discard(self, key: K) -> None:
        self._keys.pop(key, None)

    def clear(self) -> None:
        self._keys.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
