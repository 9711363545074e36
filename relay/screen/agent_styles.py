"""A table of what the programs of known agents draw around their words. Pure.

Each entry was read off recordings of the versions that docs/screen.md names. ``UNKNOWN`` is what
agents' programs have in common and serves for every other program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, eq=False)
class AgentStyle:
    """How one agent's program draws. Patterns are matched at the beginning of a row."""

    #: The mark before the person's words, on their first row.
    person: re.Pattern[str]
    #: The mark before the agent's words, up to the text.
    bullet: re.Pattern[str]
    #: The mark before what a tool printed; group 1 is what stands before the text.
    tool: re.Pattern[str]
    #: A row that begins what is nobody's words (a tool's name and arguments, an error, a notice),
    #: up to the next blank row or mark.
    call: re.Pattern[str] | None = None
    #: What stands behind the text of a row (a scroll bar).
    bar: re.Pattern[str] | None = None
    #: ... and what stands there in the last columns of the screen only.
    edge_bar: re.Pattern[str] | None = None
    #: What is drawn otherwise than it was said, and what it means.
    spelling: tuple[tuple[re.Pattern[str], str], ...] = ()
    #: How the ``>>>`` after a block is drawn.
    closing: re.Pattern[str] | None = None
    #: It is drawn as nothing, so that two blank rows follow one another.
    blank_closing: bool = False
    #: The row that ends a turn; two blank rows before it stand for ``>>>`` too.
    finished: re.Pattern[str] | None = None
    #: A frame around most of the screen holds the conversation, and is no dialog.
    panels: bool = False
    #: Columns from the right end at which it breaks its lines; None: not known.
    wraps_at: int | None = None
    #: What it has got of the next line it shows below those that it has drawn.
    tail: bool = False
    #: A full-screen picture is made of single rows, even where one runs into the next.
    rows_apart: bool = True
    #: Where the person's words begin, what was said above is over.
    turns: bool = True
    #: After it has wiped the scrollback it prints all of the conversation again.
    reprints: bool = True
    #: What the marks of Markdown meant is still seen by the style.
    styled: bool = True
    #: Seconds after it has drawn a row in which it may draw it otherwise.
    restyles: float = 0.0
    #: A shell: it appends, also where the person has just had the screen cleared or read a page.
    is_shell: bool = False
    #: For people: what its screen does not tell.
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
    "shell": replace(UNKNOWN, is_shell=True),
}


def style_of(kind: str) -> AgentStyle:
    """How the agents of this kind draw."""
    return _STYLES.get(kind, UNKNOWN)
