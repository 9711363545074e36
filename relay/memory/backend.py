"""What every backend of memory does. Synchronous: the broker calls it in one thread of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypedDict

from relay.core.errors import RelayError
from relay.memory.records import Hit, Memory, Place, Restored, Saved, Stats

#: Named here, because a backend has a method ``list``.
Hits = list[Hit]
Memories = list[Memory]


class StoreUnavailable(RelayError):
    """The store cannot be reached now (a server is away); later it may. Nothing was changed."""

    code = "memory_unavailable"


class SaveOptions(TypedDict, total=False):
    """What may be left out of a save."""

    supersedes: str | None
    meta: Mapping[str, object] | None
    new_id: str | None


class SaveFields(SaveOptions):
    """What a save is given beside the text and the place: see ``Backend.save``."""

    agent: str | None
    session: str | None
    now_ms: int


class Backend(Protocol):
    """A store of memories.

    All times are milliseconds since the epoch. Whatever is wrong with the request is a UsageError,
    whatever is wrong with the store a StorageError, or StoreUnavailable; then nothing was changed.
    ``relay.testing.memory_contract`` says what a backend must do, and can be run against any.
    """

    def save(
        self,
        text: str,
        place: Place,
        *,
        agent: str | None,
        session: str | None,
        supersedes: str | None = None,
        meta: Mapping[str, object] | None = None,
        now_ms: int,
        new_id: str | None = None,
    ) -> Saved:
        """Remember ``text``; it is durable before this returns.

        What is there already in ``place``, exactly or nearly, is updated instead. ``supersedes``
        (an id, or a unique prefix of one) is what this one replaces: it stays, but is not found by
        a search any more. Raises NotFound when that is unknown. ``new_id``: the id of a memory that
        is new, given by relay to what it had to keep for a while; else the backend chooses one.
        """

    def search(self, query: str, places: Sequence[Place], limit: int, *, now_ms: int) -> Hits:
        """The best for ``query`` in ``places`` (the most specific first), the best first.

        At most ``limit``; ``query`` is plain text and nothing else. No superseded memories.
        """

    def get(self, id_: str) -> Memory:
        """The memory with this id, or whose id begins so.

        Raises NotFound, with what is near in its hint; UsageError of the code ``ambiguous``, with
        ``matches`` (memories as JSON) in its details, when several ids begin so.
        """

    def forget(self, id_: str) -> Memory:
        """Remove it so that nothing of its text is left, and return it. Errors as for ``get``."""

    def list(
        self,
        places: Sequence[Place],
        limit: int,
        *,
        before_ms: int | None = None,
        before_id: str = "",
    ) -> Memories:
        """The newest first, by ``updated_ms`` and then by id, superseded ones too.

        Only those before ``before_ms`` when it is given, and of that very time those whose id is
        less than ``before_id``: with both from the last of a page the next page begins.
        """

    def export(
        self, places: Sequence[Place] | None = None, *, after: tuple[Place, str] | None = None
    ) -> Iterator[Memory]:
        """Every memory (in ``places``), superseded ones too, for ``restore``.

        In an order that saves and forgets do not change: whatever of places, in each by id.
        ``after``: only what stands behind this place and id there, be it forgotten meanwhile.
        """

    def restore(self, memories: Iterable[Memory]) -> Restored:
        """Store memories as they are. Ids that are there already stay as they are, so that what
        was cut off can be run again. What is stored is durable before this returns."""

    def stats(self) -> Stats:
        """What is there."""

    def close(self) -> None:
        """Give back what is held; calling it again does nothing."""
