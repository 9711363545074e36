"""Classifies the rows of a drawn screen, the agent's text, the person's, a tool's and decoration,
and groups them into what is said together.

Pure functions, the first ones over one snapshot. They go by what agents' programs have in common:
a bullet before the agent's words, a chevron before the person's, a corner before a tool's output.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from relay.screen.agent_styles import PANEL, UNKNOWN, AgentStyle, shown_text, width, without_bars
from relay.screen.alignment import Entry
from relay.screen.line_events import EchoMask, solid


class Snapshot(NamedTuple):
    """The logical rows of a screen, which of them holds the cursor, and the screen's width.

    ``typing``: the person writes at the cursor. ``works``: by what is known of the program, it
    shows that the agent is at work.
    """

    rows: list[str]
    cursor_line: int
    cols: int
    typing: bool = True
    works: bool = False


class Kind(StrEnum):
    AGENT = "agent"
    PERSON = "person"  # submitted: the person's words, or what relay typed
    DRAFT = "draft"  # in the input line
    TOOL = "tool"  # what a tool printed
    OTHER = "other"  # spinners, dialogs, what stands below the input line


@dataclass(slots=True)
class Row:
    """One row that is not blank. ``gap``: blank rows stand before it.

    ``joins``: None, or what belongs between the row before and this one, which continues it
    because the next word did not fit (a space, or nothing inside of an overlong word).
    ``marked``: its kind comes from a mark of its own, not from the row before. ``number``: which
    of the snapshot's rows it is.
    """

    text: str
    key: str
    kind: Kind
    gap: bool
    joins: str | None = None
    marked: bool = False
    number: int = -1
    blanks: int = 0  # blank rows right above it, and nothing else
    closing: bool = False  # it stands for ``>>>``
    finished: bool = False  # it says that the turn is over
    partial: bool = False  # below a full row: more of that may still come in between
    written: bool = False  # the cursor stands on it, where nobody types: it may still grow
    is_rest: bool = False  # it goes on with a row that has scrolled away


_RULE = re.compile(
    r"[\s─━═╌╍┄┅╴╶▔▁▀▄╭╮╰╯┌┐└┘├┤┬┴┼╔╗╚╝╠╣┏┓┗┛_-]+|\s*[▊▎▛▙▗▝█][▔▁▀▄]{3,}[▎▋▜▟▖▘█]\s*"
    r"|\s*[╭╰┌└┏┗╔╚][─━═]+ .+ [─━═]+[╮╯┐┘┓┛╗╝]\s*"  # a frame's edge with a title in it
    r"|\s*[─━═]{8,} .{1,40} [─━═]+\s*"  # a rule with one at its end
)
_QUOTE = re.compile(r"(\s*)[│┃║▎▌▍▏┆╎](\s?.*)")
#: Nothing but the bars of quotations; three of them are how renderers draw ``>>>``.
_BARS = re.compile(r"[\s│┃║▎▌▍▏┆╎]+")
_SPELLED = str.maketrans({bar: ">" for bar in "│┃║▎▌▍▏┆╎›"} | {"»": ">>"})
_CLOSING = re.compile(r"[\s>│┃║▎▌▍▏┆╎›»]{2,9}")
_SPINNER = re.compile(r"\s{0,4}[^\w\s@\"'(\[`#\\<>~$%&=-]\s+\S.*(…|\.\.\.|\besc\b)")
#: A spinner, a cursor of the program's own that stands alone, or how to interrupt it.
_BUSY = re.compile(r"\s*(?:[⠁-⣿](?: ?\S|$)|█$)|.*\besc (?:again )?(?:to )?(?:interrupt|cancel)\b")
#: A cursor of the program's own behind text that still grows.
_GROWS = re.compile(r"(?<=[^\s─-▟●])[●█▌▍▋]$")
_DIRECTIVE = re.compile(r"\s*(?:(?:[-*+•◦▪]|\d+[.)])\s+)?(?:\\?@[\w*-]+:|(?:>|&gt;){3}|```|~~~)")
_NAMED = re.compile(r"\s*@[\w*-]+:")
_OPENING = re.compile(r"(?:.*[\s:])?<<<$")
_LIST_ITEM = re.compile(r"\s*(?:[-*+•◦▪‣]|\d{1,3}[.)])\s")
_WORD = re.compile(r"\S+")
#: A character of Chinese or Japanese, and what may not begin a row behind it.
_UNSPACED = re.compile(
    "[\u2e80-\u30ff\u31f0-\u9fff\uf900-\ufaff\uff01-\uff60\U00020000-\U0003fffd]"
    "[、。〉》」』】〕！），．：；？ー・]*"
)
_WRAPPED = (Kind.AGENT, Kind.PERSON)
#: More rows than a look shows.
_ROWS_MAX = 1 << 20
#: A row with less room than this at its end may have been wrapped.
_FULL = 16
#: A panel that covers this part of the screen holds the conversation; a smaller one is a dialog,
#: a tool's output or the input line.
_PANEL_SHARE = 0.6


class _Traits(NamedTuple):
    """What can be told of a row by itself. Most rows of a look were in the one before too."""

    text: str  # without what is blank at its end
    solid: str
    rule: bool
    panel: str | None  # what stands in the frame
    quote: str | None  # the text with a mark that the grammar knows
    indent: int
    busy: bool
    speaks: bool  # a bullet before words, be it one that turns while they grow
    person: bool
    bullet: int  # the column behind it, or 0
    tool: int  # the column of a tool's words, or -1
    spinner: bool
    begins: bool  # a line of its own: it continues none
    directive: bool  # ... because of what it says, not because of a mark before it
    words: bool  # more words than the first
    word: int  # the columns of the first word
    columns: int  # ... and of the whole row
    unspaced: int  # the columns of the first character that needs no space before it, or 0
    call: bool  # begins what is nobody's words
    opening: bool  # begins a block
    closing: bool  # the end of a block, as it is drawn
    bars: bool  # nothing but bars
    finished: bool  # the end of a turn
    grows: bool  # a cursor of the program's own stands behind it


def _is_closing(text: str) -> bool:
    """Whether a row stands for ``>>>``: three quotations in one another with nothing in them."""
    if _CLOSING.fullmatch(text) is None or text.strip() == ">>>":
        return False
    return solid(text).translate(_SPELLED) == ">>>"


@lru_cache(maxsize=2048)
def _traits(row: str, style: AgentStyle) -> _Traits:
    text = shown_text(row, style)
    draws = not text.isascii()  # most rows hold nothing but words
    grows = _GROWS.search(text) if draws else None
    text = text[: grows.start()] if grows else text
    panel, quote = (PANEL.fullmatch(text), _QUOTE.fullmatch(text)) if draws else (None, None)
    closing = _is_closing(text)
    bullet, tool, word = style.bullet.match(text), style.tool.match(text), _WORD.search(text)
    unspaced = _UNSPACED.match(text.lstrip()) if draws else None
    return _Traits(
        text=text,
        solid=solid(text),
        rule=_RULE.fullmatch(text) is not None and style.person.match(text) is None,
        panel=(panel[1] + panel[2]).rstrip() if panel else None,
        quote=f"{quote[1]}>{quote[2]}" if quote else None,
        indent=len(text) - len(text.lstrip(" ")),
        busy=_BUSY.match(text) is not None,
        speaks=bullet is not None and _BUSY.match(text, bullet.end()) is None,
        person=style.person.match(text) is not None,
        bullet=bullet.end() if bullet else 0,
        tool=len(tool[1]) if tool else -1,
        spinner=_SPINNER.match(text) is not None,
        begins=bool(bullet or closing or _DIRECTIVE.match(text) or _LIST_ITEM.match(text)),
        directive=_NAMED.match(text) is not None,
        words=word is not None and word.end() < len(text),
        word=width(word[0]) if word else 0,
        columns=width(text),
        unspaced=width(unspaced[0]) if unspaced else 0,
        call=style.call is not None and style.call.match(text) is not None,
        opening=text.endswith("<<<") and _OPENING.match(text) is not None,
        closing=closing,
        bars=draws and _BARS.fullmatch(text) is not None,
        finished=style.finished is not None and style.finished.match(text) is not None,
        grows=grows is not None,
    )


@dataclass(slots=True)
class _Raw:
    text: str  # without frames, with its indentation
    traits: _Traits
    number: int
    kind: Kind
    gap: bool
    blanks: int
    block: int  # rows of one block share a margin
    indent: int  # where the text starts, the bullet counted as indentation
    bullet: bool = False
    marked: bool = True
    written: bool = False


def marks_of_work(snapshot: Snapshot, style: AgentStyle) -> str:
    """The rows that say how to interrupt the agent, or turn a spinner: in any program it works."""
    seen = (_traits(row, style) for row in snapshot.rows)
    return "\n".join(traits.text for traits in seen if traits.busy and len(traits.solid) > 1)


@dataclass(slots=True)
class Breaking:
    """How a program breaks what is wider than the screen: what its rows have shown of that."""

    in_words: bool = False  # where the row ends, in words too

    def see(self, sizes: list[int], cols: int) -> None:
        """Learn from rows that go on below, of these many columns.

        If words are broken too, all of them are full, but for a blank at the end; between words few
        would be.
        """
        full = sum(size == cols for size in sizes)
        if min(sizes, default=cols) < cols - 1:
            self.in_words = False
        elif full > 1 and full * 2 > len(sizes):
            self.in_words = True


def read_rows(
    snapshot: Snapshot,
    echo: EchoMask,
    style: AgentStyle = UNKNOWN,
    breaking: Breaking | None = None,
) -> list[Row]:
    """The rows that are not blank, classified, without the agent's own indentation.

    ``echo`` knows what relay typed, ``breaking`` what earlier looks have shown, and learns.
    """
    breaking = breaking or Breaking()
    raws = _classify(snapshot, echo, style)
    margins = _margins(raws)
    exact = style.wraps_at is not None
    if style.wraps_at is None:
        edge, unwrapped = _edge(raws, snapshot.cols)
    else:
        edge, unwrapped = snapshot.cols - style.wraps_at, set()
    rows: list[Row] = []
    joined: list[tuple[Row, int]] = []  # with the columns of the row above
    before: _Raw | None = None
    said = False  # the line above is a directive, so that the next may stand right below it
    for raw in raws:
        text, indent = raw.text, raw.indent
        if raw.bullet:
            text = " " * indent + text[indent:]  # the bullet makes room
        margin = margins[raw.block]
        if margin and indent:
            text = text[min(margin, indent) :]
        # A bullet may turn while the row stands or scrolls: it does not tell rows apart.
        key = raw.traits.solid[1:] if raw.bullet else raw.traits.solid
        row = Row(text, key, raw.kind, raw.gap, None, raw.marked, raw.number)
        row.blanks, row.closing = raw.blanks, raw.traits.closing
        row.finished, row.written = raw.traits.finished, raw.written
        if before is not None and before.kind is raw.kind:
            at = snapshot.cols if raw.block in unwrapped else edge
            if not raw.gap and not before.traits.opening:
                row.joins = _joint(before.traits, raw.traits, at, sure=not said and exact)
                if row.joins and raw.indent <= margin:
                    joined.append((row, before.traits.columns))
            if not raw.gap or style.tail:
                row.partial = row.joins is None and before.traits.columns > at - _FULL
        if row.joins is None:
            said = raw.traits.directive
        rows.append(row)
        before = raw
    if style.wraps_at is None:
        breaking.see([size for _, size in joined], snapshot.cols)
        for row, size in joined if breaking.in_words else ():
            row.joins = "" if size == snapshot.cols else row.joins
    return rows


def _classify(snapshot: Snapshot, echo: EchoMask, style: AgentStyle) -> list[_Raw]:
    seen = [_traits(row, style) for row in without_bars(snapshot.rows, snapshot.cols, style)]
    panels = sum(1 for traits in seen if traits.panel is not None) if style.panels else 0
    written = sum(1 for traits in seen if traits.text and not traits.rule)
    if panels >= _PANEL_SHARE * max(1, written):
        seen = _unframed(seen, style)
    raws: list[_Raw] = []
    kind, gap, block, spoken = Kind.AGENT, True, 0, ""
    blanks, corner, tool_column, called = 0, 0, 0, False
    first_draft, last_draft = _input_box(seen, snapshot.cursor_line)
    draft_seen, empty = False, _empty_quotations(seen)
    rest = echo.rest(traits.solid for traits in seen)
    for number, traits in enumerate(seen):
        if not traits.text or traits.rule or number in empty:
            gap, called = True, False
            blanks = 0 if traits.text else blanks + 1
            if traits.rule and traits.text:
                block, kind, spoken = block + 1, Kind.AGENT, ""
            if number == snapshot.cursor_line:
                draft_seen = True
            elif kind is Kind.PERSON:
                kind = Kind.AGENT
            continue
        indent, marked = traits.indent, True
        if traits.closing:
            this = kind = Kind.AGENT
        elif traits.panel is not None or (traits.busy and not traits.speaks):
            this = Kind.OTHER
        elif traits.call:
            this, called, spoken, kind = Kind.TOOL, True, "", Kind.AGENT
        elif (begun := echo.begun(traits.solid)) or traits.person:
            this, block, called = Kind.PERSON, block + 1, False
            kind = this if traits.person else Kind.AGENT
            spoken = begun or traits.solid[1:]
        elif number < rest or (spoken and echo.part_of_text(spoken + traits.solid)):
            this, spoken = Kind.PERSON, spoken + traits.solid
        elif traits.bullet:
            this = kind = Kind.AGENT
            block, indent, spoken, called = block + 1, traits.bullet, "", False
        elif traits.tool >= 0:
            this = kind = Kind.TOOL
            corner, tool_column, spoken, called = indent, traits.tool, "", False
        elif called or (kind is Kind.TOOL and indent >= (tool_column if gap else corner + 1)):
            this, marked = Kind.TOOL, False
        elif traits.spinner:
            this = Kind.OTHER
        else:
            if kind is not Kind.PERSON:
                kind, spoken = Kind.AGENT, ""
            this, marked = kind, False
        bullet = indent != traits.indent
        if traits.quote is not None:
            traits = _traits(traits.quote, style)._replace(closing=traits.closing)
        raws.append(
            _Raw(traits.text, traits, number, this, gap, blanks, block, indent, bullet, marked)
        )
        raws[-1].written = traits.grows
        if first_draft < number < last_draft:
            raws[-1].kind, draft_seen = Kind.DRAFT, True
        elif number == snapshot.cursor_line:
            if snapshot.typing or this is Kind.PERSON or echo.part_of_text(traits.solid):
                draft_seen = _mark_draft(raws) or draft_seen
            else:
                raws[-1].written = True
        elif draft_seen and this is Kind.AGENT:
            raws[-1].kind = Kind.DRAFT if not gap else Kind.OTHER
        if this is Kind.PERSON and echo.is_end(spoken):
            kind, block = Kind.AGENT, block + 1  # below what relay typed the agent speaks
        gap, blanks = False, 0
    return raws


def _unframed(seen: list[_Traits], style: AgentStyle) -> list[_Traits]:
    """The rows without the frame that holds the conversation, and the scroll bar inside of it."""
    inside = [traits.text if traits.panel is None else traits.panel for traits in seen]
    widths = [width(traits.panel) for traits in seen if traits.panel is not None]
    rows = zip(without_bars(inside, max(widths, default=0), style), seen, strict=True)
    return [
        traits if traits.panel is None else _traits(row, style)._replace(panel=None)
        for row, traits in rows
    ]


def _empty_quotations(seen: list[_Traits]) -> set[int]:
    """The rows with nothing but the bars of quotations, unless one goes on above and below it.

    Around three of them in one another some renderers draw the one and the two that hold them.
    """
    empty = set()
    for number, traits in enumerate(seen):
        if traits.bars and not traits.closing and traits.panel is None:
            around = [*seen[max(0, number - 1) : number], *seen[number + 1 : number + 2]]
            if len(around) < 2 or any(row.quote is None or row.bars for row in around):
                empty.add(number)
    return empty


def _input_box(seen: list[_Traits], cursor_line: int) -> tuple[int, int]:
    """The rules above and below the cursor, between which the input line stands; or (-1, -1)."""
    rules = [index for index, traits in enumerate(seen) if traits.text and traits.rule]
    above = [index for index in rules if index < cursor_line]
    below = [index for index in rules if index > cursor_line]
    return (above[-1], below[0]) if above and below else (-1, -1)


def _mark_draft(raws: list[_Raw]) -> bool:
    """The last row holds the cursor: it and the rows of its input line are a draft.

    Says whether that is the input line of a program that draws one; else it is just the line at
    which the program stands.
    """
    prompted = raws[-1].kind is Kind.PERSON
    at = len(raws) - 1
    while prompted and at > 0 and not raws[at].gap and raws[at - 1].kind is Kind.PERSON:
        raws[at].kind = Kind.DRAFT
        at -= 1
    raws[at].kind = raws[-1].kind = Kind.DRAFT
    return prompted


def _margins(raws: list[_Raw]) -> dict[int, int]:
    """For each block its bullet's indentation, else the most common one (of equals the smaller).

    The items of a list have one of their own, and count where nothing else stands.
    """
    counts: dict[int, Counter[int]] = {}
    bullets: dict[int, int] = {}
    for raw in raws:
        if raw.bullet:
            bullets[raw.block] = raw.indent
        votes = 1 if _LIST_ITEM.match(raw.text) else _ROWS_MAX
        counts.setdefault(raw.block, Counter())[raw.indent] += votes
    common = {
        block: min(count, key=lambda indent: (-count[indent], indent))
        for block, count in counts.items()
    }
    return common | bullets


def _edge(raws: list[_Raw], cols: int) -> tuple[int, set[int]]:
    """The column at which the program wraps: the widest row, if any comes near the edge.

    And the blocks with a row that only the terminal wrapped (a warning of the runtime's, a long
    address): those say nothing of where the program wraps the others.
    """
    rows = [(raw.traits.columns, raw.block) for raw in raws if raw.kind in _WRAPPED]
    unwrapped = {block for size, block in rows if size > cols}
    widest = max((size for size, block in rows if block not in unwrapped), default=0)
    return (widest if widest >= cols - 12 else cols), unwrapped


def _joint(before: _Traits, traits: _Traits, edge: int, *, sure: bool) -> str | None:
    """See ``Row.joins``. ``sure``: prose that wraps at ``edge``, also within what looks live."""
    if traits.begins and not (sure and traits.directive) or not traits.word:
        return None
    if traits.unspaced and _UNSPACED.match(before.text[-1]):  # broken anywhere, at the edge alone
        return "" if before.columns + traits.unspaced > edge else None
    if before.columns + 1 + traits.word <= edge:
        return None
    inside_word = before.columns >= edge - 1 and " " not in before.text.strip()
    return "" if inside_word else " "


# -- what is said together: the rows of a look, each with what is known of it ------------------

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
