"""The rows in view with what is remembered of each: whose they are, what makes a line. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from relay.screen.alignment import Entry
from relay.screen.rows import Kind, Row

HEARD = (Kind.AGENT, Kind.PERSON)
_OWNERS = (Kind.AGENT, Kind.PERSON, Kind.TOOL)


def first_born(paragraph: list[tuple[Row, Entry]]) -> float:
    """When the first of its rows came."""
    return min(entry.born for _, entry in paragraph)


def keep_owners(view: list[tuple[Row, Entry]], *, gaps: bool) -> None:
    """A row stays whose it was at first: its mark (a chevron, a corner) may scroll away.

    And some programs keep the last prompt pinned above whatever scrolls by: what comes below a
    row that is known is of its kind, unless it has a mark of its own. ``gaps``: no tool's output
    goes on below a blank row.
    """
    looked = known = Kind.AGENT
    for row, entry in view:
        seems = row.kind
        if seems in _OWNERS:
            if entry.owner:
                row.kind = Kind(entry.owner)
            elif gaps and row.gap and known is Kind.TOOL and seems is Kind.AGENT:
                pass
            elif not row.marked and seems is looked:
                row.kind = known
            entry.owner = row.kind
        looked, known = seems, row.kind


def may_be_heard(row: Row, entry: Entry) -> bool:
    """Whether it is somebody's words, and was not put out yet."""
    return not entry.heard and row.kind in HEARD


def paragraphs(view: list[tuple[Row, Entry]]) -> Iterator[list[tuple[Row, Entry]]]:
    """The rows that belong to one line each; the person's rows one block each."""
    paragraph: list[tuple[Row, Entry]] = []
    for pair in view:
        row = pair[0]
        same = bool(paragraph) and paragraph[-1][0].kind is row.kind and not row.gap
        if same and (row.joins is not None or row.kind is Kind.PERSON):
            paragraph.append(pair)
            continue
        if paragraph:
            yield paragraph
        paragraph = [pair]
    if paragraph:
        yield paragraph
