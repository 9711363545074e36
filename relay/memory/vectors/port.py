"""What a store of vectors must be able to do; all meaning is left to ``backend``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from relay.memory.records import Memory, Place


@dataclass(frozen=True, slots=True)
class Found:
    """A memory, and the key under which the store has it."""

    key: str
    memory: Memory


@dataclass(frozen=True, slots=True)
class Answer:
    """What a store finds for a query in one place, by key.

    ``words``: BM25, higher is better. ``scores``: cosines. ``ids``: of all keys.
    """

    words: Mapping[str, float]
    scores: Mapping[str, float]
    ids: Mapping[str, str]


class Points(Protocol):
    """Memories under keys that the store may choose itself. What others put there is not seen.

    Each call raises StoreUnavailable when the server is away, StorageError for what else is wrong
    with the store, ConfigError when it refuses the settings. What writes is done, and durable,
    when it returns. Fields are those of relay.memory.vectors.payload.
    """

    @property
    def name(self) -> str:
        """The backend's name."""

    @property
    def embedder(self) -> str:
        """The embedder's name."""

    @property
    def alone(self) -> bool:
        """Nobody else writes while this is open: what was read once stays true."""

    def insert(self, memories: Sequence[Memory]) -> list[str]:
        """Add them, in this order; the key of each."""

    def replace(self, key: str, memory: Memory, *, text_changed: bool) -> None:
        """Put ``memory`` in the place of what ``key`` has; its place stays the same."""

    def remove(self, key: str) -> None:
        """Remove it so that nothing of its text is left in the store's own files."""

    def fetch(self, keys: Sequence[str]) -> list[Found]:
        """Those of ``keys`` that are there, in any order."""

    def match(self, fields: Mapping[str, str | int], limit: int) -> list[Found]:
        """At most ``limit`` of those that have these fields, in any order."""

    def with_ids(self, ids: Sequence[str]) -> list[Found]:
        """Those that have one of these ids, at most 200, in any order."""

    def scan(
        self, fields: Mapping[str, str | int], names: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, object]]]:
        """The key and the fields ``names`` of all that have ``fields``."""

    def newest(
        self, places: Sequence[Place], limit: int, before: tuple[int, str] | None
    ) -> list[Memory]:
        """The newest first by (updated_ms, id), of those that come before ``before``."""

    def counts(self) -> dict[Place, int]:
        """How many there are, by place."""

    def find(self, query: str, words: Sequence[str], place: Place, count: int) -> Answer:
        """About ``count`` of the best for ``query``; ``words`` are those to look for in it."""

    def size(self) -> int:
        """Bytes on disk; 0 where the store is a server's."""

    def close(self) -> None:
        """Give back what is held, and the embedder; calling it again does nothing."""
