"""A backend that keeps saves while its store cannot be reached, and gives them to it afterwards.

Kept saves are applied in the order in which they came, before anything newer; each is removed only
after the store has it, under the id that was told. So one that is applied twice, because the
process was killed in between, is there once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Unpack

from relay.core.errors import ConfigError, NotFound, RelayError, StorageError, UsageError
from relay.memory import backend_rules
from relay.memory.backend import Backend, Hits, Memories, SaveFields, StoreUnavailable
from relay.memory.backend_rules import new_id as random_id
from relay.memory.backend_rules import readings
from relay.memory.kept_saves import KeptSave, KeptSaves
from relay.memory.records import (
    ID_PATTERN,
    ORIGIN,
    Memory,
    Outcome,
    Place,
    Restored,
    Saved,
    Scope,
    Stats,
    Tier,
    check_meta,
    check_text,
    may_replace,
)

#: Seconds for which kept saves are applied before a request is answered.
APPLY_FOR = 5.0
#: A store that takes longer than SLOW to say that it cannot be opened is left alone for as long as
#: that took, but for at most PAUSE_MAX. Seconds.
SLOW, PAUSE_MAX = 1.0, 5.0
#: How long kept saves are left alone after the store has failed at one. Seconds.
TRY_AFTER = 15.0
#: Failures of the store at one save (not: being away), or deaths of its process of it, that make
#: the save a refused one.
TRIES_MAX = 8


class Forbidden(RelayError):
    """A save that its agent may not make."""

    code = "forbidden"


class WriteQueue:
    """The backend (see relay.memory.backend) that ``open_backend`` opens, when it can.

    ``name`` is the backend's, for as long as it is away. ``clock`` gives seconds. Owns the saves:
    ``close`` closes it.
    """

    def __init__(
        self,
        open_backend: Callable[[], Backend],
        saves: KeptSaves,
        *,
        name: str = "memory",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_backend = open_backend
        self._saves = saves
        self._name = name
        self._clock = clock
        self._backend: Backend | None = None
        self._why: RelayError | None = None  # why it could not be opened
        self._not_before = 0.0
        self._failed_before = False
        self._failed = ""  # why the store failed at the oldest one that is kept
        self._try_after = 0.0
        self._seen = ""  # the id that was asked for last: who asked has seen whose it is

    # -- the protocol

    def save(self, text: str, place: Place, **fields: Unpack[SaveFields]) -> Saved:
        """As the backend does, or KEPT: durable in either case. Nothing overtakes what is kept."""
        text = check_text(text)
        meta, supersedes = fields.get("meta"), fields.get("supersedes")
        check_meta(meta)
        if supersedes is not None:
            supersedes = _checked_id(self._saves.alias(supersedes) or supersedes)
            fields["supersedes"] = supersedes
        wanted = KeptSave(
            fields.get("new_id") or random_id(),
            text,
            place,
            fields["agent"],
            fields["session"],
            supersedes,
            None if meta is None else dict(meta),
            fields["now_ms"],
        )
        try:
            backend = self._ready()
            if self._saves.first() is not None:
                return self._keep(wanted, self._failed or "earlier saves are being stored still")
            if supersedes != self._seen:
                check_may_replace(backend, wanted)
            return backend.save(text, place, **fields)
        except StoreUnavailable as error:
            return self._keep(wanted, error.message)

    def search(self, query: str, places: Sequence[Place], limit: int, *, now_ms: int) -> Hits:
        """As the backend does; nothing that is kept is found."""
        with self._counting():
            return self._ready().search(query, places, limit, now_ms=now_ms)

    def get(self, id_: str) -> Memory:
        """By the id that was told, also of what is kept."""
        self._seen = ""
        memory = self._get(id_)[0]
        self._seen = memory.id
        return memory

    def forget(self, id_: str) -> Memory:
        """Also what is kept, which is then never stored."""
        memory, waiting = self._get(id_)
        if waiting is None:
            with self._counting():
                return self._ready().forget(memory.id)
        self._saves.remove(waiting)
        return memory

    def list(
        self,
        places: Sequence[Place],
        limit: int,
        *,
        before_ms: int | None = None,
        before_id: str = "",
    ) -> Memories:
        """As the backend does; without what is kept."""
        with self._counting():
            return self._ready().list(places, limit, before_ms=before_ms, before_id=before_id)

    def export(
        self, places: Sequence[Place] | None = None, *, after: tuple[Place, str] | None = None
    ) -> Iterator[Memory]:
        """As the backend does; without what is kept."""
        with self._counting():
            yield from self._ready().export(places, after=after)

    def restore(self, memories: Iterable[Memory]) -> Restored:
        """As the backend does: it is run again when the store is there."""
        with self._counting():
            return self._ready().restore(memories)

    def stats(self) -> Stats:
        """What the store says; of one that is away the reason. ``kept`` and ``refused`` always."""
        problem = ""
        try:
            found = self._ready().stats()
        except StoreUnavailable as error:
            found = Stats(self._name, Tier.WORDS, {}, 0, None, 0)
            problem = error.message
        kept, refused = self._saves.counts()
        problems = (problem, self._failed, self._refusals(refused), found.problem)
        text = "; ".join(part for part in problems if part)
        return replace(found, problem=text, kept=kept, refused=refused)

    def close(self) -> None:
        """Close the store and the saves."""
        backend, self._backend = self._backend, None
        try:
            if backend is not None:
                backend.close()
        finally:
            self._saves.close()

    # -- beyond the protocol

    def waiting(self) -> int:
        """How many saves are kept."""
        return self._saves.counts()[0]

    def catch_up(self, seconds: float) -> int:
        """Apply what is kept for about ``seconds``; how many still wait. Raises as opening does."""
        if self._saves.first() is not None:
            self._apply(self._opened(), seconds)
        return self.waiting()

    # -- the store

    def _ready(self) -> Backend:
        """The store, after as much of what is kept as APPLY_FOR allows."""
        backend = self._opened()
        self._apply(backend, APPLY_FOR)
        return backend

    def _opened(self) -> Backend:
        if self._backend is not None:
            return self._backend
        begun = self._clock()
        if self._why is not None and begun < self._not_before:
            raise self._why.with_traceback(None)
        self._why = None
        try:
            self._backend = self._open_backend()
        except RelayError as error:
            self._put_off(error, begun)
            raise
        except Exception as error:
            why = StorageError(
                f"the store of memories cannot be opened: {type(error).__name__}: {error}",
                hint="relay doctor says more",
            )
            self._put_off(why, begun)
            raise why from error
        return self._backend

    def _put_off(self, why: RelayError, begun: float) -> None:
        """What takes long to fail must not make everybody wait all the time."""
        now = self._clock()
        took = now - begun
        # The first time imports what the store needs, which says nothing of the next one.
        slow = self._failed_before and took > SLOW
        self._failed_before = True
        self._why, self._not_before = why, now + (min(PAUSE_MAX, took) if slow else 0.0)

    # -- keeping and applying

    def _keep(self, save: KeptSave, why: str) -> Saved:
        same = [one for one in self._saves.starting_with(save.id, 1) if one.text == save.text]
        if not same:  # else it is repeated, after a service that has died
            while self._known(save.id):
                save = replace(save, id=random_id())
            self._saves.add(save)
        return Saved(save.memory(), Outcome.KEPT, problem=why)

    def _known(self, id_: str) -> bool:
        there = self._saves.starting_with(id_, 1)
        return bool(there) and there[0].id == id_ or self._saves.alias(id_) is not None

    def _apply(self, backend: Backend, seconds: float) -> None:
        """Until nothing waits, the time is over, or the store fails. Raises StoreUnavailable."""
        if self._failed and self._clock() < self._try_after:
            return
        self._failed = ""
        end = self._clock() + seconds
        applied = 0
        try:
            while (save := self._saves.first()) is not None:
                self._seen = ""  # the next request is about something else
                self._failed = apply(self._saves, backend, save)
                if self._failed:
                    self._try_after = self._clock() + TRY_AFTER
                    return
                applied += 1
                if self._clock() >= end:
                    return
        finally:
            if applied:
                self._saves.purge()

    @contextmanager
    def _counting(self) -> Iterator[None]:
        """Add to a StoreUnavailable how many saves wait."""
        try:
            yield
        except StoreUnavailable as error:
            count = self.waiting()
            if not count or "kept" in error.details:
                raise
            said = "1 save is" if count == 1 else f"{count} saves are"
            raise StoreUnavailable(
                f"{error.message}; {said} kept until then",
                hint=error.hint,
                details={**error.details, "kept": count},
            ) from error

    # -- what is kept, beside what is stored

    def _get(self, id_: str) -> tuple[Memory, KeptSave | None]:
        told = readings(id_)
        there = next((found for one in told if (found := self._saves.alias(one))), None)
        kept: list[KeptSave] = []
        for one in told:
            kept = kept or self._saves.starting_with(one, backend_rules.MATCHES_MAX)
        if len(kept) == 1 and kept[0].id in told and there is None:
            # What the person sees of it is its place in the queue; it may be stored any moment.
            return self._now_stored(kept[0])
        try:
            with self._counting():
                stored = [self._ready().get(there or id_)]
        except (NotFound, StoreUnavailable):
            kept = [one for one in kept if self._waits(one)]
            if not kept:
                raise
            stored = []
        if stored and (there or stored[0].id in told):
            return stored[0], None
        kept = [one for one in kept if self._waits(one)]
        matches = stored + [one.memory() for one in kept]
        if len(matches) == 1:
            return matches[0], None if stored else kept[0]
        raise backend_rules.ambiguous(id_, matches)

    def _now_stored(self, save: KeptSave) -> tuple[Memory, KeptSave | None]:
        if save.refused is None:
            try:
                backend = self._ready()
                if not self._waits(save):
                    return backend.get(self._saves.alias(save.id) or save.id), None
            except StoreUnavailable:
                pass
        return save.memory(), save

    def _waits(self, save: KeptSave) -> bool:
        return any(one.id == save.id for one in self._saves.starting_with(save.id, 1))

    def _refusals(self, count: int) -> str:
        last = self._saves.last_refused() if count else None
        if last is None:
            return ""
        return (
            f"{count} kept {'save was' if count == 1 else 'saves were'} refused by the store, at"
            f" last {last.id}: {last.refused} (relay memory show {last.id}, then save it anew or"
            f" relay memory forget {last.id})"
        )


def _checked_id(id_: str) -> str:
    found = id_.strip().lower()
    if not ID_PATTERN.fullmatch(found):
        raise UsageError(f"{id_[:80]!r} cannot be an id", hint="give the id of a memory")
    return found


def apply(saves: KeptSaves, backend: Backend, save: KeptSave) -> str:
    """Give ``save`` to the store. "" when the next one may be tried: it is stored, or refused.

    Else why the store failed. Raises StoreUnavailable and ConfigError: no save can be stored now.
    """
    if save.tries >= TRIES_MAX:
        saves.refuse(save, "the store's process ended each time it was to store it")
        return ""
    # Counted before: the process may die of it.
    saves.trying(save)
    try:
        id_ = _stored(saves, backend, save)
    except (StoreUnavailable, ConfigError):
        saves.untried(save)
        raise
    except (UsageError, NotFound, Forbidden) as error:
        saves.refuse(save, error.message)
        return ""
    except Exception as error:
        why = error.message if isinstance(error, RelayError) else f"{error!r}"[:500]
        if save.tries + 1 < TRIES_MAX:
            return why
        saves.refuse(save, why)
        return ""
    saves.applied(save, id_)
    return ""


def check_may_replace(backend: Backend, save: KeptSave) -> None:
    """Raises Forbidden when an agent supersedes what it could not be shown when it asked for that,
    and what is not its own.

    Narrower than what one may who is there: nothing of another project than the save's own.
    """
    if save.supersedes is None or save.agent is None:
        return
    old = backend.get(save.supersedes)
    own = (save.place, Place(Scope.AGENT, save.agent), Place(Scope.USER))
    if old.place not in own or not may_replace(old, save.agent, (save.meta or {}).get(ORIGIN)):
        raise Forbidden(
            f"{save.agent} may not replace a memory of {old.place}", hint="ask the person"
        )


def _stored(saves: KeptSaves, backend: Backend, save: KeptSave) -> str:
    """The id under which the store has it now."""
    if save.supersedes is not None:
        save = replace(save, supersedes=saves.alias(save.supersedes) or save.supersedes)
        check_may_replace(backend, save)
    saved = backend.save(
        save.text,
        save.place,
        agent=save.agent,
        session=save.session,
        supersedes=save.supersedes,
        meta=save.meta,
        now_ms=save.now_ms,
        new_id=save.id,
    )
    return saved.memory.id
