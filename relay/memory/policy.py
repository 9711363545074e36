"""What happens to secrets in what is to be remembered. Pure: the backend behind it does the I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from relay.core.errors import UsageError
from relay.directive import redact
from relay.memory.backend import Backend, Hits, Memories
from relay.memory.records import Memory, Place, Restored, Saved, Stats


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
    kinds = ", ".join(sorted({kind for _, _, kind in found}))
    raise UsageError(
        f"the text holds a secret ({kinds}) and was not saved",
        hint="say where the secret is kept instead of what it is",
        code="secret",
        details={"kinds": sorted({kind for _, _, kind in found})},
    )


def clean_meta(meta: Mapping[str, object], policy: Secrets) -> dict[str, object]:
    """The same for every text in a JSON object, keys too."""
    # A key that is no text is the backend's to refuse.
    return {
        clean_text(key, policy) if isinstance(key, str) else key: _clean(value, policy)
        for key, value in meta.items()
    }


def _clean(value: object, policy: Secrets) -> object:
    if isinstance(value, str):
        return clean_text(value, policy)
    if isinstance(value, list):
        return [_clean(item, policy) for item in value]
    if isinstance(value, dict):
        return clean_meta(value, policy)
    return value


class Guarded:
    """A backend that stores nothing before the policy has seen it."""

    def __init__(self, backend: Backend, policy: Secrets) -> None:
        self.backend = backend
        self.policy = policy

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
        """As the backend does, of what the policy lets through."""
        return self.backend.save(
            clean_text(text, self.policy),
            place,
            agent=agent,
            session=session,
            supersedes=supersedes,
            meta=None if meta is None else clean_meta(meta, self.policy),
            now_ms=now_ms,
            new_id=new_id,
        )

    def restore(self, memories: Iterable[Memory]) -> Restored:
        """The same; under REFUSE a memory with a secret ends it with an error that names it, and
        what came before it may be stored."""
        return self.backend.restore(self._cleaned(memories))

    def _cleaned(self, memories: Iterable[Memory]) -> Iterator[Memory]:
        for memory in memories:
            try:
                text = clean_text(memory.text, self.policy)
                meta = clean_meta(memory.meta, self.policy)
            except UsageError as error:
                raise UsageError(
                    f"memory {memory.id}: {error.message}",
                    hint="take it out of the import, or let secrets be redacted",
                    code=error.code,
                    details={**error.details, "id": memory.id},
                ) from error
            yield replace(memory, text=text, meta=meta)

    # -- what stores nothing

    def search(self, query: str, places: Sequence[Place], limit: int, *, now_ms: int) -> Hits:
        """As the backend does."""
        return self.backend.search(query, places, limit, now_ms=now_ms)

    def get(self, id_: str) -> Memory:
        """As the backend does."""
        return self.backend.get(id_)

    def forget(self, id_: str) -> Memory:
        """As the backend does."""
        return self.backend.forget(id_)

    def list(
        self,
        places: Sequence[Place],
        limit: int,
        *,
        before_ms: int | None = None,
        before_id: str = "",
    ) -> Memories:
        """As the backend does."""
        return self.backend.list(places, limit, before_ms=before_ms, before_id=before_id)

    def export(
        self, places: Sequence[Place] | None = None, *, after: tuple[Place, str] | None = None
    ) -> Iterator[Memory]:
        """As the backend does."""
        return self.backend.export(places, after=after)

    def stats(self) -> Stats:
        """As the backend does."""
        return self.backend.stats()

    def close(self) -> None:
        """As the backend does."""
        self.backend.close()
