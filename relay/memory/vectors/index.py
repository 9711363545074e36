"""Finding memories by id, by what they say and by time: asked of the store, or from a catalogue.

A store on a server may be written by others at any time, so it is asked each time. One in a folder
has one owner: its catalogue is read once and then follows what that owner writes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from relay.memory.records import Memory, Place
from relay.memory.vectors import payload
from relay.memory.vectors.port import Found, Points

#: Near duplicates that are looked at, and followers of one memory: there are a few at most.
_FEW = 200
_PAGE = 256


class Index(Protocol):
    """The ways to find memories but by searching."""

    def by_ids(self, ids: Iterable[str]) -> dict[str, Found]:
        """Those of ``ids`` that are there."""

    def starting_with(self, prefix: str, limit: int) -> list[Found]:
        """The one whose id is ``prefix``, else those whose id begins so."""

    def alike(self, place: Place, near: str) -> list[Found]:
        """Those in ``place`` with this near key."""

    def superseding(self, id_: str) -> list[Found]:
        """Those that replace ``id_``, wherever they are."""

    def superseded(self, place: Place) -> set[str]:
        """The ids that memories of ``place`` replace."""

    def newest(
        self, places: Sequence[Place], limit: int, before: tuple[int, str] | None
    ) -> list[Memory]:
        """The newest first by (updated_ms, id), before that."""

    def ids(self, place: Place) -> list[tuple[str, str]]:
        """(id, key) of all in ``place``, by id."""

    def counts(self) -> dict[Place, int]:
        """How many there are, by place."""

    def put(self, found: Found) -> None:
        """It was written."""

    def drop(self, found: Found) -> None:
        """It was removed."""

    def spoilt(self) -> None:
        """Something went wrong while writing: what is there is no longer known."""


class Asked:
    """Everything is asked of the store."""

    def __init__(self, points: Points) -> None:
        self._points = points

    def by_ids(self, ids: Iterable[str]) -> dict[str, Found]:
        wanted = list(dict.fromkeys(ids))
        return {
            one.memory.id: one
            for start in range(0, len(wanted), _FEW)
            for one in self._points.with_ids(wanted[start : start + _FEW])
        }

    def starting_with(self, prefix: str, limit: int) -> list[Found]:
        exact = self._points.match({payload.ID: prefix}, limit)
        if exact:
            return exact
        near = self._points.match({payload.HEAD: payload.head(prefix)}, 4 * _FEW)
        begun = sorted(
            (one for one in near if one.memory.id.startswith(prefix)), key=lambda one: one.memory.id
        )
        return begun[:limit]

    def alike(self, place: Place, near: str) -> list[Found]:
        fields = {payload.PLACE: payload.place_name(place), payload.NEAR: near}
        return self._points.match(fields, _FEW)

    def superseding(self, id_: str) -> list[Found]:
        return self._points.match({payload.SUPERSEDES: id_}, _FEW)

    def superseded(self, place: Place) -> set[str]:
        fields = {payload.PLACE: payload.place_name(place), payload.REPLACES: "yes"}
        rows = self._points.scan(fields, [payload.SUPERSEDES])
        return {str(fields[payload.SUPERSEDES]) for _, fields in rows}

    def newest(
        self, places: Sequence[Place], limit: int, before: tuple[int, str] | None
    ) -> list[Memory]:
        return self._points.newest(places, limit, before)

    def ids(self, place: Place) -> list[tuple[str, str]]:
        rows = self._points.scan({payload.PLACE: payload.place_name(place)}, [payload.ID])
        return sorted((str(fields[payload.ID]), key) for key, fields in rows)

    def counts(self) -> dict[Place, int]:
        return self._points.counts()

    def put(self, found: Found) -> None:
        """Nothing is kept."""

    def drop(self, found: Found) -> None:
        """Nothing is kept."""

    def spoilt(self) -> None:
        """Nothing is kept."""


@dataclass(frozen=True, slots=True)
class _Card:
    key: str
    id: str
    place: Place
    near: str
    supersedes: str
    updated_ms: int


class Catalogue:
    """A card for each memory, about 500 bytes; the memories themselves are fetched."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._read = False
        self._clear()

    def _clear(self) -> None:
        self._cards: dict[str, _Card] = {}
        self._sorted: list[str] = []
        self._near: dict[tuple[Place, str], set[str]] = {}
        self._followers: dict[str, set[str]] = {}
        self._times: dict[Place, list[tuple[int, str]]] = {}

    def _known(self) -> None:
        """Read the catalogue when it is not there."""
        if self._read:
            return
        self._clear()
        places: dict[object, Place | None] = {}
        for key, fields in self._points.scan({}, payload.LIGHT):
            name = fields.get(payload.PLACE)
            place = places.setdefault(name, payload.place_of(name))
            if place is not None:
                self._file(_card(key, place, fields))
        self._sorted = sorted(self._cards)
        for times in self._times.values():
            times.sort()
        self._read = True

    def _file(self, card: _Card) -> None:
        self._cards[card.id] = card
        self._near.setdefault((card.place, card.near), set()).add(card.id)
        if card.supersedes:
            self._followers.setdefault(card.supersedes, set()).add(card.id)
        self._times.setdefault(card.place, []).append((card.updated_ms, card.id))

    def by_ids(self, ids: Iterable[str]) -> dict[str, Found]:
        return {one.memory.id: one for one in self._fetch(ids)}

    def starting_with(self, prefix: str, limit: int) -> list[Found]:
        self._known()
        if prefix in self._cards:
            return self._fetch([prefix])
        at = bisect_left(self._sorted, prefix)
        begun = [one for one in self._sorted[at : at + limit] if one.startswith(prefix)]
        return sorted(self._fetch(begun), key=lambda one: one.memory.id)

    def alike(self, place: Place, near: str) -> list[Found]:
        self._known()
        return self._fetch(self._near.get((place, near), ()))

    def superseding(self, id_: str) -> list[Found]:
        self._known()
        return self._fetch(self._followers.get(id_, ()))

    def superseded(self, place: Place) -> set[str]:
        self._known()
        return {
            old
            for old, followers in self._followers.items()
            if any(self._cards[one].place == place for one in followers)
        }

    def newest(
        self, places: Sequence[Place], limit: int, before: tuple[int, str] | None
    ) -> list[Memory]:
        self._known()
        last: list[tuple[int, str]] = []
        for place in places:
            times = self._times.get(place, [])
            end = len(times) if before is None else bisect_left(times, before)
            last += times[max(0, end - limit) : end]
        ids = [id_ for _, id_ in sorted(last, reverse=True)[:limit]]
        found = self.by_ids(ids)
        return [found[id_].memory for id_ in ids if id_ in found]

    def ids(self, place: Place) -> list[tuple[str, str]]:
        self._known()
        return sorted((id_, self._cards[id_].key) for _, id_ in self._times.get(place, ()))

    def counts(self) -> dict[Place, int]:
        self._known()
        return {place: len(times) for place, times in self._times.items() if times}

    def put(self, found: Found) -> None:
        if not self._read:
            return
        self.drop(found)
        card = _card(found.key, found.memory.place, payload.to_payload(found.memory))
        self._file(card)
        insort(self._sorted, card.id)
        times = self._times[card.place]
        insort(times, times.pop())

    def drop(self, found: Found) -> None:
        card = self._cards.pop(found.memory.id, None)
        if card is None:
            return
        del self._sorted[bisect_left(self._sorted, card.id)]
        times = self._times[card.place]
        del times[bisect_left(times, (card.updated_ms, card.id))]
        _discard(self._near, (card.place, card.near), card.id)
        _discard(self._followers, card.supersedes, card.id)

    def spoilt(self) -> None:
        self._read = False

    def _fetch(self, ids: Iterable[str]) -> list[Found]:
        self._known()
        keys = [self._cards[id_].key for id_ in dict.fromkeys(ids) if id_ in self._cards]
        return [
            found
            for start in range(0, len(keys), _PAGE)
            for found in self._points.fetch(keys[start : start + _PAGE])
        ]


def _card(key: str, place: Place, fields: Mapping[str, object]) -> _Card:
    updated = fields.get(payload.UPDATED)
    return _Card(
        key,
        str(fields.get(payload.ID)),
        place,
        str(fields.get(payload.NEAR)),
        str(fields.get(payload.SUPERSEDES) or ""),
        updated if isinstance(updated, int) else 0,
    )


def _discard(sets: dict[Any, set[str]], key: object, one: str) -> None:
    """Take it out of its set; an empty set goes."""
    if key in sets:
        sets[key].discard(one)
        if not sets[key]:
            del sets[key]
