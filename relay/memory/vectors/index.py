"""Finding memories by id, by what they say and by time: asked of the store, or from a catalogue.

A store on a server may be written by others at any time, so it is asked each time. One in a folder
has one owner: its catalogue is read once and then follows what that owner writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

from relay.memory.records import Memory, Place
from relay.memory.vectors import payload
from relay.memory.vectors.port import Found, Points

#: Near duplicates that are looked at, and followers of one memory: there are a few at most.
_FEW = 200


class Asked:
    """Everything is asked of the store."""

    def __init__(self, points: Points) -> None:
        self._points = points

    def by_ids(self, ids: Iterable[str]) -> dict[str, Found]:
        """Those of ``ids`` that are there."""
        wanted = list(dict.fromkeys(ids))
        return {
            one.memory.id: one
            for start in range(0, len(wanted), _FEW)
            for one in self._points.with_ids(wanted[start : start + _FEW])
        }

    def starting_with(self, prefix: str, limit: int) -> list[Found]:
        """The one whose id is ``prefix``, else those whose id begins so."""
        exact = self._points.match({payload.ID: prefix}, limit)
        if exact:
            return exact
        near = self._points.match({payload.HEAD: payload.head(prefix)}, 4 * _FEW)
        begun = sorted(
            (one for one in near if one.memory.id.startswith(prefix)), key=lambda one: one.memory.id
        )
        return begun[:limit]

    def alike(self, place: Place, near: str) -> list[Found]:
        """Those in ``place`` with this near key."""
        fields = {payload.PLACE: payload.place_name(place), payload.NEAR: near}
        return self._points.match(fields, _FEW)

    def superseding(self, id_: str) -> list[Found]:
        """Those that replace ``id_``, wherever they are."""
        return self._points.match({payload.SUPERSEDES: id_}, _FEW)

    def superseded(self, place: Place) -> set[str]:
        """The ids that memories of ``place`` replace."""
        fields = {payload.PLACE: payload.place_name(place), payload.REPLACES: "yes"}
        rows = self._points.scan(fields, [payload.SUPERSEDES])
        return {str(fields[payload.SUPERSEDES]) for _, fields in rows}

    def newest(
        self, places: Sequence[Place], limit: int, before: tuple[int, str] | None
    ) -> list[Memory]:
        """The newest first by (updated_ms, id), before that."""
        return self._points.newest(places, limit, before)

    def ids(self, place: Place) -> list[tuple[str, str]]:
        """(id, key) of all in ``place``, by id."""
        rows = self._points.scan({payload.PLACE: payload.place_name(place)}, [payload.ID])
        return sorted((str(fields[payload.ID]), key) for key, fields in rows)

    def counts(self) -> dict[Place, int]:
        """How many there are, by place."""
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
    """A card for each memory, read once and looked through one by one: 100 000 take some 10 ms. The
    memories themselves are fetched. The methods are those of Asked."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._cards: dict[str, _Card] | None = None  # by id

    def _known(self) -> dict[str, _Card]:
        """The cards; read when they are not there."""
        if self._cards is None:
            found: dict[str, _Card] = {}
            for key, fields in self._points.scan({}, payload.LIGHT):
                place = payload.place_of(fields.get(payload.PLACE))
                if place is not None:
                    card = _card(key, place, fields)
                    found[card.id] = card
            self._cards = found
        return self._cards

    def by_ids(self, ids: Iterable[str]) -> dict[str, Found]:
        return {one.memory.id: one for one in self._fetch(ids)}

    def starting_with(self, prefix: str, limit: int) -> list[Found]:
        if prefix in self._known():
            return self._fetch([prefix])
        begun = sorted(id_ for id_ in self._known() if id_.startswith(prefix))
        return sorted(self._fetch(begun[:limit]), key=lambda one: one.memory.id)

    def alike(self, place: Place, near: str) -> list[Found]:
        cards = self._known().values()
        return self._fetch(one.id for one in cards if one.near == near and one.place == place)

    def superseding(self, id_: str) -> list[Found]:
        return self._fetch(one.id for one in self._known().values() if one.supersedes == id_)

    def superseded(self, place: Place) -> set[str]:
        cards = self._known().values()
        return {one.supersedes for one in cards if one.supersedes and one.place == place}

    def newest(
        self, places: Sequence[Place], limit: int, before: tuple[int, str] | None
    ) -> list[Memory]:
        wanted = set(places)
        times = ((one.updated_ms, one.id) for one in self._known().values() if one.place in wanted)
        earlier = (time for time in times if before is None or time < before)
        ids = [id_ for _, id_ in nlargest(limit, earlier)]
        found = self.by_ids(ids)
        return [found[id_].memory for id_ in ids if id_ in found]

    def ids(self, place: Place) -> list[tuple[str, str]]:
        return sorted((one.id, one.key) for one in self._known().values() if one.place == place)

    def counts(self) -> dict[Place, int]:
        return dict(Counter(one.place for one in self._known().values()))

    def put(self, found: Found) -> None:
        """It was written."""
        if self._cards is not None:
            card = _card(found.key, found.memory.place, payload.to_payload(found.memory))
            self._cards[card.id] = card

    def drop(self, found: Found) -> None:
        """It was removed."""
        if self._cards is not None:
            self._cards.pop(found.memory.id, None)

    def spoilt(self) -> None:
        """Something went wrong while writing: what is there is no longer known."""
        self._cards = None

    def _fetch(self, ids: Iterable[str]) -> list[Found]:
        cards = self._known()
        keys = [cards[id_].key for id_ in dict.fromkeys(ids) if id_ in cards]
        return self._points.fetch(keys)


Index = Asked | Catalogue


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
