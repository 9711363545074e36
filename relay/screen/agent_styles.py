"""What programs draw around their words, and rows without it. Pure.

What is told here of any program is what agents' programs have in common; a program's profile
(relay.agents.profile) tells where it draws otherwise, as was read off recordings.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# Block elements (a longer run of them is a rule, a progress bar or a picture), or a line.
_EDGE_BAR = re.compile(r"(?:(?<![▀-▟])[▀-▎▐-▔▖-▟]{1,3}|[│┃║▕])$")
#: A frame's row; on the right a scroll bar may take the frame's place.
PANEL = re.compile(
    r"(\s*)(?:[│┃║](?=.*[│┃║█▐░▒▓▲▼]\s*$)|█(?=.*█\s*$)|[▏▕](?=.*[▏▕]\s*$)"
    r"|▊(?=.*▎\s*$)|▎(?=.*▋\s*$)|▐(?=.*▌\s*$))(.*)\S\s*"
)
#: A thin line at the right edge of so many rows is a scroll bar.
_THIN_BAR = 3
#: So many columns may be blank behind a scroll bar, and one more.
_MARGIN = 4


@dataclass(frozen=True, slots=True, eq=False)
class AgentStyle:
    """How one agent's program draws. Patterns are matched at the beginning of a row."""

    #: The mark before the person's words, on their first row.
    person: re.Pattern[str] = re.compile(r"\s{0,4}[❯›>»](\s|$)")
    #: The mark before the agent's words, up to the text. ``•`` is one at the margin only: elsewhere
    #: it is what renderers draw for the items of a list.
    bullet: re.Pattern[str] = re.compile(r"(?:\s{0,4}[●✦◆⏺○◇⬤✱]|[•∙])\s+(?=\S)")
    #: The mark before what a tool printed; group 1 is what stands before the text.
    tool: re.Pattern[str] = re.compile(r"(\s*[⎿└↳├╰]\s*)\S?")
    #: A row that begins what is nobody's words (a tool's name and arguments, an error, a notice),
    #: up to the next blank row or mark.
    call: re.Pattern[str] | None = None
    #: What stands before the text of a row (a border that runs along a message).
    border: re.Pattern[str] | None = None
    #: What stands behind the text of a row (a scroll bar).
    bar: re.Pattern[str] | None = None
    #: ... and what stands there in the last columns of the screen only.
    edge_bar: re.Pattern[str] | None = _EDGE_BAR
    #: What is drawn otherwise than it was said, and what it means.
    spelling: tuple[tuple[re.Pattern[str], str], ...] = ()
    #: The ``>>>`` after a block is drawn as nothing, so that two blank rows follow one another.
    blank_closing: bool = False
    #: The row that ends a turn; two blank rows before it stand for ``>>>`` too.
    finished: re.Pattern[str] | None = None
    #: A frame around most of the screen holds the conversation, and is no dialog.
    panels: bool = True
    #: Columns from the right end at which it breaks its lines; None: not known.
    wraps_at: int | None = None
    #: What it has got of the next line it shows below those that it has drawn.
    tail: bool = False
    #: A full-screen picture is made of single rows, even where one runs into the next.
    rows_apart: bool = False
    #: Where the person's words begin, what was said above is over.
    turns: bool = False
    #: After it has wiped the scrollback it prints all of the conversation again.
    reprints: bool = False
    #: What the marks of Markdown meant is still seen by the style.
    styled: bool = False
    #: Its words are plain: what is faint, or has a colour or a ground of its own, is code, a tool's
    #: or the person's (only where ``styled``).
    plain: bool = False
    #: Seconds after it has drawn a row in which it may draw it otherwise.
    restyles: float = 0.0
    #: Whether the screen's rows and the title show that the agent is at work; the profile tells.
    works: Callable[[Sequence[str], str], bool] | None = None


#: A program of which nothing is known.
UNKNOWN = AgentStyle()


def shown_text(row: str, style: AgentStyle) -> str:
    """``row`` without what the program draws behind it, spelled as it was said."""
    text = row.replace("\xa0", " ").rstrip()
    if style.border is not None and (border := style.border.match(text)):
        text = " " * border.end() + text[border.end() :]
    if style.bar is not None:
        text = style.bar.sub("", text)
    for drawn, meant in style.spelling:
        text = drawn.sub(meant, text)
    return text


def without_notices(lines: list[str], style: AgentStyle) -> list[str]:
    """``lines`` as they were said, and blank ones for those that are nobody's words."""
    if style.call is None:
        return lines
    said = (shown_text(line, style) for line in lines)
    return ["" if style.call.match(line) else line for line in said]


def without_bars(rows: list[str], cols: int, style: AgentStyle) -> list[str]:
    """``rows`` without the scroll bar in the last of ``cols`` columns, or near it behind a blank.

    It stands beside text. A thin line does so in some rows, or it is part of something else; what
    stands on the left too is a frame, where there are not more rows beside that.
    """
    if style.edge_bar is None or all(row.isascii() for row in rows):
        return rows
    found: dict[int, re.Match[str]] = {}
    for number, row in enumerate(rows):
        bar = None if row.isascii() else style.edge_bar.search(row)
        if (
            bar
            and (room := cols - width(row)) in range(_MARGIN)
            and (not room or row[bar.start() - 1 : bar.start()] == " ")
        ):
            found[number] = bar
    plain = [number for number in found if not PANEL.fullmatch(rows[number])]
    if len(plain) < _THIN_BAR and all(found[number][0] == "│" for number in plain):
        return rows
    bars = [*found] if 2 * len(plain) > len(found) else plain
    shown = list(rows)
    for number in bars:
        shown[number] = rows[number][: found[number].start()]
    return shown


def width(row: str) -> int:
    """The columns that ``row`` takes."""
    if row.isascii():
        return len(row)
    return len(row) + sum(
        -1 if unicodedata.combining(char) else unicodedata.east_asian_width(char) in "WF"
        for char in row
    )
