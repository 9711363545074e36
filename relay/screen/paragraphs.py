"""Groups the rows of a look, each with what is known of it, into what is said together. Pure.

Apart from ``relay.screen.redraw_reader``, its one user, which would be too long with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any

from relay.screen.alignment import Entry
from relay.screen.rows import Kind, Row

#: The rows of a look from the top, each with its entry.
View = list[tuple[Row, Entry]]
#: A paragraph, whether it is the last text, and when it came.
Unsettled = tuple[View, bool, float]

#: For people: a message may stand where none is heard.
HIDDEN = (
    "a line that begins like a message stands in a frame or behind a bar, where relay takes it for"
    " a dialog's or a quotation's: a profile helps if it was the agent's (docs/profiles.md)"
)
#: For the agent, where it has said no message that could be heard.
HIDDEN_AGENT = (
    "nothing was sent: a line on your screen begins like a message, but stands in a frame or behind"
    " a bar, and relay takes such text for a quotation. If you meant it as a message, use `relay"
    " send NAME TEXT` in a shell: your program seems to draw all of your answers like that."
    " Otherwise do nothing"
)
SPOKEN = (Kind.AGENT, Kind.PERSON)
_OWNERS = (Kind.AGENT, Kind.PERSON, Kind.TOOL)


def keep_beginning(view: View, before: View) -> None:
    """Keep how a row is joined to the one above it, which has scrolled away.

    It is the first one, or the first below what the program keeps at the top.
    """
    was = {id(entry): row for row, entry in before}
    above = {id(entry): up for (_, up), (_, entry) in pairwise(before)}
    stands = {id(entry) for _, entry in view}
    for number, (row, entry) in enumerate(view):
        old, up = was.get(id(entry)), above.get(id(entry))
        if old and (not number or old.is_rest or (up and id(up) not in stands)):
            row.gap, row.joins, row.is_rest = old.gap, old.joins, old.joins is not None
        if row.is_rest or up is not (view[number - 1][1] if number else None):
            break


def place_of(view: View, last: Entry | None) -> int:
    """Return where ``last`` stands, or else the last row that is like it; -1: nowhere."""
    like = [n for n, (_, entry) in enumerate(view) if last and entry.key == last.key]
    return next((n for n in like if view[n][1] is last), like[-1] if like else -1)


def recall(view: View, last: Entry | None) -> None:
    """Take what is printed again above the line that was emitted last for emitted."""
    at = max((n for n, (_, entry) in enumerate(view) if entry is last), default=0)
    for row, entry in view[:at]:
        if row.kind in SPOKEN:
            entry.emitted = True


def stands_grown(view: View, one: tuple[Row, Entry]) -> bool:
    """Whether below ``one``, as it was before a resize, stands a row that begins like it."""
    row, entry = one
    at = next((n for n, (_, other) in enumerate(view) if other is entry), 0)
    below = (other.key for _, other in view[at + 1 :])
    return any(key != row.key and key.startswith(row.key) for key in below)


def first_born(paragraph: View) -> float:
    """Return when the first row of a paragraph came."""
    return min(entry.born_at for _, entry in paragraph)


def changed_at(paragraph: View) -> float:
    """Return when a row of a paragraph last became another."""
    return max(entry.changed_at for _, entry in paragraph)


def keep_owners(view: View, *, gaps: bool) -> None:
    """Keep whose each row was at first: its mark (a chevron, a corner) may scroll away.

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


def may_be_emitted(row: Row, entry: Entry) -> bool:
    """Whether it is somebody's words, and was not emitted yet."""
    return not entry.emitted and row.kind in SPOKEN


def paragraphs(view: View) -> Iterator[View]:
    """Yield the rows that belong to one line each; the person's rows one block each."""
    paragraph: View = []
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


def unsettled(view: View) -> list[Unsettled]:
    """Return the paragraphs that are not emitted yet, from the top."""
    latest = -1.0  # when the youngest text below came: a footer does not end the text above it
    found: list[Unsettled] = []
    partial = False
    for paragraph in reversed(list(paragraphs(view))):
        kind = paragraph[0][0].kind
        if kind not in SPOKEN:
            partial = False
            continue
        born = first_born(paragraph)
        last = born > latest
        if any(not entry.emitted for _, entry in paragraph):
            found.append((paragraph, last or partial, born))
        # A word that is still being written may turn out to have been wrapped, and some
        # programs show the end of what they have got below what they have drawn so far.
        partial = last and len(paragraph) == 1 and paragraph[0][0].partial
        if kind is Kind.AGENT and born > latest:
            latest = born
    return found[::-1]


def hidden(row: Row, namespaces: Collection[str]) -> str:
    """The text of ``row`` that begins like a message in a frame or behind a quotation's bar; ""."""
    if "@" not in row.text or row.kind not in (Kind.AGENT, Kind.OTHER):
        return ""
    bare = row.text.lstrip(" >│┃║")
    quoted = row.kind is Kind.OTHER or bare != row.text.lstrip()
    return bare if quoted and any(bare.startswith(f"@{name}:") for name in namespaces) else ""


def lines_of(rows: list[Row], begun: str = "") -> Iterator[str]:
    """Yield the lines that ``rows`` make. ``begun``: the first of them goes on with that."""
    text = begun
    for row in rows:
        if text and row.joins is None and not begun:
            yield text
            text = ""
        text += (row.joins or "") + row.text.strip() if text else row.text
        begun = ""
    if text:
        yield text


def fields_of(one: Row | Entry) -> dict[str, Any]:
    """Return the fields of ``one``, of which there are hundreds: ``to_json`` takes longer."""
    return {name: getattr(one, name) for name in one.__slots__}
