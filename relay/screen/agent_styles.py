"""What the programs of known agents draw around their words: a table. Pure.

Each entry was read off recordings of the versions that docs/screen.md names. ``UNKNOWN`` is what
agents' programs have in common and serves for every other program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class AgentStyle:
    """How one agent's program draws. Patterns are matched at the beginning of a row.

    ``person``: the mark before the person's words, on their first row. ``bullet``: the mark before
    the agent's, up to the text. ``tool``: the mark before what a tool printed, group 1 up to the
    text. ``call``: a row that begins what is nobody's words (a tool's name and arguments, an
    error, a notice), up to the next blank row or mark. ``bar``: what stands behind the text of a
    row (a scroll bar); ``edge_bar``: what stands there in the last columns of the screen only.
    ``spelling``: what is drawn otherwise than it was said, and what it means.

    ``closing``: how the ``>>>`` after a block is drawn; ``blank_closing``: it is drawn as nothing,
    so that two blank rows follow one another; ``finished``: the row that ends a turn, before which
    they tell the same. ``panels``: a frame around most of the screen holds the conversation, and
    is no dialog.
    ``wraps_at``: so many columns before the right end it breaks its lines; None: not known.
    ``tail``: what it has got of the next line it shows below those that it has drawn so far.
    ``rows_apart``: a full-screen picture is made of single rows, even where one runs into the next.
    ``turns``: where the person's words begin, what was said above is over.
    ``reprints``: after it has wiped the scrollback it prints all of the conversation again.
    ``styled``: what the marks of Markdown meant is still seen by the style.
    ``restyles``: for so many seconds after it has drawn a row it may draw it otherwise.
    ``unseen``: for people, what its screen does not tell.
    """

    person: re.Pattern[str]
    bullet: re.Pattern[str]
    tool: re.Pattern[str]
    call: re.Pattern[str] | None = None
    bar: re.Pattern[str] | None = None
    edge_bar: re.Pattern[str] | None = None
    spelling: tuple[tuple[re.Pattern[str], str], ...] = ()
    closing: re.Pattern[str] | None = None
    blank_closing: bool = False
    finished: re.Pattern[str] | None = None
    panels: bool = False
    wraps_at: int | None = None
    tail: bool = False
    rows_apart: bool = True
    turns: bool = True
    reprints: bool = True
    styled: bool = True
    restyles: float = 0.0
    unseen: str = ""


_NOTHING = re.compile(r"(?!)")
_TOOL = re.compile(r"(\s*[⎿└↳├╰]\s*)\S?")
#: Where the renderer keeps the backslash, this one survives: ``\>>>`` is no quote to Markdown.
_KEPT = (re.compile(r"^(\s*)\\>>>$"), r"\1>>>")

# Block elements; a longer run of them is a rule, a progress bar or a picture, and what ends with
# the thin ones at both sides is a frame.
_EDGE_BAR = re.compile(r"(?<![▀-▟])[▀-▎▐-▔▖-▟]{1,3}$")

UNKNOWN = AgentStyle(
    person=re.compile(r"\s{0,4}[❯›>»](\s|$)"),
    bullet=re.compile(r"(\s{0,4})[●•✦◆⏺○◇∙⬤✱](\s+)(?=\S)"),
    tool=_TOOL,
    edge_bar=_EDGE_BAR,
    panels=True,
    reprints=False,
    styled=False,
    rows_apart=False,
    turns=False,
)

_STYLES = {
    "claude": AgentStyle(
        person=re.compile(r"[❯>](\s|$)"),
        bullet=re.compile(r"()[●⏺]( )(?=\S)"),
        wraps_at=1,
        tool=_TOOL,
        finished=re.compile(r"[✻✽✶✳✢·*] \S+ for \d"),
        call=re.compile(r"[●⏺] (?:API Error\b|[A-Z][\w-]*(?: \w+)?\()|[✻✽✶✳✢·*∴] \S|\s{2}[▐▝▘]"),
        blank_closing=True,
        unseen="fenced code and \\@relay: look live",
    ),
    "codex": AgentStyle(
        person=re.compile(r"›(\s|$)"),
        bullet=re.compile(r"()•( )(?=\S)"),
        wraps_at=1,
        tool=_TOOL,
        finished=re.compile(r"  Worked for "),
        tail=True,
        call=re.compile(
            r"[■⚠✗] |• (?:Ran|Running|Explored|Exploring|Edited|Added|Deleted|Called|Calling"
            r"|Searched|Searching|Updated Plan|Working|Thinking|Context compacted)\b|  Worked for "
        ),
        blank_closing=True,
        unseen="fenced code and \\@relay: look live",
    ),
    "gemini": AgentStyle(
        person=re.compile(r" >(\s|$)"),
        bullet=re.compile(r"()✦( )(?=\S)"),
        wraps_at=1,
        tool=_TOOL,
        call=re.compile(r"[✕ℹ⚠] "),
        spelling=(_KEPT,),
        unseen="a line that is inline code as a whole looks live",
    ),
    "qwen": AgentStyle(
        person=re.compile(r"  >(\s|$)"),
        bullet=re.compile(r"(  )◆( )(?=\S)"),
        wraps_at=3,
        tool=_TOOL,
        call=re.compile(r"  [^\w\s>◆\"'(\[`#\\<~$%&@*+=|│-] ?\S"),
        bar=re.compile(r"\s*[│█]$"),
        spelling=(_KEPT,),
        closing=re.compile(r"\s*│ >>"),
        unseen="of an answer longer than the screen only its beginning and its end are shown",
    ),
    "opencode": AgentStyle(
        person=re.compile(r"  ┃"),
        bullet=_NOTHING,
        wraps_at=4,
        tool=_NOTHING,
        call=re.compile(r" {5}(?:[▣$+~⚙→←✱%◇] |\S?Thought|\S?Thinking)"),
        restyles=0.3,
        bar=re.compile(r"(?<!^ )(?<!^  )\s+┃ .*┃$"),
        spelling=(_KEPT,),
        closing=re.compile(r"\s*│ >>"),
        unseen="fenced code looks live",
    ),
    "aider": AgentStyle(
        person=re.compile(r"(?:\w+(?: \w+)?)?>(\s|$)"),
        bullet=_NOTHING,
        wraps_at=0,
        tool=_NOTHING,
        spelling=((re.compile(r"^ (\d{1,3}) (?=\S)"), r" \1. "),),
        turns=False,
        unseen="a message of several lines may be cut, and the end of a block is not shown",
    ),
}


def style_of(kind: str) -> AgentStyle:
    """How the agents of this kind draw."""
    return _STYLES.get(kind, UNKNOWN)
