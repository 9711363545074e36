"""Aligns a new look at a screen with the rows that were seen on it before. Pure.

Rows are compared without their whitespace. Alignment is anchored: the heaviest increasing
sequence of equal rows is taken as the same rows, and what stands between two anchors is compared
as one stream of characters, so that a reflow to another width is not new text. Lines that are shown
in other rows than they were are remembered in those: else nothing would anchor them any more, and
the same words said again below could be taken for them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

#: Rows that are remembered; older ones are forgotten and would be emitted again.
KEEP = 2000
_PER_KEY = 6  # places of one row that are compared at least, the latest ones
_PAIRS = 2000  # ... and more while all together stay below this
_NEIGHBOUR = 2.0
#: What stood for so many seconds, and was wiped then, has been said.
READ = 0.3
_OVERLAID = 12  # characters that must still show


@dataclass(slots=True, eq=False)
class Entry:
    """One row that was seen. Times in seconds of the caller's clock."""

    key: str
    emitted: bool
    born_at: float  # when a row first stood in this place
    changed_at: float  # when it last became another
    seen_at: float  # when it was last on the screen
    owner: str = ""  # whose words they are; the caller's to set
    alias: bool = False  # a part of other entries, shown in other rows than they are


@dataclass(slots=True)
class Aligned:
    """The entry of each row of a look, and the entries that were gone before they settled."""

    entries: list[Entry]
    gone: list[Entry]
    changed: bool


