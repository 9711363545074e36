"""What was said in the recordings ``hearing/AGENT-COLSxROWS``, and what of it a screen shows.

Each holds one session of a real program with a scripted model: prose and messages, a tool whose
arguments and output contain patterns, the person typing one, a message from another agent quoting
two, the same message twice, two resizes while the model speaks, an interruption within a block,
code, blocks, 200 lines with thinking before them, a compaction, and a refusal by the model.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from relay.core.source_events import End, Line, Pause, SourceEvent
from relay.directive.grammar import Match, Scanner, TooLong

LONG = (
    "please check the tests in src/app.py and report back because this is a long message that "
    "wraps at the edge of each of the three terminals, however wide they are, for sure"
)
SECOND = (
    "Second paragraph, which is long enough to be wrapped at the edge of every one of these "
    "terminals, because it goes on and on until it is longer than the widest of them."
)


class Found(NamedTuple):
    """A message, or with no ``body`` a block that was never closed."""

    target: str
    body: str | None


DEMO = [
    Found("Bob", LONG),
    Found("save", "User prefers dark mode"),
    Found("Ann", "first line"),
    Found("Ben", "second line"),
    Found("Bullet", "in a list item"),
    Found("Number", "in a numbered item"),
    Found("*", 'broadcast to everyone with under_scores and stars and "quotes"'),
    Found("Bob,Ann", "both of you: see src/app.py and bold words"),
]
TWICE = [Found("Bob", "ping"), Found("Bob", "ping")]
STOPPED = [Found("Before", "said before the interruption"), Found("Torn", None)]
#: Said as code, escaped or in bold: none of it is meant.
FENCED, INDENTED = Found("Fenced", "inside code"), Found("Indented", "inside code")
ESCAPED = Found("Escaped", "at a line start")
BLOCK = [
    Found("Dana", f"First paragraph of the block.\n\n{SECOND}\n\n- a list item\n\nLast paragraph."),
    Found("Erin", "after the block"),
]
#: Closed by ``\>>>``.
OTHER_BLOCK = [
    Found("Finn", "First paragraph.\n\nSecond paragraph."),
    Found("Gus", "after the other block"),
]
ENDING = [Found("Hal", "Only paragraph of it.")]
LONG_ANSWER = [Found("Half", "line one hundred is a relay line"), Found("Last", "final words")]

#: What of the code looks like any other line, see docs/screen.md.
LOOKS_LIVE = {
    "claude": [FENCED, INDENTED, ESCAPED],
    "codex": [FENCED, ESCAPED],
    "gemini": [],
    "qwen": [],
    "opencode": [FENCED, INDENTED],
}


def expected(kind: str) -> list[Found]:
    """What is heard of the conversation with this kind of agent, in order."""
    block, ending, long = BLOCK, ENDING, LONG_ANSWER
    if kind == "qwen":  # it never shows the middle of an answer that is longer than the screen
        long = long[1:]
    return [
        *DEMO,
        Found("Alice", "thank you"),
        *TWICE,
        Found("Sized", "said while the size changes"),
        *STOPPED,
        *LOOKS_LIVE[kind],
        *block,
        *OTHER_BLOCK,
        *ending,
        *long,
        # After its compaction Codex repeats what it was asked, and the model its answer.
        *(TWICE if kind == "codex" else []),
        Found("Bob", "ping"),
    ]


def finds(events: list[SourceEvent]) -> list[Found]:
    """The messages in ``events``. Indentation and list marks are the renderer's own."""
    scanner = Scanner(("relay", "memory"), drawn=True)
    found: list[Found] = []
    for event in events:
        items = []
        if isinstance(event, Line):
            items = scanner.line(event.text)
        elif isinstance(event, Pause):
            items = scanner.pause()
        elif isinstance(event, End):
            items = scanner.end()
        for item in items:
            assert not isinstance(item, TooLong)
            body = _plain(item.body) if isinstance(item, Match) else None
            found.append(Found(item.target, body))
    return found


def _plain(body: str) -> str:
    text = re.sub(r"^[ ]*(?:• )?|[ ]+$", _mark, body, flags=re.MULTILINE)
    return text.replace("*stars*", "stars").strip()


def _mark(match: re.Match[str]) -> str:
    return "- " if "•" in match[0] else ""