class ScreenAlignment:
    """The rows seen so far, oldest first, with which a new look is aligned."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add_emitted(self, keys: Sequence[str], now: float) -> None:
        """Add rows that were emitted without a look."""
        self.entries += [Entry(key, True, now, now, now) for key in keys if key]
        self._trim()

    def align(
        self,
        keys: Sequence[str],
        now: float,
        last_look: float,
        *,
        resized: bool = False,
        stood: Sequence[Entry] = (),
        anew: bool = False,
    ) -> Aligned:
        """Find the rows ``keys`` of a look; those that are new become entries, not emitted yet.

        ``resized``: lately, so that they may be what was in view at the last look, wrapped anew.
        ``stood``: what was seen last in the place of the first of ``keys``, and below it.
        ``anew``: the screen was wiped before, so that nothing has scrolled away.
        """
        if resized:
            self._reflow_view(keys, last_look)
        pairs = self._pairs(keys, stood, anew=anew)
        if self._reflow(pairs, keys):
            pairs = self._pairs(keys, stood, anew=anew)
        result: list[Entry] = []
        merged: list[Entry] = []
        left: list[Entry] = []
        changed = False
        there_already = {number for _, number in pairs}
        fresh = [key for number, key in enumerate(keys) if number not in there_already]
        ends = [*pairs, (len(self.entries), len(keys))]
        here = there = 0
        for index, (entry_at, key_at) in enumerate(ends):
            gap, rows = self.entries[here:entry_at], keys[there:key_at]
            visible = index > 0 and entry_at < len(self.entries)
            # Above the first row that is still there nothing is redrawn: it scrolled away.
            above = index == 0 and bool(pairs) and not anew
            shown = [e for e in gap if e.emitted and e.seen_at >= last_look] if visible else []
            placed, kept = _fill(gap, rows, now, replace=not above, shown=shown)
            if above:
                text = "".join(rows)  # what stands there now, wrapped anew, has not left
                kept = [e for e in kept if e.emitted or e.key not in text]
                left = [e for e in kept if not e.emitted and e.seen_at >= last_look]
            else:
                # What is gone was wiped. If it could be read, it was said; else it never was.
                wiped = [e for e in kept if e.seen_at >= last_look and _was_read(e, fresh, now)]
                left += wiped
                kept = [e for e in kept if e.emitted or not visible or e in wiped]
            changed = changed or any(not entry.emitted for entry in placed)
            merged += kept + [entry for entry in placed if not entry.alias]
            result += placed
            if entry_at < len(self.entries):
                entry = self.entries[entry_at]
                merged.append(entry)
                result.append(entry)
            here, there = entry_at + 1, key_at + 1
        for entry in result:
            entry.seen_at = now
        self.entries = [e for e in merged if e.emitted or e.seen_at == now or now - e.seen_at < 2.0]
        self._trim()
        return Aligned(result, left, changed)

    def _pairs(
        self, keys: Sequence[str], stood: Sequence[Entry], *, anew: bool
    ) -> list[tuple[int, int]]:
        """The places of equal rows: from the top those that still stand, then what matches best.

        What is drawn below rows that still stand is never taken for what stands above them: there
        the same words are said again. A picture that was drawn ``anew`` may begin elsewhere.
        """
        first = max(0, len(self.entries) - KEEP // 2) if stood else len(self.entries)
        places = {id(self.entries[n]): n for n in range(first, len(self.entries))}
        pairs: list[tuple[int, int]] = []
        below = 0
        for number, (entry, key) in enumerate(zip(stood, keys, strict=False)):
            place = places.get(id(entry), -1)
            if entry.key != key or place < below:
                break
            pairs.append((place, number))
            below = place + 1
        done = len(pairs)
        rest = match([entry.key for entry in self.entries[below:]], keys[done:])
        pairs += [(below + place, done + number) for place, number in rest]
        if anew and done:
            best = match([entry.key for entry in self.entries], keys)
            return best if _weight(best, keys) > _weight(pairs, keys) else pairs
        return pairs

    def _reflow_view(self, keys: Sequence[str], last_look: float) -> None:
        """Cut what was in view into the rows that ``keys`` shows of it.

        Before anything is matched: older entries may be as wide as these rows, and alike.
        """
        seen = (n for n, entry in enumerate(self.entries) if entry.seen_at >= last_look)
        top = next(seen, len(self.entries))
        # In wider rows there is room for some of what stands above.
        first = max(0, top - len(keys))
        # What was wiped (the last turns of a spinner) stands between no rows that are in view.
        wiped = {id(entry) for entry in self.entries[top:] if entry.seen_at < last_look}
        cut = _cut(self.entries[first:], keys, top=True, without=wiped)
        if cut is not None:
            self.entries[first:] = cut

    def _reflow(self, pairs: list[tuple[int, int]], keys: Sequence[str]) -> bool:
        """Cut the entries between the anchors into the rows that ``keys`` shows of them."""
        reflown: list[Entry] = []
        found = False
        here = there = 0
        for entry_at, key_at in [*pairs, (len(self.entries), len(keys))]:
            gap = self.entries[here:entry_at]
            cut = _cut(gap, keys[there:key_at], top=not there) if gap else None
            found = found or cut is not None
            reflown += (gap if cut is None else cut) + self.entries[entry_at : entry_at + 1]
            here, there = entry_at + 1, key_at + 1
        if found:
            self.entries = reflown
        return found

    def _trim(self) -> None:
        if len(self.entries) > KEEP + 200:
            del self.entries[:-KEEP]


def _cut(
    gap: list[Entry], rows: Sequence[str], *, top: bool, without: Collection[int] = ()
) -> list[Entry] | None:
    """``gap`` in such rows as ``rows`` shows of it; None: in no others than it is.

    Only whole lines are cut anew, from the beginning of an entry to the end of one. ``top``: the
    first of the rows is the first in view, and may be the middle of a line. ``without``: the
    entries (their ``id``) that are left as they are.
    """
    emitted = [entry for entry in gap if entry.emitted and id(entry) not in without]
    stream = "".join(entry.key for entry in emitted)
    starts = [0, *accumulate(len(entry.key) for entry in emitted)]
    bounds, lines = set(starts), dict(zip(starts, (entry.key for entry in emitted), strict=False))
    pieces: dict[int, str] = {}
    end, last = len(stream), len(rows)
    while emitted and last:
        run = _run_up(stream, end, rows[:last], bounds, top=top)
        if any(lines.get(start) != row for start, row in run.items()):
            pieces |= run
        end = min(run, default=end)
        last -= max(1, len(run))
    return _recut(gap, pieces, without) if pieces else None


def _run_up(
    stream: str, end: int, rows: Sequence[str], bounds: set[int], *, top: bool
) -> dict[int, str]:
    """The last of ``rows``, as many as stand one behind the other in ``stream[:end]``, by place.

    The last of all ends where an entry does, the first begins where one does.
    """
    start = stream.rfind(rows[-1], 0, end)
    while start >= 0 and start + len(rows[-1]) not in bounds:
        start = stream.rfind(rows[-1], 0, start + len(rows[-1]) - 1)
    run: dict[int, str] = {}
    whole: dict[int, str] = {}
    at = len(rows) - 1
    while start >= 0 and at >= 0 and stream.startswith(rows[at], start):
        run[start] = rows[at]
        if start in bounds or (top and not at and len(rows[at]) >= _OVERLAID):
            whole = dict(run)
        at -= 1
        start -= len(rows[at])
    return whole


def _recut(gap: list[Entry], pieces: dict[int, str], without: Collection[int]) -> list[Entry]:
    """``gap``, of which the emitted characters have ``pieces`` at these places."""
    recut: list[Entry] = []
    start = covered = 0
    for entry in gap:
        if not entry.emitted or id(entry) in without:
            recut.append(entry)
            continue
        end = start + len(entry.key)
        places = [place for place in range(start, end) if place in pieces]
        rest = places[0] if places else end
        if covered <= start < rest:  # above the first of them, or all of it
            key = entry.key[: rest - start]
            recut.append(entry if key == entry.key else replace(entry, key=key))
        for place in places:
            recut.append(replace(entry, key=pieces[place]))
            covered = place + len(pieces[place])
        start = end
    return recut


def _fill(
    gap: list[Entry], rows: Sequence[str], now: float, *, replace: bool, shown: list[Entry]
) -> tuple[list[Entry], list[Entry]]:
    """Entries for ``rows``, none of which equals its place in ``gap``; and what is left of it.

    ``replace``: rows of the gap that have not settled are earlier forms of the new ones; else only
    those that a new one begins with.
    ``shown``: those of the gap over which something may be drawn now.
    """
    if not rows:
        return [], gap
    emitted = "".join(entry.key for entry in gap if entry.emitted)
    waiting = [e for e in gap if not e.emitted and (replace or _has_grown(e.key, rows))]
    replaced = set(map(id, waiting))
    placed: list[Entry] = []
    at = 0
    for row in rows:
        found = emitted.find(row, at)
        if found >= 0:
            at = found + len(row)
        under = None if row in emitted else _overlaid(row, shown)
        if row in emitted or under:
            if under:
                under.seen_at = now
            # The same text in other rows. The old ones are kept: they are the better memory.
            placed.append(Entry(row, True, now, now, now, alias=True))
            continue
        old = waiting.pop(0) if waiting else None
        placed.append(Entry(row, False, old.born_at if old else now, now, now))
    replaced -= set(map(id, waiting))
    return placed, [entry for entry in gap if id(entry) not in replaced]


def _was_read(entry: Entry, rows: Sequence[str], now: float) -> bool:
    """Whether an entry that is gone stood for long enough, and is nowhere among ``rows``."""
    stood = not entry.emitted and now - entry.changed_at >= READ
    return stood and entry.key not in "".join(rows)  # grown, or wrapped anew


def _has_grown(key: str, rows: Sequence[str]) -> bool:
    return any(row.startswith(key) for row in rows)


def _overlaid(row: str, shown: list[Entry]) -> Entry | None:
    """The one of ``shown`` that ``row`` is, with something (a hint, a menu) drawn over its end."""
    need = max(_OVERLAID, len(row) * 2 // 5)
    for entry in shown if len(row) >= need else ():
        if entry.key[:need] == row[:need] and not row.startswith(entry.key):
            return entry
    return None


def match(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """The heaviest sequence of equal pairs (old index, new index) that increases in both.

    Long rows weigh more than short ones, neighbours more than scattered ones, late places a
    little more than early ones.
    """
    places: dict[str, list[int]] = {}
    wanted = set(new)
    each = max(_PER_KEY, _PAIRS // max(1, len(new)))
    for index in range(len(old) - 1, -1, -1):
        key = old[index]
        if key in wanted:
            kept = places.setdefault(key, [])
            if len(kept) < each:
                kept.append(index)
    return _heaviest([(places.get(key, []), key) for key in new], len(old))


def _row_weight(key: str) -> float:
    return 1.0 + min(len(key), 40) / 8


def _weight(pairs: list[tuple[int, int]], keys: Sequence[str]) -> float:
    """How much of ``keys`` is explained by ``pairs``, wherever they stand."""
    return sum(_row_weight(keys[number]) for _, number in pairs)


def _heaviest(rows: list[tuple[list[int], str]], size: int) -> list[tuple[int, int]]:
    """The chain of ``match``: for each new row its places among ``size`` old ones, and its key."""
    # Chains by number: where each ends, and the chain before it. There are thousands of them.
    links: list[tuple[int, int, int]] = []  # (place, row, number of the chain before or -1)
    # A Fenwick tree over the old indexes: the heaviest chain that ends at or before each.
    scores, chains = [0.0] * (size + 1), [-1] * (size + 1)
    above: dict[int, tuple[float, int]] = {}
    best, best_score = -1, 0.0
    for index, (places, key) in enumerate(rows):
        here: dict[int, tuple[float, int]] = {}
        weight = _row_weight(key)
        for place in places:
            own = weight + place / size
            before, score = -1, 0.0
            at = place
            while at > 0:
                if scores[at] > score:
                    score, before = scores[at], chains[at]
                at &= at - 1
            score += own
            neighbour = above.get(place - 1)
            if neighbour is not None and neighbour[0] + own + _NEIGHBOUR > score:
                score, before = neighbour[0] + own + _NEIGHBOUR, neighbour[1]
            here[place] = (score, len(links))
            links.append((place, index, before))
        # Only now: two places of one row cannot follow each other.
        for place, (score, number) in here.items():
            if score > best_score:
                best, best_score = number, score
            at = place + 1
            while at <= size:
                if score > scores[at]:
                    scores[at], chains[at] = score, number
                at += at & -at
        above = here
    chain: list[tuple[int, int]] = []
    while best >= 0:
        place, row, best = links[best]
        chain.append((place, row))
    return chain[::-1]
